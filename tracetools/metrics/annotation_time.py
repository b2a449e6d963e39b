"""Time inside named ranges. In: `Structure`. Out: `AnnotationTime` rows, by name."""

from __future__ import annotations

import numpy as np

from tracetools.attribution.structure import Structure
from tracetools.intervals import grouped_union_length
from tracetools.results import AnnotationTime
from tracetools.table import BoolArray, IdArray, IntArray
from tracetools.timeline.annotations import annotation_rows, innermost_annotation
from tracetools.timeline.tree import nearest_ancestor


def measure(structure: Structure, rank: int | None) -> tuple[AnnotationTime, ...]:
    """One row per name; a range inside one of the same name adds nothing. GPU figures None without GPU records."""
    trace, tree = structure.trace, structure.tree
    is_range = annotation_rows(trace, tree)
    rows = np.flatnonzero(is_range & structure.chosen)
    if not len(rows):
        return ()
    names, group = np.unique(trace.events.name[rows], return_inverse=True)
    up = nearest_ancestor(tree.parent, is_range)
    outermost = _without_same_name_around(trace.events.name, rows, up)
    cpu = np.zeros(len(names), np.int64)
    np.add.at(cpu, group[outermost], trace.events.dur_ns[rows[outermost]])
    calls = np.bincount(group[outermost], minlength=len(names))
    busy, kernel_ns = _gpu_figures(structure, is_range, up, names)
    result = [
        AnnotationTime(
            rank=rank,
            name=trace.strings[int(name)],
            calls=int(calls[at]),
            cpu_ns=int(cpu[at]),
            gpu_busy_ns=None if busy is None else int(busy[at]),
            kernel_ns=None if kernel_ns is None else int(kernel_ns[at]),
        )
        for at, name in enumerate(names)
    ]
    return tuple(sorted(result, key=lambda row: row.name))


def _without_same_name_around(name: IdArray, rows: IntArray, up: IntArray) -> BoolArray:
    outermost = np.ones(len(rows), bool)
    above = up[rows]
    while (above >= 0).any():
        outermost &= (above < 0) | (name[above] != name[rows])
        above = np.where(above >= 0, up[above], -1)
    return outermost


def _gpu_figures(
    structure: Structure, is_range: BoolArray, up: IntArray, names: IdArray
) -> tuple[IntArray | None, IntArray | None]:
    work, owner = structure.work, structure.launches.owner
    if not len(work):
        return None, None
    events = structure.trace.events
    piece = np.flatnonzero(structure.work_chosen & (owner >= 0))
    lane, launched = events.lane[owner[piece]], events.ts_ns[owner[piece]]
    within = innermost_annotation(structure.trace, structure.tree, lane, launched, among=is_range)
    pairs = [np.zeros((0, 2), np.int64)]
    while len(piece):
        inside = within >= 0
        piece, within = piece[inside], within[inside]
        pairs.append(np.stack([events.name[within].astype(np.int64), piece], axis=1))
        within = up[within]
    # Nested ranges of one name hold the same work twice.
    name, piece = np.unique(np.concatenate(pairs), axis=0).T
    known = np.isin(name, names)
    group, piece = np.searchsorted(names, name[known]), piece[known]
    kernel_ns = np.zeros(len(names), np.int64)
    np.add.at(kernel_ns, group, work.end_ns[piece] - work.start_ns[piece])
    return grouped_union_length(group, work.start_ns[piece], work.end_ns[piece], len(names)), kernel_ns
