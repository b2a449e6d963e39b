"""Time of each op by phase. In: `Structure`. Out: `OpTime` rows, by name and phase.

GPU work that was launched outside every op, or by no known launch, is in rows named `(unattributed)`.

An op that calls itself (a dispatch mode shows each op twice) counts once: only its outermost calls have a length.
"""

from __future__ import annotations

import numpy as np

from tracetools import trace_file
from tracetools.attribution.phases import PHASE_OF, Code
from tracetools.attribution.structure import Structure
from tracetools.intervals import grouped_union_length, union_length
from tracetools.results import UNATTRIBUTED, OpTime
from tracetools.table import BoolArray, IntArray, Kind
from tracetools.timeline.tree import module_range_rows, nearest_ancestor, nearest_self_or_ancestor


def measure(structure: Structure, rank: int | None) -> tuple[OpTime, ...]:
    """One row per op name and phase, children included but for self time; GPU figures None without GPU records."""
    is_op = _op_rows(structure)
    up = nearest_ancestor(structure.tree.parent, is_op)
    key = _name_and_phase(structure)
    outermost = _outermost(is_op, up, key)
    rows = np.flatnonzero(is_op & structure.chosen)
    lone = _outside_ops(structure, is_op, rank)
    if not len(rows):
        return lone
    keys, group = np.unique(key[rows], return_inverse=True)
    tops = outermost[rows]
    length = structure.tree.end_ns[rows] - structure.tree.start_ns[rows]
    calls = np.bincount(group[tops], minlength=len(keys))
    cpu, self_cpu = np.zeros((2, len(keys)), np.int64)
    np.add.at(cpu, group[tops], length[tops])
    np.add.at(self_cpu, group, structure.tree.self_ns[rows])
    busy, kernel_ns = _gpu_figures(structure, is_op, up, key, outermost, keys)
    names = structure.trace.strings
    result = [
        OpTime(
            rank=rank,
            name=names[int(each) // len(Code)],
            phase=PHASE_OF[Code(int(each) % len(Code))],
            calls=int(calls[at]),
            cpu_ns=int(cpu[at]),
            self_cpu_ns=int(self_cpu[at]),
            gpu_busy_ns=None if busy is None else int(busy[at]),
            kernel_ns=None if kernel_ns is None else int(kernel_ns[at]),
        )
        for at, each in enumerate(keys)
    ]
    return tuple(sorted([*result, *lone], key=lambda row: (row.name, row.phase)))


def _outside_ops(structure: Structure, is_op: BoolArray, rank: int | None) -> tuple[OpTime, ...]:
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


def _outermost(is_op: BoolArray, up: IntArray, key: IntArray) -> BoolArray:
    """Ops without an op of the same name and phase around them."""
    outermost = is_op.copy()
    rows = np.flatnonzero(is_op & (up >= 0))
    above = up[rows]
    while len(rows):
        outermost[rows[key[above] == key[rows]]] = False
        above = up[above]
        goes_on = above >= 0
        rows, above = rows[goes_on], above[goes_on]
    return outermost


def _gpu_figures(
    structure: Structure, is_op: BoolArray, up: IntArray, key: IntArray, outermost: BoolArray, keys: IntArray
) -> tuple[IntArray | None, IntArray | None]:
    """GPU busy and kernel time per key: each piece of work counts for every op around its launch, once per key."""
    work = structure.work
    if not len(work):
        return None, None
    group, piece = _work_by_op(structure, is_op, up, key, outermost, keys)
    start, end = work.start_ns[piece], work.end_ns[piece]
    kernel_ns = np.zeros(len(keys), np.int64)
    np.add.at(kernel_ns, group, end - start)
    return grouped_union_length(group, start, end, len(keys)), kernel_ns


def _work_by_op(
    structure: Structure, is_op: BoolArray, up: IntArray, key: IntArray, outermost: BoolArray, keys: IntArray
) -> tuple[IntArray, IntArray]:
    """Pairs of key and piece of work, walking up from the op that launched it."""
    piece = np.flatnonzero(structure.work_chosen & (structure.launches.owner >= 0))
    op = nearest_self_or_ancestor(structure.tree.parent, is_op)[structure.launches.owner[piece]]
    groups, pieces = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    while len(piece):
        inside = op >= 0
        piece, op = piece[inside], op[inside]
        counts = outermost[op]
        groups.append(key[op[counts]])
        pieces.append(piece[counts])
        op = up[op]
    wanted, pieces_of = np.concatenate(groups), np.concatenate(pieces)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    chosen = keys[at] == wanted
    return at[chosen], pieces_of[chosen]
