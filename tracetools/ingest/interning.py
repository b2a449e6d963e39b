"""Each distinct text and lane once. In: values of a column, in order. Out: their ids; the tables grow by themselves."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from tracetools.table import ABSENT, IdArray, IntArray, Lane

LaneWord: TypeAlias = int | str | None


class Strings(defaultdict[str, int]):
    """Text → id, in the order of first sight; looking up a new text adds it."""

    def __init__(self) -> None:
        super().__init__(itertools.count().__next__)

    def ids(self, texts: Sequence[str]) -> IdArray:
        """The id of each text."""
        return np.fromiter(map(self.__getitem__, texts), np.int32, len(texts))

    def ids_of_json(self, values: Sequence[msgspec.Raw]) -> IdArray:
        """The id of each value's JSON text as it is written; for values that hardly repeat."""
        # No JSON text holds a NUL byte; joining and splitting beats turning each Raw into bytes by half.
        texts = b"\0".join(values).decode("utf-8", "replace").split("\0") if values else []
        return self.ids(texts)


class RawTexts(dict[bytes, int]):
    """JSON value as written → id of its text; a plain string is its content, `null` and nothing are ABSENT."""

    def __init__(self, strings: Strings) -> None:
        super().__init__({b"": ABSENT, b"null": ABSENT})
        self._strings = strings

    def __missing__(self, raw: bytes) -> int:
        self[raw] = number = self._strings[text_of_raw(raw)]
        return number

    def ids(self, values: Sequence[msgspec.Raw]) -> IntArray:
        """The id of each value."""
        pieces = b"\0".join(values).split(b"\0") if values else []
        return np.fromiter(map(self.__getitem__, pieces), np.int64, len(values))


def text_of_raw(raw: bytes) -> str:
    r"""The content of a JSON string, or any other JSON value as it is written.

    >>> text_of_raw(b'"a\\nb"'), text_of_raw(b"[[4, 64], []]")
    ('a\nb', '[[4, 64], []]')
    """
    if raw[:1] == b'"':
        try:
            return msgspec.json.decode(raw, type=str)
        except (msgspec.DecodeError, UnicodeError):
            return raw[1:-1].decode("utf-8", "replace")
    return raw.decode("utf-8", "replace")


class LaneTable(defaultdict[tuple[LaneWord, LaneWord], int]):
    """(pid, tid) → id, in the order of first sight. A missing pid or tid counts as an empty word."""

    def __init__(self) -> None:
        super().__init__(itertools.count().__next__)

    def ids(self, pids: Sequence[LaneWord], tids: Sequence[LaneWord]) -> IdArray:
        """The id of each (pid, tid)."""
        try:
            # Only numbers add up; numpy alone would take the word "25738" for the number.
            sum(pids), sum(tids)  # type: ignore[arg-type]
            pid_numbers = np.fromiter(pids, np.int64, len(pids))
            tid_numbers = np.fromiter(tids, np.int64, len(tids))
        except (TypeError, OverflowError):
            return np.fromiter(map(self.__getitem__, zip(pids, tids, strict=True)), np.int32, len(pids))
        return self._ids_of_runs(pid_numbers, tid_numbers)

    def _ids_of_runs(self, pids: IntArray, tids: IntArray) -> IdArray:
        """Neighbours mostly share a lane, so only the first of each run is looked up."""
        if not len(pids):
            return np.zeros(0, np.int32)
        changes = (pids[1:] != pids[:-1]) | (tids[1:] != tids[:-1])
        firsts = np.concatenate(([0], np.flatnonzero(changes) + 1))
        lanes = zip(pids[firsts].tolist(), tids[firsts].tolist(), strict=True)
        ids = np.fromiter(map(self.__getitem__, lanes), np.int32, len(firsts))
        return np.repeat(ids, np.diff(np.concatenate((firsts, [len(pids)]))))

    def lanes(self) -> tuple[Lane, ...]:
        """All lanes, by id."""
        return tuple(Lane("" if pid is None else pid, "" if tid is None else tid) for pid, tid in self)
