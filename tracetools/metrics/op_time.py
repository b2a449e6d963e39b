"""Time of each op by phase. In: `Structure`. Out: `OpTime` rows, by name and phase.

GPU work that was launched outside every op, or by no known launch, is in rows named `(unattributed)`.

An op that calls itself (a dispatch mode shows each op twice) counts once: only its outermost calls have a length.
"""

from __future__ import annotations

import numpy as np

from tracetools import trace_file
from tracetools.attribution.phases import PHASE_OF, Code
from tracetools.attribution.structure import Structure
from tracetools.flops.count import FlopCount
from tracetools.intervals import union_length
from tracetools.metrics.flop_totals import Counts
from tracetools.results import UNATTRIBUTED, OpTime
from tracetools.table import BoolArray, IntArray, Kind
from tracetools.timeline.subtrees import Subtrees, SubtreeWork
from tracetools.timeline.tree import module_range_rows, nearest_self_or_ancestor, parents_among


def measure(structure: Structure, count: FlopCount, counts: Counts, rank: int | None) -> tuple[OpTime, ...]:
    """One row per op name and phase, children included but for self time; GPU figures None without GPU records."""
    is_op = _op_rows(structure)
    ops = structure.tree.order[is_op[structure.tree.order]]
    lone = _outside_ops(structure, is_op, rank, 0 if count.known else None)
    if not len(ops):
        return lone
    keys, group = np.unique(_name_and_phase(structure)[ops], return_inverse=True)
    subtrees = Subtrees.of_depth_first(parents_among(structure.tree.parent, ops))
    outermost = subtrees.outermost(group)
    chosen = structure.chosen[ops]
    tops = np.flatnonzero(outermost & chosen)
    calls = np.bincount(group[tops], minlength=len(keys))
    cpu, self_cpu = np.zeros((2, len(keys)), np.int64)
    np.add.at(cpu, group[tops], (structure.tree.end_ns - structure.tree.start_ns)[ops[tops]])
    np.add.at(self_cpu, group[chosen], structure.tree.self_ns[ops[chosen]])
    flops = _flops(structure, ops, subtrees, group[tops], tops, count, counts) if count.known else None
    busy = kernel_ns = None
    if len(structure.work):
        busy, kernel_ns = _gpu_figures(structure, ops, subtrees, group, np.flatnonzero(outermost), len(keys))
    names = structure.trace.strings
    result = [
        OpTime(
            rank=rank,
            name=names[int(keys[at]) // len(Code)],
            phase=PHASE_OF[Code(int(keys[at]) % len(Code))],
            calls=int(calls[at]),
            cpu_ns=int(cpu[at]),
            self_cpu_ns=int(self_cpu[at]),
            gpu_busy_ns=None if busy is None else int(busy[at]),
            kernel_ns=None if kernel_ns is None else int(kernel_ns[at]),
            flops=None if flops is None else int(flops[at]),
        )
        for at in np.unique(group[chosen]).tolist()
    ]
    return tuple(sorted([*result, *lone], key=lambda row: (row.name, row.phase)))


def _flops(
    structure: Structure,
    ops: IntArray,
    subtrees: Subtrees,
    group: IntArray,
    tops: IntArray,
    count: FlopCount,
    counts: Counts,
) -> IntArray:
    """FLOPs per group, of all that counts below its outermost calls. group: of each of `tops`."""
    position = np.zeros(len(structure.trace.events), np.int64)
    position[ops] = np.arange(len(ops))
    total = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    np.add.at(total, group, subtrees.sums(position[count.row], counts.flops)[tops])
    return total


def _outside_ops(structure: Structure, is_op: BoolArray, rank: int | None, flops: int | None) -> tuple[OpTime, ...]:
    """One `(unattributed)` row per phase for GPU work without an op around its launch."""
    work, owner = structure.work, structure.launches.owner
    holder = nearest_self_or_ancestor(structure.tree.parent, is_op)
    lone = structure.work_chosen & ((owner < 0) | (holder[owner] < 0))
    phases = {code: PHASE_OF[Code(code)] for code in np.unique(structure.work_phase[lone]).tolist()}
    rows = []
    for phase in sorted(set(phases.values())):
        codes = [code for code, of_code in phases.items() if of_code is phase]
        mine = np.flatnonzero(lone & np.isin(structure.work_phase, codes))
        start, end = work.start_ns[mine], work.end_ns[mine]
        rows.append(
            OpTime(
                rank=rank,
                name=UNATTRIBUTED,
                phase=phase,
                calls=0,
                cpu_ns=0,
                self_cpu_ns=0,
                gpu_busy_ns=union_length(start, end),
                kernel_ns=int((end - start).sum()),
                flops=flops,
            )
        )
    return tuple(rows)


def _op_rows(structure: Structure) -> BoolArray:
    """Dispatcher calls, without the ranges that our collectors wrote."""
    own = structure.trace.named(lambda name: name.startswith((trace_file.MODULE_RANGE, trace_file.STEP_RANGE)))
    ops: BoolArray = np.equal(structure.trace.events.kind, Kind.CPU_OP)
    return ops & structure.tree.in_tree & ~own & ~module_range_rows(structure.trace)


def _name_and_phase(structure: Structure) -> IntArray:
    """One number for name and phase; gradient accumulation is backward here."""
    phase = structure.phase.astype(np.int64)
    phase[phase == Code.ACCUMULATE] = Code.BACKWARD
    return structure.trace.events.name.astype(np.int64) * len(Code) + phase


def _gpu_figures(
    structure: Structure, ops: IntArray, subtrees: Subtrees, group: IntArray, outermost: IntArray, groups: int
) -> tuple[IntArray, IntArray]:
    """GPU busy and kernel time per group: work counts for every op around its launch, once per group."""
    work = structure.work
    launched = np.flatnonzero(structure.work_chosen & (structure.launches.owner >= 0))
    node = _node_around(structure, ops)[structure.launches.owner[launched]]
    piece, node = launched[node >= 0], node[node >= 0]
    below = SubtreeWork.of(subtrees, node, work.start_ns[piece], work.end_ns[piece])
    return below.union(group, outermost, groups), below.total(group, outermost, groups)


def _node_around(structure: Structure, ops: IntArray) -> IntArray:
    """Per row the position in `ops` of the innermost op that holds it (or that it is), -1 for none."""
    position = np.full(len(structure.trace.events), -1, np.int64)
    position[ops] = np.arange(len(ops))
    holder = nearest_self_or_ancestor(structure.tree.parent, position >= 0)
    return np.where(holder >= 0, position[holder], -1)
