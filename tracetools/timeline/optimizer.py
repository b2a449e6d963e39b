"""Ranges that torch writes around an optimizer's step. In: `Trace`, `Tree`. Out: their rows, and time of their own.

    {"cat": "user_annotation", "name": "Optimizer.step#AdamW.step", "ts": 700.000, "dur": 90.000}
    {"cat": "cpu_op", "name": "aten::_foreach_add_", "ts": 720.000, "dur": 30.000}

Much of a step is Python between its ops, which nothing but this range shows.
"""

from __future__ import annotations

import numpy as np

from tracetools.intervals import covered_before, merge
from tracetools.table import BoolArray, IntArray, Kind, Trace
from tracetools.timeline.tree import Tree, parents_among

_PREFIX = "Optimizer."


def is_optimizer_range(trace: Trace) -> BoolArray:
    """Rows that are such ranges, of `step` and of `zero_grad`."""
    annotations: BoolArray = np.equal(trace.events.kind, Kind.ANNOTATION)
    return annotations & trace.named(lambda name: name.startswith(_PREFIX))


def optimizer_ranges(trace: Trace, tree: Tree) -> tuple[IntArray, IntArray]:
    """Outermost ranges, and of each the time in which no span of its thread is open, ns."""
    ranges = tree.annotations[is_optimizer_range(trace)[tree.annotations]]
    ranges = ranges[parents_among(tree.parent, ranges) < 0]
    own_ns = tree.end_ns[ranges] - tree.start_ns[ranges]
    if not len(ranges):
        return ranges, own_ns
    lane = trace.events.lane
    roots = tree.order[tree.parent[tree.order] < 0]
    for each in np.unique(lane[ranges]).tolist():
        mine = np.flatnonzero(lane[ranges] == each)
        spans = roots[lane[roots] == each]
        start, end = merge(tree.start_ns[spans], tree.end_ns[spans])
        first, last = tree.start_ns[ranges[mine]], tree.end_ns[ranges[mine]]
        own_ns[mine] -= covered_before(start, end, last) - covered_before(start, end, first)
    return ranges, own_ns
