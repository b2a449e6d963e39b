r"""What real writers got wrong, put right. In: JSON text of one damaged object. Out: text that decodes, and the faults.

Three that occur: ``"name": "torch\cuda\__init__.py(219): _lazy_init"``, ``"memory bandwidth (GB/s)": inf``,
``"name": "print("hello")"``.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracetools.ingest import split

_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|[\"\\/bfnrt])|\\")
_SURROGATE = re.compile(
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_BARE_WORD = re.compile(rb"(?<![\w.])[-+]?(?:infinity|inf|nan)(?![\w.])", re.IGNORECASE)
_SURPLUS_COMMA = re.compile(rb",(?=\s*[,}\]])|(?<=[\[{])(\s*),")
_BRACKET = re.compile(rb"[\[\]{}]")
_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
"""A quote, or whatever a backslash escapes; told apart in one pass, however many backslashes stand in a row."""
_AFTER_VALUE: Final = {
    ord("{"): re.compile(rb'\s*(?:\}|,\s*"(?:[^"\\]|\\.){0,200}"\s*:|,\s*\}|$)'),
    ord("["): re.compile(rb"\s*(?:\]|,\s*(?:[\"\[{\]\d-]|true|false|null|[-+]?inf|nan)|$)", re.IGNORECASE),
}
_MAX_DEPTH: Final = 200


def repaired(text: bytes) -> tuple[bytes, set[str]]:
    r"""The text with strings, bare words, commas and depth put right, and which rules fired.

    >>> text, faults = repaired(b'{"name": "print("hello")", "bandwidth": inf,}')
    >>> text, sorted(faults)
    (b'{"name": "print(\\"hello\\")", "bandwidth": null}', ['not_a_number', 'stray_comma', 'unescaped_quote'])
    """
    faults: set[str] = set()
    pieces: list[bytes] = []
    stack: list[int] = []
    position = 0
    while (opening := text.find(b'"', position)) >= 0:
        between = text[position:opening]
        _follow(between, stack)
        inside = stack[-1] if stack else ord("{")
        is_key = inside == ord("{") and not between.rstrip().endswith(b":")
        closing = _closing_quote(text, opening + 1, None if is_key else _AFTER_VALUE[inside])
        pieces += (_mended_values(between, faults), b'"', _mended_string(text[opening + 1 : closing], faults), b'"')
        position = closing + 1
    pieces.append(_mended_values(text[position:], faults))
    return _flattened(b"".join(pieces), faults), faults


def _follow(between: bytes, stack: list[int]) -> None:
    """Keep track of the innermost open bracket."""
    for bracket in _BRACKET.findall(between):
        if bracket in b"{[":
            stack.append(bracket[0])
        elif stack:
            stack.pop()


def _closing_quote(text: bytes, start: int, after: re.Pattern[bytes] | None) -> int:
    """The quote that ends a string: for a value, one after which its object or list goes on."""
    for found in _QUOTE.finditer(text, start):
        if found.group() == b'"' and (after is None or after.match(text, found.end())):
            return found.start()
    return len(text)


def _mended_string(content: bytes, faults: set[str]) -> bytes:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        faults.add("invalid_utf8")
        content = content.decode("utf-8", "replace").encode()
    if b"\\" in content:
        content = _mended_escapes(content, faults)
    if _CONTROL.search(content):
        faults.add("control_character")
        content = _CONTROL.sub(lambda found: b"\\u%04x" % found.group()[0], content)
    escaped = _QUOTE.sub(lambda found: b'\\"' if found.group() == b'"' else found.group(), content)
    if escaped != content:
        faults.add("unescaped_quote")
    return escaped


def _mended_escapes(content: bytes, faults: set[str]) -> bytes:
    doubled = _ESCAPE.sub(lambda found: b"\\\\" if found.group() == b"\\" else found.group(), content)
    if doubled != content:
        faults.add("bad_escape")
    paired = _SURROGATE.sub(lambda found: found.group() if len(found.group()) == 12 else b"\\ufffd", doubled)
    if paired != doubled:
        faults.add("invalid_utf8")
    return paired


def _mended_values(between: bytes, faults: set[str]) -> bytes:
    """What stands between strings: bare words become null, surplus commas go."""
    if b"n" in between.lower() and (mended := _BARE_WORD.sub(b"null", between)) != between:
        faults.add("not_a_number")
        between = mended
    while b"," in between and (mended := _SURPLUS_COMMA.sub(rb"\1", between)) != between:
        faults.add("stray_comma")
        between = mended
    return between


def _flattened(text: bytes, faults: set[str]) -> bytes:
    """Whatever nests deeper than a decoder bears becomes null."""
    if text.count(b"[") + text.count(b"{") <= _MAX_DEPTH:
        return text
    positions, depth = split.bracket_depths(text)
    deep = np.concatenate(([False], depth > _MAX_DEPTH, [False]))
    begins = np.flatnonzero(deep[1:] & ~deep[:-1])
    if not len(begins):
        return text
    faults.add("deep_nesting")
    ends = np.flatnonzero(deep[:-1] & ~deep[1:])
    kept, position = [], 0
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        kept += [text[position : int(positions[begin])], b"null"]
        position = int(positions[end]) + 1 if end < len(positions) else len(text)
    return b"".join([*kept, text[position:]])
