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
    for at, number in enumerate(structure.steps.number.tolist()):
        own = timed[structure.work_step[timed] == at]
        if not len(own):
            continue
        first, last = _span(structure, own)
        begin = first if low is None else low
        low = max(begin, last)
        if at in chosen:
            windows.append(_Window(number, begin, low, mine[structure.work_step[mine] == at]))
    return windows


def _measure_window(structure: Structure, timed: IntArray, rank: int | None, device: int, window: _Window) -> GpuTime:
    work = structure.work
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
