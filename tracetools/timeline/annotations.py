"""Ranges that the user named. In: `Trace`, `Tree`. Out: which range a moment on a lane lies in.

Annotations are looked up by time on the thread that launched, never by what ran on the GPU meanwhile.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracetools.table import BoolArray, IntArray, Kind, Trace
from tracetools.timeline.lookup import last_at_or_before
from tracetools.timeline.tree import Tree, nearest_ancestor


def annotation_rows(trace: Trace, tree: Tree) -> BoolArray:
    """Rows that are annotations of the user or the profiler; module ranges of our collectors are not."""
    return np.equal(trace.events.kind, Kind.ANNOTATION) & ~tree.in_tree


def innermost_annotation(
    trace: Trace, tree: Tree, lane: npt.NDArray[np.int32], ts_ns: IntArray, among: BoolArray
) -> IntArray:
    """Row of the innermost annotation of `among` that is open on a lane at a time, -1 for none.

    Annotations are open from their start until just before their end.
    """
    rows = np.flatnonzero(among & annotation_rows(trace, tree))
    if not len(rows):
        return np.full(len(ts_ns), -1, np.int64)
    depth_order = np.lexsort((-tree.end_ns[rows], tree.start_ns[rows]))
    rows = rows[depth_order]
    at = last_at_or_before(trace.events.lane[rows], tree.start_ns[rows], lane, ts_ns)
    found = np.where(at >= 0, rows[at], -1)
    wanted = np.zeros(len(trace.events), bool)
    wanted[rows] = True
    outer = nearest_ancestor(tree.parent, wanted)
    while True:
        closed = np.flatnonzero((found >= 0) & (tree.end_ns[found] <= ts_ns))
        if not len(closed):
            return found
        found[closed] = outer[found[closed]]
