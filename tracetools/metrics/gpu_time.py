"""What each GPU did: busy, compute, exposed communication and copies, idle. In: `Structure`. Out: `GpuTime` rows.

The rank's window runs from its first GPU start to its last GPU end. Steps tile it: a step's window ends with the last
work launched in the step, and begins where the step before ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracetools.attribution.structure import Structure
from tracetools.intervals import clip, subtract, union_length
from tracetools.results import GpuTime
from tracetools.table import BoolArray, IntArray
from tracetools.timeline.gpu_work import Work


@dataclass(frozen=True, slots=True)
class _Window:
    """A stretch of one device's time, and the positions of the work that belongs to it."""

    step: int | None
    low_ns: int
    high_ns: int
    own: IntArray


def measure(structure: Structure, rank: int | None) -> tuple[GpuTime, ...]:
    """One row per device for the whole trace, then one per chosen step; records without a length open no window."""
    work = structure.work
    timed = work.end_ns > work.start_ns
    rows = []
    for device in np.unique(work.device[timed]).tolist():
        mine = np.flatnonzero(work.device == device)
        timed_here = mine[timed[mine]]
        whole = _Window(None, *_span(structure, timed_here), mine)
        for window in [whole, *_step_windows(structure, mine, timed_here)]:
            rows.append(_measure_window(structure, timed_here, rank, int(device), window))
    return tuple(rows)


def _span(structure: Structure, mine: IntArray) -> tuple[int, int]:
    return int(structure.work.start_ns[mine].min()), int(structure.work.end_ns[mine].max())


def _step_windows(structure: Structure, mine: IntArray, timed: IntArray) -> list[_Window]:
    """The window of each chosen step that launched timed work on this device."""
    windows: list[_Window] = []
    low = None
    chosen = set(structure.work_step[mine][structure.work_chosen[mine]].tolist())
    own_of, timed_of = _by_step(structure, mine), _by_step(structure, timed)
    for at in sorted(timed_of.keys() - {-1}):
        first, last = _span(structure, timed_of[at])
        begin = first if low is None else low
        low = max(begin, last)
        if at in chosen:
            windows.append(_Window(int(structure.steps.number[at]), begin, low, own_of[at]))
    return windows


def _by_step(structure: Structure, mine: IntArray) -> dict[int, IntArray]:
    """Positions of the work that each step launched."""
    order = mine[np.argsort(structure.work_step[mine], kind="stable")]
    steps, first = np.unique(structure.work_step[order], return_index=True)
    return dict(zip(steps.tolist(), np.split(order, first[1:]), strict=True)) if len(order) else {}


def _inside(structure: Structure, timed: IntArray, window: _Window) -> IntArray:
    """The stretch of timed work (sorted by start) that can reach into a window."""
    reach = np.maximum.accumulate(structure.work.end_ns[timed])
    first = np.searchsorted(reach, window.low_ns, side="right")
    last = np.searchsorted(structure.work.start_ns[timed], window.high_ns, side="left")
    return timed[first:last]


def _measure_window(structure: Structure, timed: IntArray, rank: int | None, device: int, window: _Window) -> GpuTime:
    work = structure.work
    timed = _inside(structure, timed, window)
    start, end = clip(work.start_ns[timed], work.end_ns[timed], window.low_ns, window.high_ns)
    kind = work.work[timed]
    compute = kind == Work.COMPUTE
    communication = kind == Work.COMMUNICATION
    busy_ns = union_length(start, end)
    return GpuTime(
        rank=rank,
        device=device,
        step=window.step,
        window_ns=window.high_ns - window.low_ns,
        busy_ns=busy_ns,
        compute_ns=union_length(start[compute], end[compute]),
        exposed_communication_ns=_outside(start, end, communication, compute),
        exposed_copy_ns=_outside(start, end, kind == Work.COPY, compute | communication),
        idle_ns=window.high_ns - window.low_ns - busy_ns,
        communication_ns=union_length(start[communication], end[communication]),
        kernels=len(window.own),
        kernel_ns=int((work.end_ns[window.own] - work.start_ns[window.own]).sum()),
    )


def _outside(start: IntArray, end: IntArray, these: BoolArray, others: BoolArray) -> int:
    first, last = subtract(start[these], end[these], start[others], end[others])
    return int((last - first).sum())
