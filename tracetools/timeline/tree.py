"""Nesting: which span lies inside which, lane by lane. In: `Trace`. Out: `Tree`, one value per event row.

Spans of one lane nest by time. Real traces cross: ends are rounded, and records of two clocks bleed into each other:

    {"cat": "cpu_op", "name": "aten::empty_strided", "ts": 10.000, "dur": 10.000}
    {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 19.800, "dur": 8.200}

Crossing spans are clipped and counted, never dropped; `nesting` says which part gives way.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from tracetools import trace_file
from tracetools.table import ABSENT, BoolArray, Events, IntArray, Kind, Trace
from tracetools.timeline.nesting import Nesting, nest

# Which of two spans with the same start and end is the outer one.
_OUTER_FIRST = {Kind.ANNOTATION: 1, Kind.PYTHON: 0, Kind.CPU_OP: 2, Kind.RUNTIME: 3, Kind.DRIVER: 4}
_TRANSFER = "gloo:"
_NESTED_KINDS = (Kind.PYTHON, Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER)


@dataclass(frozen=True, slots=True)
class Tree:
    """Nesting of all CPU spans; GPU records and other rows are roots without children and count no time.

    order: rows of the CPU spans, lane by lane, depth first. annotations: rows of those that are not in the tree,
    likewise. transfers: rows of gloo's own ranges, which are open until a transfer is waited for, across whatever their
    thread does meanwhile, and so lie in nothing and hold nothing. parent: row of the enclosing span, or -1.
    start_ns, end_ns: after clipping. self_ns: length less the children's; 0 for rows outside the tree.
    in_tree: rows that are CPU spans. Annotations nest among themselves only (they cross Python frames by design),
    except ranges that our collectors wrote around a module, which take part like ops. clipped_events, clipped_ns: what
    clipping cost.
    """

    order: IntArray
    annotations: IntArray
    transfers: IntArray
    parent: IntArray
    start_ns: IntArray
    end_ns: IntArray
    self_ns: IntArray
    in_tree: BoolArray
    clipped_events: int
    clipped_ns: int


def build_tree(trace: Trace) -> Tree:
    """Nest the CPU spans of every lane.

    Among spans with the same start the wider is the outer one; of equal ones Python frames enclose annotations, ops,
    runtime and driver calls in this order, then the lower External id. Python frames with the same start are ordered by
    their Python id, which grows from parent to child. Sum of `self_ns` over a tree equals the length of its root.
    """
    events = trace.events
    kind = events.kind
    in_tree = np.isin(kind, [*_NESTED_KINDS]) | module_range_rows(trace)
    transfers = (kind == Kind.ANNOTATION) & trace.named(lambda name: name.startswith(_TRANSFER))
    annotations = (kind == Kind.ANNOTATION) & ~in_tree & ~transfers
    # Annotations get lanes of their own, behind the real ones.
    lane = events.lane.astype(np.int64) + np.where(annotations, len(trace.lanes), 0)
    rows = np.flatnonzero(in_tree | annotations)
    order = rows[_outer_first(trace, events, rows, lane)]
    start = events.ts_ns[order]
    nesting = _nest_lanes(lane[order], start, start + events.dur_ns[order])
    return _to_rows(events, order, in_tree, np.flatnonzero(transfers), nesting)


def module_range_rows(trace: Trace) -> BoolArray:
    """Rows that are ranges which our collectors wrote around a module's forward."""
    on_cpu = np.isin(trace.events.kind, [Kind.ANNOTATION, Kind.CPU_OP])
    return on_cpu & trace.named(lambda name: name.startswith(trace_file.MODULE_RANGE))


def nearest_ancestor(parent: IntArray, marked: BoolArray) -> IntArray:
    """For each row the row of the innermost marked span around it (not itself), or -1.

    >>> nearest_ancestor(np.array([-1, 0, 1, 2]), np.array([True, False, True, False]))
    array([-1,  0,  0,  2])
    """
    found = parent.copy()
    open_rows = np.flatnonzero((found >= 0) & ~marked[found])
    while len(open_rows):
        # Each round doubles the distance looked at: an unmarked row passes on what it has found itself.
        above = found[found[open_rows]]
        found[open_rows] = above
        open_rows = open_rows[(above >= 0) & ~marked[above]]
    return found


def nearest_self_or_ancestor(parent: IntArray, marked: BoolArray) -> IntArray:
    """As `nearest_ancestor`, but a marked row finds itself."""
    return np.where(marked, np.arange(len(parent)), nearest_ancestor(parent, marked))


def parents_among(parent: IntArray, rows: IntArray) -> IntArray:
    """For each of `rows` the position in `rows` of the innermost of them around it, or -1.

    >>> parents_among(np.array([-1, 0, 1, 2]), np.array([0, 2, 3]))
    array([-1,  0,  1])
    """
    position = np.full(len(parent), -1, np.int64)
    position[rows] = np.arange(len(rows))
    above = nearest_ancestor(parent, position >= 0)[rows]
    return np.where(above >= 0, position[above], -1)


def _outer_first(trace: Trace, events: Events, rows: IntArray, lane: IntArray) -> IntArray:
    """Positions that sort `rows` by lane, start, and outer before inner."""
    start = events.ts_ns[rows]
    lane = lane[rows]
    order = _sort_by_lane_and_start(lane, start)
    lane, start = lane[order], start[order]
    same_as_last = np.zeros(len(order) + 1, bool)
    same_as_last[1:-1] = (lane[1:] == lane[:-1]) & (start[1:] == start[:-1])
    tied = np.flatnonzero(same_as_last[:-1] | same_as_last[1:])
    if len(tied):
        order[tied] = order[tied[_order_of_ties(trace, rows[order[tied]], lane[tied], start[tied])]]
    return order


def _sort_by_lane_and_start(lane: IntArray, start: IntArray) -> IntArray:
    if not len(start):
        return np.zeros(0, np.int64)
    elapsed = start - start.min()
    if int(elapsed.max()) < 2**47 and int(lane.max()) < 2**15:
        # One packed key: the stable sort is near linear on the almost sorted order in which Kineto writes.
        return np.argsort((lane << 47) | elapsed, kind="stable")
    return np.lexsort((start, lane))


def _order_of_ties(trace: Trace, rows: IntArray, lane: IntArray, start: IntArray) -> IntArray:
    events = trace.events
    rank_of_kind = np.full(max(Kind) + 1, 9)
    for kind, rank in _OUTER_FIRST.items():
        rank_of_kind[kind] = rank
    external = events.argument("external_id")[rows]
    external[external == ABSENT] = np.iinfo(np.int64).max
    python_id = events.argument("python_id")[rows]
    length = -events.dur_ns[rows]
    _, spelling = np.unique(np.array(trace.strings, dtype=object)[events.name[rows]], return_inverse=True)
    correlation = events.argument("correlation")[rows]
    keys = (correlation, python_id, spelling, external, rank_of_kind[events.kind[rows]], length, start, lane)
    order = np.lexsort(keys)
    return _frames_by_id(order, python_id, lane, start)


def _frames_by_id(order: IntArray, python_id: IntArray, lane: IntArray, start: IntArray) -> IntArray:
    """Put Python frames of one start into the order of their ids, in the places that such frames hold."""
    places = np.flatnonzero(python_id[order] != ABSENT)
    frames = order[places]
    order[places] = frames[np.lexsort((python_id[frames], start[frames], lane[frames]))]
    return order


def _nest_lanes(lane: IntArray, start: IntArray, end: IntArray) -> Nesting:
    """Nest each lane for itself; positions are those of the whole array, which is sorted by lane."""
    borders = [0, *(np.flatnonzero(np.diff(lane)) + 1).tolist(), len(lane)]
    parts = []
    for first, last in itertools.pairwise(borders):
        part = nest(start[first:last], end[first:last])
        parts.append(Nesting(part.start_ns, part.end_ns, np.where(part.parent >= 0, part.parent + first, -1)))
    return Nesting(
        np.concatenate([part.start_ns for part in parts]),
        np.concatenate([part.end_ns for part in parts]),
        np.concatenate([part.parent for part in parts]),
    )


def _to_rows(events: Events, order: IntArray, in_tree: BoolArray, transfers: IntArray, nesting: Nesting) -> Tree:
    """Spread the values of sorted spans over the rows of the table, and take children from their parents' time."""
    start_ns, end_ns = events.ts_ns.copy(), events.ts_ns + events.dur_ns
    raw_length = end_ns[order] - start_ns[order]
    start_ns[order], end_ns[order] = nesting.start_ns, nesting.end_ns
    clipped = raw_length - (end_ns[order] - start_ns[order])
    parent = np.full(len(events), -1, np.int64)
    has_parent = nesting.parent >= 0
    parent[order[has_parent]] = order[nesting.parent[has_parent]]
    length = np.where(in_tree, end_ns - start_ns, 0)
    inner = np.flatnonzero((parent >= 0) & in_tree)
    self_ns = length.copy()
    np.subtract.at(self_ns, parent[inner], length[inner])
    moved = (clipped > 0) | (start_ns[order] != events.ts_ns[order])
    return Tree(
        order=order[in_tree[order]],
        annotations=order[~in_tree[order]],
        transfers=transfers,
        parent=parent,
        start_ns=start_ns,
        end_ns=end_ns,
        self_ns=self_ns,
        in_tree=in_tree,
        clipped_events=int(np.count_nonzero(moved)),
        clipped_ns=int(clipped.sum()),
    )
