"""Time of each training step by phase. In: `Structure`. Out: `StepTime` rows."""

from __future__ import annotations

import numpy as np

from tracetools.attribution.phases import Code
from tracetools.attribution.structure import Structure
from tracetools.intervals import grouped_union_length
from tracetools.results import StepTime
from tracetools.table import IntArray


def measure(structure: Structure, rank: int | None) -> tuple[StepTime, ...]:
    """One row per chosen step: CPU time by phase of what began in it, GPU busy time of what was launched in it."""
    steps = structure.steps
    phase = _cpu_by_phase(structure)
    busy = None
    if len(structure.work):
        busy = grouped_union_length(
            structure.work_step, structure.work.start_ns, structure.work.end_ns, max(1, len(steps))
        )
    chosen = set(structure.step[structure.chosen].tolist())
    return tuple(
        StepTime(
            rank=rank,
            step=number,
            wall_ns=int(steps.end_ns[at] - steps.start_ns[at]),
            forward_ns=int(phase[at, Code.FORWARD]),
            backward_ns=int(phase[at, Code.BACKWARD] + phase[at, Code.ACCUMULATE]),
            recompute_ns=int(phase[at, Code.RECOMPUTE]),
            optimizer_ns=int(phase[at, Code.OPTIMIZER]),
            gpu_busy_ns=None if busy is None else int(busy[at]),
        )
        for at, number in enumerate(steps.number.tolist())
        if at in chosen
    )


def _cpu_by_phase(structure: Structure) -> IntArray:
    """CPU self time by step and phase, ns."""
    rows = structure.tree.order
    rows = rows[structure.step[rows] >= 0]
    total = np.zeros((len(structure.steps), len(Code)), np.int64)
    np.add.at(total, (structure.step[rows], structure.phase[rows]), structure.tree.self_ns[rows])
    return total
