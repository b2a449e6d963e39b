"""One large file read by several processes. In: a `TraceInput`. Out: the same columns as one process would fill.

The list of events is cut into stretches of equal length; process k of n decodes stretches k, k+n, … A stretch begins
behind the first border at or after its offset, so that neighbours agree on it without a word. Every process inflates
the whole text, which costs a tenth of decoding it. Whatever is out of the ordinary (a border that was none, damage,
begin and end events) makes the whole attempt `Unusual`: one process then reads the file from the start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracetools.ingest import split, streams
from tracetools.ingest.columns import PhaseColumns, TraceColumns
from tracetools.ingest.document import MAX_EVENT, Document, NotATrace
from tracetools.ingest.event import NotEvents, decode_events, undisturbed
from tracetools.ingest.faults import Faults
from tracetools.ingest.inputs import TraceInput
from tracetools.ingest.interning import LaneWord
from tracetools.table import ABSENT, TEXT_ARGUMENTS, IdArray
from tracetools.workers import Worker, WorkerDied

STRETCH: Final = 4 << 20
_WORTH_A_PROCESS: Final = 16 * STRETCH
"""Below this the start of a process, 0.2 s, costs more than it brings."""
_USUAL_COMPRESSION: Final = 12
_MOST_PROCESSES: Final = 8
_STRING_IDS: Final = ("name", "category", "flow", "args")


class Unusual(Exception):
    """The file wants the care of a single reader."""


@dataclass(slots=True)
class _Piece:
    """The events of one stretch; ids count in the share's own tables, of which strings and lanes are the new part."""

    stretch: int
    length: int
    strings: list[str]
    lanes: list[tuple[LaneWord, LaneWord]]
    columns: dict[str, dict[str, npt.NDArray[Any]]]
    arguments: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]
    records: list[dict[str, Any]]


@dataclass(slots=True)
class Share:
    """What one process read. tail: text after the list, where this process came to its end."""

    head: bytes
    tail: bytes | None = None
    pieces: list[_Piece] = field(default_factory=list)
    has_fractions: bool = False


def estimated_text_bytes(source: TraceInput) -> int:
    """Size of a file's JSON text; a guess where it is compressed, 0 where it cannot be opened."""
    try:
        with streams.open_bytes(source.path, source.member) as stream:
            compressed = stream.read(2) == streams.GZIP
    except (OSError, KeyError):
        return 0
    return source.size_bytes * (_USUAL_COMPRESSION if compressed else 1)


def processes_worth(source: TraceInput, most: int) -> int:
    """How many processes a file keeps busy, at most `most`."""
    if most == 1:
        return 1
    return max(1, min(most, _MOST_PROCESSES, estimated_text_bytes(source) // _WORTH_A_PROCESS))


def read_in_shares(
    source: TraceInput, processes: int, columns: TraceColumns, counted: Callable[[Iterator[bytes]], Iterator[bytes]]
) -> tuple[bytes, bytes]:
    """Fill `columns` with all events of the file; returns the text before and after the list.

    counted: sees this process's blocks go by. Raises Unusual where only one process can read the file.
    """
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker()) for _ in range(processes - 1)]
        try:
            for number, worker in enumerate(workers, start=1):
                worker.submit(read_share, source.path, source.member, number, processes)
            shares = [read_share(source.path, source.member, 0, processes, counted)]
            shares += [worker.result() for worker in workers]
        except WorkerDied as error:
            raise Unusual from error
    tails = [share.tail for share in shares if share.tail is not None]
    if len(tails) != 1:
        raise Unusual
    _merge(shares, columns)
    return shares[0].head, tails[0]


def read_share(
    path: Path,
    member: str | None,
    number: int,
    processes: int,
    counted: Callable[[Iterator[bytes]], Iterator[bytes]] = iter,
) -> Share:
    """Decode the stretches of one process."""
    faults = Faults()
    columns = TraceColumns(faults)
    try:
        with undisturbed(), streams.open_bytes(path, member) as stream:
            blocks = counted(streams.blocks(stream))
            document = Document(blocks, faults)
            first = document.open_list()
            share = Share(document.head)
            taker = _PieceTaker(columns)
            for stretch, text, is_last in _stretches(first, blocks, number, processes):
                if is_last:
                    text, share.tail = _up_to_list_end(text)
                columns.add(decode_events(text))
                share.pieces.append(taker.take(stretch))
    except (streams.Damaged, NotATrace, NotEvents) as error:
        raise Unusual from error
    if faults or document.is_list or columns.has_begin_end:
        raise Unusual
    share.has_fractions = columns.has_fractions
    return share


def _stretches(first: bytes, blocks: Iterable[bytes], number: int, processes: int) -> Iterator[tuple[int, bytes, bool]]:
    """Own stretches: number, text, and whether the text runs on to the end of the file."""
    stretch, held, offset = number, first, 0
    waiting = iter(blocks)
    while True:
        begin = stretch * STRETCH
        if offset < begin:
            skipped = min(begin - offset, len(held))
            held, offset = held[skipped:], offset + skipped
        # Both searches start at a multiple of STRETCH, here and in the process that owns the neighbour.
        start = 0 if not stretch else split.first_border(held, 0) if offset == begin else None
        end = None if start is None else split.first_border(held, STRETCH)
        if start is not None and end is not None:
            yield stretch, split.after_border(held[start:end]), False
            stretch += processes
            continue
        block = next(waiting, None)
        if block is None:
            if start is not None:
                yield stretch, split.after_border(held[start:]), True
            return
        if len(held) > STRETCH + len(block) + MAX_EVENT:
            raise Unusual
        held += block


def _up_to_list_end(text: bytes) -> tuple[bytes, bytes]:
    end = split.scan(text).list_end
    if end is None:
        raise Unusual
    return text[:end], text[end + 1 :]


class _PieceTaker:
    """Takes from growing columns what one stretch added."""

    def __init__(self, columns: TraceColumns) -> None:
        self._columns = columns
        self._strings = self._lanes = self._records = 0

    def take(self, stretch: int) -> _Piece:
        """The events since the last call; the columns are empty afterwards, the tables of texts and lanes are not."""
        columns = self._columns
        groups = {name: getattr(columns, name) for name in _GROUPS}
        piece = _Piece(
            stretch=stretch,
            length=columns.complete.length,
            strings=list(islice(columns.strings, self._strings, None)),
            lanes=list(islice(columns.lanes, self._lanes, None)),
            columns={name: {key: part.join() for key, part in group.parts.items()} for name, group in groups.items()},
            arguments={key: (rows.join(), values.join()) for key, (rows, values) in columns.arguments.items()},
            records=columns.records[self._records :],
        )
        self._strings, self._lanes = len(columns.strings), len(columns.lanes)
        self._records = len(columns.records)
        columns.complete.length = 0
        return piece


_GROUPS: Final = ("complete", "instants", "counters", "flows")


def _merge(shares: list[Share], columns: TraceColumns) -> None:
    """Append all pieces in the order of the text, ids translated to the tables of `columns`."""
    tables = [(np.zeros(0, np.int32), np.zeros(0, np.int32)) for _ in shares]
    pieces = [(piece, number) for number, share in enumerate(shares) for piece in share.pieces]
    for piece, number in sorted(pieces, key=lambda each: each[0].stretch):
        strings, lanes = tables[number]
        strings = np.concatenate([strings, columns.strings.ids(piece.strings)])
        lanes = np.concatenate([lanes, _lane_ids(columns, piece.lanes)])
        tables[number] = strings, lanes
        _append(piece, columns, strings, lanes)
    columns.has_fractions = any(share.has_fractions for share in shares)


def _lane_ids(columns: TraceColumns, lanes: list[tuple[LaneWord, LaneWord]]) -> IdArray:
    return np.array([columns.lanes[lane] for lane in lanes], np.int32)


def _append(piece: _Piece, columns: TraceColumns, strings: IdArray, lanes: IdArray) -> None:
    for column, (rows, values) in piece.arguments.items():
        columns.append_sparse(column, rows, strings[values] if column in TEXT_ARGUMENTS else values)
    for name, arrays in piece.columns.items():
        group: PhaseColumns = getattr(columns, name)
        group.add(**{key: _translated(key, values, strings, lanes) for key, values in arrays.items()})
    columns.records.extend(piece.records)


def _translated(key: str, values: npt.NDArray[Any], strings: IdArray, lanes: IdArray) -> npt.NDArray[Any]:
    if key == "lane":
        return np.asarray(lanes[values])
    if key not in _STRING_IDS or not len(values):
        return values
    wide = strings.astype(np.int64)
    return np.where(values == ABSENT, ABSENT, wide[np.maximum(values, 0)]).astype(values.dtype)
