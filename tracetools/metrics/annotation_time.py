"""Time inside named ranges. In: `Structure`. Out: `AnnotationTime` rows, by name."""

from __future__ import annotations

import numpy as np

from tracetools.attribution.structure import Structure
from tracetools.intervals import union_length
from tracetools.results import AnnotationTime
from tracetools.table import IntArray
from tracetools.timeline.annotations import innermost_annotation
from tracetools.timeline.subtrees import Subtrees, SubtreeWork
from tracetools.timeline.tree import parents_among


def measure(structure: Structure, rank: int | None) -> tuple[AnnotationTime, ...]:
    """One row per name; a range inside one of the same name adds nothing. GPU figures None without GPU records.

    Transfers of gloo overlap by their nature: each is a call, their time is the union, and they launch nothing.
    """
    return tuple(sorted([*_ranges(structure, rank), *_transfers(structure, rank)], key=lambda row: row.name))


def _ranges(structure: Structure, rank: int | None) -> list[AnnotationTime]:
    trace, tree = structure.trace, structure.tree
    ranges = tree.annotations
    if not len(ranges):
        return []
    names, group = np.unique(trace.events.name[ranges], return_inverse=True)
    subtrees = Subtrees.of_depth_first(parents_among(tree.parent, ranges))
    outermost = subtrees.outermost(group)
    counted = np.flatnonzero(outermost & structure.chosen[ranges])
    cpu = np.zeros(len(names), np.int64)
    np.add.at(cpu, group[counted], trace.events.dur_ns[ranges[counted]])
    calls = np.bincount(group[counted], minlength=len(names))
    busy = kernel_ns = None
    if len(structure.work):
        busy, kernel_ns = _gpu_figures(structure, subtrees, group, np.flatnonzero(outermost), len(names))
    shown = np.unique(group[structure.chosen[ranges]])
    return [
        AnnotationTime(
            rank=rank,
            name=trace.strings[int(names[at])],
            calls=int(calls[at]),
            cpu_ns=int(cpu[at]),
            gpu_busy_ns=None if busy is None else int(busy[at]),
            kernel_ns=None if kernel_ns is None else int(kernel_ns[at]),
        )
        for at in shown.tolist()
    ]


def _transfers(structure: Structure, rank: int | None) -> list[AnnotationTime]:
    events = structure.trace.events
    rows = structure.tree.transfers[structure.chosen[structure.tree.transfers]]
    launched = 0 if len(structure.work) else None
    found = []
    for name in np.unique(events.name[rows]).tolist():
        mine = rows[events.name[rows] == name]
        cpu_ns = union_length(events.ts_ns[mine], events.ts_ns[mine] + events.dur_ns[mine])
        found.append(AnnotationTime(rank, structure.trace.strings[name], len(mine), cpu_ns, launched, launched))
    return found


def _gpu_figures(
    structure: Structure, subtrees: Subtrees, group: IntArray, outermost: IntArray, groups: int
) -> tuple[IntArray, IntArray]:
    """GPU busy and kernel time per name, of what was launched while a range of that name was open."""
    work, owner = structure.work, structure.launches.owner
    events, ranges = structure.trace.events, structure.tree.annotations
    piece = np.flatnonzero(structure.work_chosen & (owner >= 0))
    by = owner[piece]
    within = innermost_annotation(structure.trace, structure.tree, events.lane[by], events.ts_ns[by])
    piece, within = piece[within >= 0], within[within >= 0]
    node = np.zeros(len(events), np.int64)
    node[ranges] = np.arange(len(ranges))
    launched = SubtreeWork.of(subtrees, node[within], work.start_ns[piece], work.end_ns[piece])
    return launched.union(group, outermost, groups), launched.total(group, outermost, groups)
