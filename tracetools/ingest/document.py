"""A trace's text on its way by: head, batches of events, tail. In: blocks of bytes. Out: raw events and metadata text.

The text is never held as a whole. A border is guessed, and the guess is proved by decoding what lies before it: a cut
inside a string or an argument leaves no well-formed list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from tracetools.ingest import split
from tracetools.ingest.event import NotEvents, RawEvent, decode_events
from tracetools.ingest.faults import Faults
from tracetools.ingest.salvage import salvage

_LIST_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_SECOND_HEAD = re.compile(rb'"schemaVersion"\s*:\s*\d')
_NEXT_EVENT = re.compile(rb"\s*,?\s*")
_SPACE: Final = b"\xef\xbb\xbf \t\r\n"
MAX_EVENT: Final = 16 << 20
MAX_METADATA: Final = 64 << 20
_PATIENCE: Final = 4 << 20
"""An event may be this long before its missing end counts as damage."""


class NotATrace(Exception):
    """The text is not one trace; the message says what it is instead."""


class Document:
    """One pass over the text. After `batches` ran out, `head` and `tail` hold the rest and `whole` says if it ended."""

    def __init__(self, blocks: Iterable[bytes], faults: Faults) -> None:
        self.head = b""
        self.tail = b""
        self.is_list = False
        self.whole = False
        self._blocks = iter(blocks)
        self._faults = faults
        self._pending = b""

    def batches(self) -> Iterator[list[RawEvent]]:
        """Every event of the list, some thousand at a time, in the order of the file.

        Raises: NotATrace where there is no list of events, or two writers wrote the file.
        """
        self._pending = self.open_list()
        searched = 0
        for block in self._blocks:
            self._pending += block
            cut = split.last_border(self._pending, searched)
            searched = len(self._pending)
            if cut is None and searched < MAX_EVENT:
                continue
            yield self._take(cut, at_end=False)
            if self.whole:
                break
            searched = 0
        if not self.whole:
            yield self._take(None, at_end=True)
        if not self.whole and self._pending.strip(_SPACE):
            yield self._take_damaged(split.scan(self._pending), at_end=True)
        if self.whole:
            self._read_tail()

    def open_list(self) -> bytes:
        """Read up to the start of the list into `head`; returns what of the list came with it."""
        text = next(self._blocks, b"")
        while text:
            first = text.lstrip(_SPACE)[:1]
            if first == b"[":
                self.is_list = True
                return text[text.index(b"[") + 1 :]
            if first not in (b"{", b""):
                raise NotATrace("it is not JSON")
            if found := _LIST_START.search(text):
                self.head = text[: found.start()]
                return text[found.end() :]
            if len(text) > MAX_METADATA or not (block := next(self._blocks, b"")):
                break
            text += block
        raise NotATrace("it is empty" if not text.strip(_SPACE) else "it holds no traceEvents")

    def _take(self, cut: int | None, *, at_end: bool) -> list[RawEvent]:
        """Events up to `cut`; where that is no border, up to the last real one or the end of the list."""
        if cut is not None:
            try:
                events = decode_events(memoryview(self._pending)[:cut])
            except NotEvents:
                return self._take_up_to_real_border(at_end=at_end)
            self._drop(cut)
            return events
        return self._take_up_to_real_border(at_end=at_end)

    def _take_up_to_real_border(self, *, at_end: bool) -> list[RawEvent]:
        structure = split.scan(self._pending)
        end = self._last_end(structure, at_end=at_end)
        if structure.list_end is not None:
            end = structure.list_end
        elif not end and not at_end and len(self._pending) < _PATIENCE:
            return []
        elif not end or (at_end and _SECOND_HEAD.search(self._pending)):
            return self._take_damaged(structure, at_end=at_end)
        try:
            events = decode_events(self._pending[:end])
        except NotEvents:
            return self._take_damaged(structure, at_end=at_end)
        self._drop(end) if structure.list_end is None else self._close(end)
        return events

    def _last_end(self, structure: split.Structure, *, at_end: bool) -> int:
        """Where the last event ends of which what follows is in sight, so that its comma goes with it; 0 for none."""
        for end in structure.ends[:-3:-1].tolist():
            if at_end or self._pending[end:].strip(_SPACE):
                return int(end)
        return 0

    def _take_damaged(self, structure: split.Structure, *, at_end: bool) -> list[RawEvent]:
        """Events where quotes cannot be trusted: up to what looks like a border, or the end of the list.

        The end of the list is told by what comes after it, so it waits for the end of the text.
        """
        list_end = split.likely_list_end(self._pending)
        if at_end:
            end = len(self._pending) if list_end is None else list_end
        else:
            end = split.likely_last_border(self._pending[:list_end], structure.ends)
            if not end and len(self._pending) >= MAX_EVENT:
                end = len(self._pending)
        text = self._pending[:end]
        if _SECOND_HEAD.search(text):
            raise NotATrace('a second "schemaVersion" in the middle shows that two processes wrote to it at once')
        closes = at_end and list_end is not None
        self._close(end) if closes else self._drop(end)
        return salvage(text, self._faults, cut_off=at_end and not closes) if text.strip(_SPACE) else []

    def _drop(self, end: int) -> None:
        comma = _NEXT_EVENT.match(self._pending, end)
        self._pending = self._pending[comma.end() if comma else end :]

    def _close(self, end: int) -> None:
        self.tail, self._pending, self.whole = self._pending[end + 1 :], b"", True

    def _read_tail(self) -> None:
        for block in self._blocks:
            if len(self.tail) < MAX_METADATA:
                self.tail += block
        if b'"traceEvents"' in self.tail:
            raise NotATrace('a second "traceEvents" shows that it holds more than one trace')
