"""What each GPU did: busy, compute, exposed communication and copies, idle. In: `Structure`. Out: `GpuTime` rows.

The rank's window runs from its first GPU start to its last GPU end. Steps tile it: a step's window ends with the last
work launched in the step, and begins where the step before ended.
"""

from __future__ import annotations

import numpy as np

from tracetools.attribution.structure import Structure
from tracetools.intervals import clip, subtract, union_length
from tracetools.results import GpuTime
from tracetools.table import BoolArray, IntArray
from tracetools.timeline.gpu_work import Work


def measure(structure: Structure, rank: int | None) -> tuple[GpuTime, ...]:
    """One row per device for the whole trace, then one per step that was chosen; records without a length left out."""
    work = structure.work
    timed = work.end_ns > work.start_ns
    rows = []
    for device in np.unique(work.device[timed]).tolist():
        mine = np.flatnonzero(timed & (work.device == device))
        for step, low, high in [(None, *_span(structure, mine)), *_step_windows(structure, mine)]:
            rows.append(_measure_window(structure, mine, rank, int(device), step, low, high))
    return tuple(rows)


def _span(structure: Structure, mine: IntArray) -> tuple[int, int]:
    return int(structure.work.start_ns[mine].min()), int(structure.work.end_ns[mine].max())


def _step_windows(structure: Structure, mine: IntArray) -> list[tuple[int | None, int, int]]:
    """Step number and window of each step that launched work on this device."""
    windows: list[tuple[int | None, int, int]] = []
    low = None
    chosen = set(structure.work_step[mine][structure.work_chosen[mine]].tolist())
    for at, number in enumerate(structure.steps.number.tolist()):
        own = mine[structure.work_step[mine] == at]
        if not len(own):
            continue
        first, last = _span(structure, own)
        begin = first if low is None else low
        low = max(begin, last)
        if at in chosen:
            windows.append((number, begin, low))
    return windows


def _measure_window(
    structure: Structure, mine: IntArray, rank: int | None, device: int, step: int | None, low: int, high: int
) -> GpuTime:
    work = structure.work
    start, end = clip(work.start_ns[mine], work.end_ns[mine], low, high)
    kind = work.work[mine]
    compute = kind == Work.COMPUTE
    communication = kind == Work.COMMUNICATION
    busy_ns = union_length(start, end)
    inside = end > start
    return GpuTime(
        rank=rank,
        device=device,
        step=step,
        window_ns=high - low,
        busy_ns=busy_ns,
        compute_ns=union_length(start[compute], end[compute]),
        exposed_communication_ns=_outside(start, end, communication, compute),
        exposed_copy_ns=_outside(start, end, kind == Work.COPY, compute | communication),
        idle_ns=high - low - busy_ns,
        communication_ns=union_length(start[communication], end[communication]),
        kernels=int(np.count_nonzero(inside)),
        kernel_ns=int((end - start).sum()),
    )


def _outside(start: IntArray, end: IntArray, these: BoolArray, others: BoolArray) -> int:
    first, last = subtract(start[these], end[these], start[others], end[others])
    return int((last - first).sum())
