"""Training steps: when each began and what belongs to it. In: `Trace`. Out: `Steps`.

{"cat": "user_annotation", "name": "ProfilerStep#7", "ts": 100.000, "dur": 500.000}
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracetools import trace_file
from tracetools.table import IntArray, Kind, Trace


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps by start. number, start_ns, end_ns: one value per step; all empty where the trace marks no step."""

    number: IntArray
    start_ns: IntArray
    end_ns: IntArray

    def __len__(self) -> int:
        return len(self.number)

    def index_at(self, ts_ns: IntArray) -> IntArray:
        """Position of the step whose range holds each time, -1 for none."""
        if not len(self):
            return np.full(len(ts_ns), -1, np.int64)
        at = np.searchsorted(self.start_ns, ts_ns, side="right") - 1
        inside = (at >= 0) & (ts_ns < self.end_ns[np.maximum(at, 0)])
        return np.where(inside, at, -1)


def find_steps(trace: Trace) -> Steps:
    """Steps that the profiler marked (`ProfilerStep#`), else those our collectors marked, else none.

    A number that occurs twice keeps its first range. A range that runs into the next one ends where that begins.
    """
    on_cpu = np.isin(trace.events.kind, [Kind.ANNOTATION, Kind.CPU_OP])
    numbered = on_cpu & trace.named(lambda name: trace_file.parse_step(name) is not None)
    own = numbered & trace.named(lambda name: name.startswith(trace_file.STEP_RANGE))
    for rows in (np.flatnonzero(numbered & ~own), np.flatnonzero(own)):
        if len(rows):
            return _steps_of(trace, rows)
    nothing = np.zeros(0, np.int64)
    return Steps(nothing, nothing, nothing)


def _steps_of(trace: Trace, rows: IntArray) -> Steps:
    events = trace.events
    rows = rows[np.lexsort((-events.dur_ns[rows], events.ts_ns[rows]))]
    numbers = np.array([trace_file.parse_step(trace.strings[name]) for name in events.name[rows]], np.int64)
    _, first = np.unique(numbers, return_index=True)
    first.sort()
    rows, numbers = rows[first], numbers[first]
    start = events.ts_ns[rows]
    end = start + events.dur_ns[rows]
    end[:-1] = np.minimum(end[:-1], start[1:])
    return Steps(numbers, start, end)
