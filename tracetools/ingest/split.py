r"""Where an event ends. In: JSON text somewhere inside `traceEvents`. Out: borders between events, end of the list.

Three borders as writers write them: ``},\n  {\n    "ph": "X"``, ``},{"name":"a"``, ``}, {  "args"``.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracetools.table import IntArray

_BORDER = re.compile(rb'\}\s*,\s*\{\s*["}]')
_COMMA = re.compile(rb"\s*,\s*")
_EVENT_KEY = rb'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp)"\s*:'
_LIKELY_BORDER = re.compile(rb"\}\s*,\s*(?=" + _EVENT_KEY + rb")")
_LIKELY_START = re.compile(_EVENT_KEY)
_LIKELY_END = re.compile(rb'\}\s*(?:,\s*)?\]\s*(?:,\s*"[^"\\]{1,200}"\s*:|\}\s*$)')
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_NEAR_END: Final = 1 << 16
_SEEN: Final = 1 << 10
"""How far back a border that spans two reads may begin."""

_BRACKETS = np.zeros(256, np.int8)
_BRACKETS[list(b"{[")] = 1
_BRACKETS[list(b"}]")] = -1


@dataclass(frozen=True, slots=True)
class Structure:
    """Strings honoured: where the top-level objects of a stretch of text end, and where the list itself does."""

    ends: IntArray
    list_end: int | None


def last_border(text: bytes, searched: int = 0) -> int | None:
    """Position right after the `}` of the last border in sight, or None. It may lie inside a string or an argument.

    searched: so many bytes at the start are known to hold none.
    """
    start = max(searched - _SEEN, 0)
    for begin in (max(len(text) - _NEAR_END, start), start):
        if (last := _last_match(_BORDER, text, begin)) is not None:
            return last + 1
        if begin == start:
            break
    return None


def first_border(text: bytes, begin: int) -> int | None:
    """Like `last_border`, but of the first border that begins at `begin` or later."""
    found = _BORDER.search(text, begin)
    return None if found is None else found.start() + 1


def after_border(text: bytes) -> bytes:
    """Text from a border on, without the comma that separates it from what stood before."""
    found = _COMMA.match(text)
    return text[found.end() :] if found else text


def scan(text: bytes) -> Structure:
    """Walk brackets outside strings; right as long as every quote in `text` is where JSON wants it."""
    brackets, depth = bracket_depths(text)
    below = np.flatnonzero(depth < 0)
    list_end = None
    if len(below):
        first = int(brackets[below[0]])
        # A brace that closes nothing is damage, not the end of the list.
        list_end = first if text[first] == ord("]") else None
        depth, brackets = depth[: below[0]], brackets[: below[0]]
    return Structure(brackets[depth == 0] + 1, list_end)


def bracket_depths(text: bytes) -> tuple[IntArray, IntArray]:
    """Position of each bracket outside strings, and how many are open after it."""
    octets = np.frombuffer(text, np.uint8)
    steps = _BRACKETS[octets]
    brackets = np.flatnonzero(steps)
    outside = np.searchsorted(_string_quotes(text, octets), brackets) % 2 == 0
    brackets = brackets[outside]
    return brackets, np.cumsum(steps[brackets], dtype=np.int64)


def _string_quotes(text: bytes, octets: npt.NDArray[np.uint8]) -> IntArray:
    """Positions of quotes that open or close a string: those after an even number of backslashes."""
    quotes = np.flatnonzero(octets == ord('"'))
    if b"\\" not in text:
        return quotes
    escaped = [pair.end() - 1 for pair in _ESCAPED.finditer(text) if text[pair.end() - 1] == ord('"')]
    if not escaped:
        return quotes
    return quotes[~np.isin(quotes, np.array(escaped, np.int64), assume_unique=True)]


def likely_pieces(text: bytes) -> list[bytes]:
    """Damaged text cut where events seem to meet, strings not honoured: a broken string must not hide the rest."""
    cuts = [(found.start() + 1, found.end()) for found in _LIKELY_BORDER.finditer(text)]
    begins = [0, *(end for _, end in cuts)]
    ends = [*(start for start, _ in cuts), len(text)]
    return [text[begin:end] for begin, end in zip(begins, ends, strict=True)]


def likely_starts(text: bytes) -> list[int]:
    """Positions inside a damaged stretch where an event seems to begin."""
    return [found.start() for found in _LIKELY_START.finditer(text)]


def likely_last_border(text: bytes, ends: IntArray) -> int:
    """Like `last_border`, but before a key that events have, and best where `ends` has an object's end; 0 for none."""
    borders = np.array([found.start() + 1 for found in _LIKELY_BORDER.finditer(text)], np.int64)
    proper = borders[np.isin(borders, ends)]
    return int(proper[-1]) if len(proper) else int(borders[-1]) if len(borders) else 0


def _last_match(pattern: re.Pattern[bytes], text: bytes, begin: int) -> int | None:
    last = deque(pattern.finditer(text, begin), maxlen=1)
    return last[0].start() if last else None


def likely_list_end(text: bytes) -> int | None:
    """Position of the `]` that seems to close the list of events: no `ph` comes after it."""
    found = _LIKELY_END.search(text, max(text.rfind(b'"ph"'), 0))
    return None if found is None else text.index(b"]", found.start())
