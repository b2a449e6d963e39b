"""Backward nodes by kind, and the forward ops they come from. In: `Structure`. Out: `AutogradLink` rows."""

from __future__ import annotations

import numpy as np

from tracetools.attribution.phases import Code
from tracetools.attribution.structure import Structure
from tracetools.intervals import grouped_union_length
from tracetools.results import AutogradLink
from tracetools.table import BoolArray, IntArray
from tracetools.timeline.autograd import NODE_PREFIX, LinkedBy
from tracetools.timeline.tree import nearest_self_or_ancestor

_WORDS = {LinkedBy.ARROW: "arrow", LinkedBy.SEQUENCE: "sequence", LinkedBy.OPEN: "open"}


def measure(structure: Structure, rank: int | None) -> tuple[AutogradLink, ...]:
    """One row per forward op, backward node and kind of link; time of nodes inside and of recompute is left out."""
    autograd, tree, names = structure.autograd, structure.tree, structure.trace
    nodes = np.flatnonzero(structure.chosen[autograd.node])
    if not len(nodes):
        return ()
    maker = autograd.maker[nodes]
    name = names.events.name.astype(np.int64)
    kinds = np.stack(
        [np.where(maker >= 0, name[maker], -1), name[autograd.node[nodes]], autograd.linked_by[nodes]], axis=1
    )
    kinds, group = np.unique(kinds, axis=0, return_inverse=True)
    group = group.ravel()
    group_of_row = np.full(len(names.events), -1, np.int64)
    group_of_row[autograd.node[nodes]] = group
    holder = nearest_self_or_ancestor(tree.parent, autograd.is_node)
    cpu = _cpu(structure, holder, group_of_row, len(kinds))
    busy = _busy(structure, holder, group_of_row, len(kinds))
    calls = np.bincount(group, minlength=len(kinds))
    rows = [
        AutogradLink(
            rank=rank,
            forward_op=names.strings[forward] if forward >= 0 else None,
            backward_op=names.strings[backward].removeprefix(NODE_PREFIX),
            calls=int(calls[at]),
            linked_by=_WORDS[LinkedBy(linked_by)],
            gpu_busy_ns=None if busy is None else int(busy[at]),
            cpu_ns=int(cpu[at]),
        )
        for at, (forward, backward, linked_by) in enumerate(kinds.tolist())
    ]
    return tuple(sorted(rows, key=lambda row: (row.backward_op, row.forward_op or "", row.linked_by)))


def _in_backward(phase: IntArray) -> BoolArray:
    return np.isin(phase, [Code.BACKWARD, Code.ACCUMULATE])


def _cpu(structure: Structure, holder: IntArray, group_of_row: IntArray, groups: int) -> IntArray:
    rows = structure.tree.order
    rows = rows[(holder[rows] >= 0) & _in_backward(structure.phase[rows].astype(np.int64))]
    group = group_of_row[holder[rows]]
    total = np.zeros(groups, np.int64)
    np.add.at(total, group[group >= 0], structure.tree.self_ns[rows[group >= 0]])
    return total


def _busy(structure: Structure, holder: IntArray, group_of_row: IntArray, groups: int) -> IntArray | None:
    work, owner = structure.work, structure.launches.owner
    if not len(work):
        return None
    node = np.where(owner >= 0, holder[owner], -1)
    inside = (node >= 0) & _in_backward(structure.work_phase.astype(np.int64))
    group = np.where(inside, group_of_row[node], -1)
    return grouped_union_length(group, work.start_ns, work.end_ns, groups)
