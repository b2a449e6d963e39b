"""Time of each training step by phase. In: `Structure`. Out: `StepTime` rows."""

from __future__ import annotations

import numpy as np

from tracetools.attribution.phases import Code
from tracetools.attribution.structure import Structure
from tracetools.intervals import grouped_union_length
from tracetools.results import StepTime
from tracetools.table import IntArray
from tracetools.timeline.optimizer import optimizer_ranges


def measure(structure: Structure, rank: int | None) -> tuple[StepTime, ...]:
    """One row per chosen step: CPU time by phase of what began in it, GPU busy time of what was launched in it.

    Where the trace marks no step, one row with step None holds the whole recording.
    """
    if not len(structure.steps):
        return _whole_recording(structure, rank)
    chosen = set(structure.step[structure.chosen].tolist())
    cpu = _cpu_by_phase(structure, structure.step, len(structure.steps))
    busy = _busy(structure, structure.work_step, len(structure.steps))
    wall = structure.steps.end_ns - structure.steps.start_ns
    return tuple(
        _row(rank, number, int(wall[at]), cpu[at], None if busy is None else int(busy[at]))
        for at, number in enumerate(structure.steps.number.tolist())
        if at in chosen
    )


def _whole_recording(structure: Structure, rank: int | None) -> tuple[StepTime, ...]:
    events = structure.trace.events
    if not len(events):
        return ()
    wall = int((events.ts_ns + events.dur_ns).max() - events.ts_ns.min())
    cpu = _cpu_by_phase(structure, np.zeros(len(events), np.int64), 1)
    busy = _busy(structure, np.zeros(len(structure.work), np.int64), 1)
    return (_row(rank, None, wall, cpu[0], None if busy is None else int(busy[0])),)


def _row(rank: int | None, step: int | None, wall_ns: int, cpu: IntArray, gpu_busy_ns: int | None) -> StepTime:
    return StepTime(
        rank=rank,
        step=step,
        wall_ns=wall_ns,
        forward_ns=int(cpu[Code.FORWARD]),
        backward_ns=int(cpu[Code.BACKWARD] + cpu[Code.ACCUMULATE]),
        recompute_ns=int(cpu[Code.RECOMPUTE]),
        optimizer_ns=int(cpu[Code.OPTIMIZER]),
        gpu_busy_ns=gpu_busy_ns,
    )


def _cpu_by_phase(structure: Structure, step: IntArray, steps: int) -> IntArray:
    """CPU self time by step and phase, ns; shape (steps, phases)."""
    rows = structure.tree.order
    rows = rows[step[rows] >= 0]
    total = np.zeros((steps, len(Code)), np.int64)
    np.add.at(total, (step[rows], structure.phase[rows]), structure.tree.self_ns[rows])
    ranges, own_ns = optimizer_ranges(structure.trace, structure.tree)
    held = step[ranges] >= 0
    np.add.at(total[:, Code.OPTIMIZER], step[ranges[held]], own_ns[held])
    return total


def _busy(structure: Structure, step: IntArray, steps: int) -> IntArray | None:
    work = structure.work
    return grouped_union_length(step, work.start_ns, work.end_ns, steps) if len(work) else None
