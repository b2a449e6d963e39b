"""What each GPU did: busy, compute, exposed communication and copies, idle. In: `Structure`. Out: `GpuTime` rows.

The rank's window runs from its first GPU start to its last GPU end. Steps tile it: a step's window ends with the last
work launched in the step, and begins where the step before ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracetools.attribution.structure import Structure
from tracetools.intervals import covered_before, merge, subtract
from tracetools.results import GpuTime
from tracetools.table import BoolArray, IntArray
from tracetools.timeline.gpu_work import Work

_WHOLE = -1


@dataclass(frozen=True, slots=True)
class _Windows:
    """Stretches of one device's time. step: position of the step, `_WHOLE` for the whole trace.

    kernels, kernel_ns: count and length of the work that belongs to each.
    """

    step: IntArray
    low_ns: IntArray
    high_ns: IntArray
    kernels: IntArray
    kernel_ns: IntArray

    def inside(self, merged: tuple[IntArray, IntArray]) -> list[int]:
        """How much of disjoint intervals lies in each window, ns."""
        values: list[int] = (covered_before(*merged, self.high_ns) - covered_before(*merged, self.low_ns)).tolist()
        return values


def measure(structure: Structure, rank: int | None) -> tuple[GpuTime, ...]:
    """One row per device for the whole trace, then one per chosen step; records without a length widen none."""
    work = structure.work
    by_device = np.argsort(work.device, kind="stable")
    borders = np.flatnonzero(np.diff(work.device[by_device])) + 1
    rows: list[GpuTime] = []
    for mine in np.split(by_device, borders):
        if len(mine):
            timed = mine[work.end_ns[mine] > work.start_ns[mine]]
            rows.extend(_measure_device(structure, rank, mine, timed if len(timed) else mine[:1]))
    return tuple(rows)


def _measure_device(structure: Structure, rank: int | None, mine: IntArray, timed: IntArray) -> list[GpuTime]:
    work = structure.work
    windows = _windows(structure, mine, timed)
    start, end, kind = work.start_ns[timed], work.end_ns[timed], work.work[timed]
    compute, communication = kind == Work.COMPUTE, kind == Work.COMMUNICATION
    busy = windows.inside(merge(start, end))
    in_compute = windows.inside(merge(start[compute], end[compute]))
    in_communication = windows.inside(merge(start[communication], end[communication]))
    exposed_communication = windows.inside(_outside(start, end, communication, compute))
    exposed_copy = windows.inside(_outside(start, end, kind == Work.COPY, compute | communication))
    length = (windows.high_ns - windows.low_ns).tolist()
    return [
        GpuTime(
            rank=rank,
            device=int(work.device[mine[0]]),
            step=None if step == _WHOLE else int(structure.steps.number[step]),
            window_ns=length[at],
            busy_ns=busy[at],
            compute_ns=in_compute[at],
            exposed_communication_ns=exposed_communication[at],
            exposed_copy_ns=exposed_copy[at],
            idle_ns=length[at] - busy[at],
            communication_ns=in_communication[at],
            kernels=int(windows.kernels[at]),
            kernel_ns=int(windows.kernel_ns[at]),
        )
        for at, step in enumerate(windows.step.tolist())
    ]


def _windows(structure: Structure, mine: IntArray, timed: IntArray) -> _Windows:
    """The window of the whole trace, then those of the chosen steps that launched timed work on this device."""
    work, work_step = structure.work, structure.work_step
    steps, group = np.unique(work_step[timed], return_inverse=True)
    first = np.full(len(steps), np.iinfo(np.int64).max)
    last = np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(first, group, work.start_ns[timed])
    np.maximum.at(last, group, work.end_ns[timed])
    in_step = steps >= 0
    steps, first, last = steps[in_step], first[in_step], last[in_step]
    high = np.maximum.accumulate(last)
    low = np.concatenate([first[:1], high[:-1]])
    high = np.maximum(low, high)
    shown = np.isin(steps, work_step[mine[structure.work_chosen[mine]]])
    kernels, kernel_ns = np.zeros((2, len(steps)), np.int64)
    own = mine[np.isin(work_step[mine], steps)]
    at = np.searchsorted(steps, work_step[own])
    np.add.at(kernels, at, 1)
    np.add.at(kernel_ns, at, work.end_ns[own] - work.start_ns[own])
    return _Windows(
        step=np.append(_WHOLE, steps[shown]),
        low_ns=np.append(work.start_ns[timed].min(), low[shown]),
        high_ns=np.append(work.end_ns[timed].max(), high[shown]),
        kernels=np.append(len(mine), kernels[shown]),
        kernel_ns=np.append((work.end_ns[mine] - work.start_ns[mine]).sum(), kernel_ns[shown]),
    )


def _outside(start: IntArray, end: IntArray, these: BoolArray, others: BoolArray) -> tuple[IntArray, IntArray]:
    return subtract(start[these], end[these], start[others], end[others])
