"""Where an event ends. In: JSON text somewhere inside `traceEvents`. Out: borders between events, end of the list.

Three borders as writers write them: ``},\\n  {\\n    "ph": "X"``, ``},{"name":"a"``, ``}, {  "args"``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracetools.table import IntArray

_BORDER = re.compile(rb'\}\s*,\s*\{\s*"')
_EVENT_KEY = rb'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp)"\s*:'
_LIKELY_BORDER = re.compile(rb"\}\s*,\s*(?=" + _EVENT_KEY + rb")")
_LIKELY_START = re.compile(_EVENT_KEY)
_LIKELY_END = re.compile(rb'\}\s*\]\s*(?:,\s*"[^"\\]{1,200}"\s*:|\}\s*$)')
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
        last = None
        for last in _BORDER.finditer(text, begin):
            pass
        if last is not None:
            return last.start() + 1
        if begin == start:
            break
    return None


def scan(text: bytes) -> Structure:
    """Walk brackets outside strings; right as long as every quote in `text` is where JSON wants it."""
    octets = np.frombuffer(text, np.uint8)
    quotes = _string_quotes(octets)
    steps = _BRACKETS[octets]
    brackets = np.flatnonzero(steps)
    outside = np.searchsorted(quotes, brackets) % 2 == 0
    brackets = brackets[outside]
    depth = np.cumsum(steps[brackets], dtype=np.int64)
    below = np.flatnonzero(depth < 0)
    list_end = int(brackets[below[0]]) if len(below) else None
    if list_end is not None:
        depth, brackets = depth[: below[0]], brackets[: below[0]]
    return Structure(brackets[(depth == 0) & (octets[brackets] == ord("}"))] + 1, list_end)


def _string_quotes(octets: npt.NDArray[np.uint8]) -> IntArray:
    """Positions of quotes that open or close a string: those after an even number of backslashes."""
    quotes = np.flatnonzero(octets == ord('"'))
    after_backslash = octets[np.maximum(quotes - 1, 0)] == ord("\\")
    if not after_backslash.any():
        return quotes
    others = np.flatnonzero(octets != ord("\\"))
    before = np.searchsorted(others, quotes) - 1
    run = quotes - 1 - np.where(before >= 0, others[before], -1)
    return quotes[run % 2 == 0]


def likely_pieces(text: bytes) -> list[bytes]:
    """Damaged text cut where events seem to meet, strings not honoured: a broken string must not hide the rest."""
    cuts = [(found.start() + 1, found.end()) for found in _LIKELY_BORDER.finditer(text)]
    begins = [0, *(end for _, end in cuts)]
    ends = [*(start for start, _ in cuts), len(text)]
    return [text[begin:end] for begin, end in zip(begins, ends, strict=True)]


def likely_starts(text: bytes) -> list[int]:
    """Positions inside a damaged stretch where an event seems to begin."""
    return [found.start() for found in _LIKELY_START.finditer(text)]


def likely_last_border(text: bytes) -> int | None:
    """Like `last_border`, but only before a key that events have."""
    last = None
    for last in _LIKELY_BORDER.finditer(text):
        pass
    return None if last is None else last.start() + 1


def likely_list_end(text: bytes) -> int | None:
    """Position of the `]` that seems to close the list of events: no `ph` comes after it."""
    for found in _LIKELY_END.finditer(text):
        if b'"ph"' not in text[found.end() :]:
            return text.index(b"]", found.start())
    return None
