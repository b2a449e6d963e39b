"""The grown columns → a `Trace`. In: `TraceColumns` and what the top level says. Out: arrays, times made absolute."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tracetools.ingest.columns import PhaseColumns, TraceColumns
from tracetools.table import KIND_OF_CATEGORY, Events, Flows, IdArray, IntArray, Kind, Marks

_CATEGORY_OF_PID: Final = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}


def assemble_events(columns: TraceColumns, base_ns: int) -> tuple[Events, int]:
    """The complete events, and the resolution of their times in ns."""
    parts = columns.complete.parts
    ts_ns: IntArray = parts["ts_ns"].join()
    dur_ns: IntArray = parts["dur_ns"].join()
    lane: IdArray = parts["lane"].join()
    category = _categories_by_pid(columns, parts["category"].join(), lane)
    resolution_ns = 1 if columns.has_fractions or not len(ts_ns) else 1000
    ts_ns += base_ns
    events = Events(
        ts_ns=ts_ns,
        dur_ns=dur_ns,
        name=parts["name"].join(),
        category=category,
        lane=lane,
        kind=_kinds(columns, category),
        arguments={column: columns.sparse(column) for column in sorted(columns.arguments)},
    )
    return events, resolution_ns


def _categories_by_pid(columns: TraceColumns, category: IdArray, lane: IdArray) -> IdArray:
    """The old list form has no categories; there the process tells CPU from GPU."""
    if "" not in columns.strings:
        return category
    without = category == columns.strings[""]
    if not without.any():
        return category
    numbers = [_CATEGORY_OF_PID.get(str(each.pid)) for each in columns.lanes.lanes()]
    by_lane = np.array([columns.strings[text or ""] for text in numbers], np.int32)
    return np.where(without, by_lane[lane], category)


def _kinds(columns: TraceColumns, category: IdArray) -> npt.NDArray[np.uint8]:
    kinds = np.full(len(columns.strings) + 1, Kind.OTHER, np.uint8)
    for text, kind in KIND_OF_CATEGORY.items():
        if text in columns.strings:
            kinds[columns.strings[text]] = kind
    return kinds[category]


def assemble_marks(columns: PhaseColumns, base_ns: int) -> Marks:
    """Instants or counters."""
    parts = columns.parts
    return Marks(
        ts_ns=parts["ts_ns"].join() + base_ns,
        name=parts["name"].join(),
        category=parts["category"].join(),
        lane=parts["lane"].join(),
        args=parts["args"].join(),
    )


def assemble_flows(columns: PhaseColumns, base_ns: int) -> Flows:
    """Ends of arrows."""
    parts = columns.parts
    return Flows(
        ts_ns=parts["ts_ns"].join() + base_ns,
        lane=parts["lane"].join(),
        category=parts["category"].join(),
        flow=parts["flow"].join(),
        is_start=parts["is_start"].join(),
    )
