"""Ranges that the user named. In: `Trace`, `Tree`. Out: which range a moment on a lane lies in.

Annotations are looked up by time on the thread that launched, never by what ran on the GPU meanwhile.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracetools.table import BoolArray, IntArray, Trace
from tracetools.timeline.lookup import last_at_or_before
from tracetools.timeline.tree import Tree, parents_among


def innermost_annotation(
    trace: Trace, tree: Tree, lane: npt.NDArray[np.int32], ts_ns: IntArray, among: BoolArray | None = None
) -> IntArray:
    """Row of the innermost annotation (of `among`, if given) that is open on a lane at a time, -1 for none.

    Annotations are open from their start until just before their end.
    """
    rows = tree.annotations if among is None else tree.annotations[among[tree.annotations]]
    if not len(rows):
        return np.full(len(ts_ns), -1, np.int64)
    at = last_at_or_before(trace.events.lane[rows], tree.start_ns[rows], lane, ts_ns)
    at = _first_open(parents_among(tree.parent, rows), tree.end_ns[rows], at, ts_ns)
    return np.where(at >= 0, rows[at], -1)


def _first_open(parent: IntArray, end_ns: IntArray, at: IntArray, ts_ns: IntArray) -> IntArray:
    """Climb from each position to the first one that ends after the time; ends grow towards the root.

    Long chains are climbed in strides of halving length, which no depth of nesting makes slow.
    """
    at = at.copy()
    strides = [parent]
    while (strides[-1] >= 0).any():
        strides.append(np.where(strides[-1] >= 0, strides[-1][strides[-1]], -1))
    for stride in reversed(strides):
        further = np.where(at >= 0, stride[at], -1)
        closed = (further >= 0) & (end_ns[further] <= ts_ns)
        at[closed] = further[closed]
    return np.where((at >= 0) & (end_ns[at] <= ts_ns), parent[at], at)
