"""Growing typed columns of one trace. In: batches of decoded events. Out: the pieces of a `Trace`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import itemgetter
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tracetools.ingest.arguments import SchemaTable
from tracetools.ingest.begin_end import BeginEndPairs
from tracetools.ingest.event import RawEvent
from tracetools.ingest.faults import Faults
from tracetools.ingest.interning import LaneTable, RawTexts, Strings
from tracetools.ingest.times import is_number, ns_of_tokens
from tracetools.table import ABSENT, BoolArray, IntArray, Sparse

_MAX_RECORDS: Final = 100_000
_FAR_NS: Final = 1 << 61
"""73 years: base, start and length stay below this, so that their sum stays an int64."""
_X, _INSTANT, _COUNTER, _FLOW, _RECORD, _BEGIN_END, _UNKNOWN = range(7)
_GROUP_OF_PHASE = np.full(256, _UNKNOWN, np.uint8)
for _phase, _group in {
    "X": _X,
    "i": _INSTANT,
    "I": _INSTANT,
    "C": _COUNTER,
    "M": _RECORD,
    "B": _BEGIN_END,
    "E": _BEGIN_END,
}.items():
    _GROUP_OF_PHASE[ord(_phase)] = _group
_GROUP_OF_PHASE[list(b"stf")] = _FLOW


@dataclass(slots=True)
class Parts:
    """One growing column: the arrays of the batches, joined when all are in."""

    dtype: npt.DTypeLike
    arrays: list[npt.NDArray[Any]] = field(default_factory=list)

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append a batch."""
        self.arrays.append(values)

    def join(self) -> npt.NDArray[Any]:
        """All batches as one array; the batches are let go."""
        joined = np.concatenate([np.zeros(0, self.dtype), *self.arrays], dtype=self.dtype)
        self.arrays.clear()
        return joined


class PhaseColumns:
    """Columns that complete events, marks and flows share, and what each adds."""

    def __init__(self, **dtypes: npt.DTypeLike) -> None:
        self.length = 0
        self.parts = {name: Parts(dtype) for name, dtype in dtypes.items()}

    def add(self, **batches: npt.NDArray[Any]) -> None:
        """Append one batch to every column."""
        for name, batch in batches.items():
            self.parts[name].add(batch)
        self.length += len(batches["ts_ns"])


_PLACE: Final[dict[str, npt.DTypeLike]] = {"ts_ns": np.int64, "lane": np.int32, "category": np.int32}


class TraceColumns:
    """All that is kept of a trace's events while its text goes by. Times are relative to the base until the end."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.strings = Strings()
        self.lanes = LaneTable()
        self.complete = PhaseColumns(**_PLACE, dur_ns=np.int64, name=np.int32)
        self.instants = PhaseColumns(**_PLACE, name=np.int32, args=np.int64)
        self.counters = PhaseColumns(**_PLACE, name=np.int32, args=np.int64)
        self.flows = PhaseColumns(**_PLACE, flow=np.int32, is_start=np.bool_)
        self.arguments: dict[str, tuple[Parts, Parts]] = {}
        self.records: list[dict[str, Any]] = []
        self._raw_texts = RawTexts(self.strings)
        self.has_fractions = False
        self.has_begin_end = False
        self._pairs = BeginEndPairs()
        self._schemas = SchemaTable()

    def add(self, events: Sequence[RawEvent]) -> None:
        """Append a batch of events, each to the columns of its phase."""
        phases = "".join([event.ph for event in events])
        if len(phases) != len(events):
            phases = "".join([event.ph if len(event.ph) == 1 else "?" for event in events])
        groups = _GROUP_OF_PHASE[np.frombuffer(phases.encode("latin-1", "replace"), np.uint8)]
        for group, add in (
            (_X, self._add_complete),
            (_INSTANT, self._add_instants),
            (_COUNTER, self._add_counters),
            (_FLOW, self._add_flows),
            (_RECORD, self._add_records),
            (_BEGIN_END, self._add_begin_end),
            (_UNKNOWN, self._add_unknown),
        ):
            chosen = groups == group
            if chosen.all():
                add(events)
            elif chosen.any():
                add(list(compress(events, chosen.tolist())))

    def _add_complete(self, events: Sequence[RawEvent]) -> None:
        events, place = self._place(events)
        self._add_arguments(events, place["category"])
        name = self.strings.ids([event.name for event in events])
        self.complete.add(**place, name=name, dur_ns=self._durations(events))

    def _add_instants(self, events: Sequence[RawEvent]) -> None:
        self._add_marks(self.instants, events)

    def _add_counters(self, events: Sequence[RawEvent]) -> None:
        self._add_marks(self.counters, events)

    def _add_marks(self, marks: PhaseColumns, events: Sequence[RawEvent]) -> None:
        events, place = self._place(events)
        name = self.strings.ids([event.name for event in events])
        args = self.strings.ids_of_json([event.args for event in events]).astype(np.int64)
        if (nothing := self.strings.get("null")) is not None:
            args[args == nothing] = ABSENT
        marks.add(**place, name=name, args=args)

    def _add_flows(self, events: Sequence[RawEvent]) -> None:
        events, place = self._place(events)
        ids = [event.id for event in events]
        # An arrow's number is used twice or so; a word goes by its content, so that "7" and 7 are one arrow.
        flow = self._word_ids(ids) if b'"' in b"".join(ids) else self.strings.ids_of_json(ids)
        is_start = np.array([event.ph == "s" for event in events], np.bool_)
        self.flows.add(**place, flow=flow, is_start=is_start)

    def _word_ids(self, values: list[msgspec.Raw]) -> npt.NDArray[np.int32]:
        ids = self._raw_texts.ids(values)
        ids[ids == ABSENT] = self.strings[""]
        return ids.astype(np.int32)

    def _add_records(self, events: Sequence[RawEvent]) -> None:
        room = _MAX_RECORDS - len(self.records)
        self.faults.add("many_records", max(0, len(events) - room))
        for event in events[: max(0, room)]:
            self.records.append({"name": event.name, "pid": event.pid, "tid": event.tid, "args": _plain(event.args)})

    def _add_begin_end(self, events: Sequence[RawEvent]) -> None:
        self.has_begin_end = True
        self._add_complete(self._pairs.complete(events))

    def finish(self) -> None:
        """Note what waited for something that never came."""
        self.faults.add("open_begin_end", self._pairs.unmatched())

    def _add_unknown(self, events: Sequence[RawEvent]) -> None:
        self.faults.add("unknown_phase", len(events))

    def _place(self, events: Sequence[RawEvent]) -> tuple[Sequence[RawEvent], dict[str, npt.NDArray[Any]]]:
        """Time, lane and category of the events; those without a readable time are left out and counted."""
        ts_ns = self._times([event.ts for event in events])
        if bool((lost := (ts_ns < -_FAR_NS) | (ts_ns > _FAR_NS)).any()):
            lost_events = list(compress(events, lost.tolist()))
            missing = sum(1 for event in lost_events if not is_number(bytes(event.ts)))
            self.faults.add("missing_time", missing)
            self.faults.add("time_overflow", len(lost_events) - missing)
            events, ts_ns = list(compress(events, (~lost).tolist())), ts_ns[~lost]
        lane = self.lanes.ids([event.pid for event in events], [event.tid for event in events])
        category = self.strings.ids([event.cat for event in events])
        return events, {"ts_ns": ts_ns, "lane": lane, "category": category}

    def _times(self, tokens: list[msgspec.Raw]) -> IntArray:
        text = b",".join(tokens)
        self.has_fractions = self.has_fractions or b"." in text
        return ns_of_tokens(tokens, text)

    def _durations(self, events: Sequence[RawEvent]) -> IntArray:
        dur_ns = self._times([event.dur for event in events])
        odd = (dur_ns < 0) | (dur_ns > _FAR_NS)
        if bool(odd.any()):
            negative = int(((dur_ns < 0) & (dur_ns > -_FAR_NS)).sum())
            self.faults.add("negative_duration", negative)
            self.faults.add("missing_duration", int(odd.sum()) - negative)
            dur_ns[odd] = 0
        return dur_ns

    def _add_arguments(self, events: Sequence[RawEvent], category: npt.NDArray[np.int32]) -> None:
        """Gather the arguments category by category, so that only keys that a category has are looked for."""
        schema_of_event = self._schemas.numbers(category)
        objects = [event.args for event in events]
        for number in np.flatnonzero(np.bincount(schema_of_event)).tolist():
            rows = np.flatnonzero(schema_of_event == number)
            integers, texts = self._schemas[number].values(_chosen(objects, rows))
            for column, values in integers.items():
                self._add_sparse(column, rows, values)
            for column, raws in texts.items():
                self._add_sparse(column, rows, self._raw_texts.ids(raws))

    def _add_sparse(self, column: str, rows: IntArray, values: IntArray) -> None:
        present: BoolArray = values != ABSENT
        if not present.any():
            return
        if not present.all():
            rows, values = rows[present], values[present]
        self.append_sparse(column, rows, values)

    def append_sparse(self, column: str, rows: IntArray, values: IntArray) -> None:
        """Append to an argument's column; rows count from the batch that is about to be added."""
        parts = self.arguments.setdefault(column, (Parts(np.int32), Parts(np.int64)))
        parts[0].add((rows + self.complete.length).astype(np.int32))
        parts[1].add(values)

    def sparse(self, column: str) -> Sparse:
        """One argument's column, rows ascending."""
        rows, values = (part.join() for part in self.arguments.pop(column))
        order = np.argsort(rows, kind="stable")
        return Sparse(rows[order], values[order])


def _chosen(objects: list[msgspec.Raw], rows: IntArray) -> Sequence[msgspec.Raw]:
    if len(rows) == len(objects):
        return objects
    if len(rows) == 1:
        return [objects[int(rows[0])]]
    chosen: tuple[msgspec.Raw, ...] = itemgetter(*rows.tolist())(objects)
    return chosen


def _plain(args: msgspec.Raw) -> dict[str, Any]:
    """A metadata event's args, decoded; empty where they are no object."""
    try:
        decoded = msgspec.json.decode(args)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}
