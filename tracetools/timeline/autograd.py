"""Which forward op made which backward node. In: `Trace`, `Tree`. Out: `AutogradLinks`.

A backward node is a span `autograd::engine::evaluate_function: XBackward0`; its maker is a forward op:

    {"name": "aten::addmm", "ts": 120.000, …, "args": {"Sequence number": 35, "Fwd thread id": 0}}
    {"ph": "s", "cat": "fwdbwd", "id": 9, "tid": 4000, "ts": 120.000}   {"ph": "f", …, "tid": 4099, "ts": 900.100}
    {"name": "AddmmBackward0", "ts": 900.100, …, "args": {"Sequence number": 35, "Fwd thread id": 1}}

Arrows come first: they start where the maker starts. Without an arrow the Sequence number decides: several forward ops
carry one number, and the last-started of them is the maker. `Fwd thread id` counts threads and is no tid; which lane it
means is learnt from the arrows, else from the lane that holds the numbers.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracetools.table import ABSENT, BoolArray, IntArray, Kind, Trace
from tracetools.timeline.lookup import last_at_or_before
from tracetools.timeline.tree import Tree, nearest_ancestor, nearest_self_or_ancestor

NODE_PREFIX: Final = "autograd::engine::evaluate_function: "
_ACCUMULATE: Final = "AccumulateGrad"
_OLD_NODE: Final = re.compile(r"torch::autograd::AccumulateGrad|\w+Backward\d*", re.ASCII)


class LinkedBy(enum.IntEnum):
    """What tied a backward node to its forward op."""

    OPEN = 0
    ARROW = 1
    SEQUENCE = 2


@dataclass(frozen=True, slots=True)
class AutogradLinks:
    """Backward nodes by start.

    node: row of the node. maker: row of the forward op, -1 if open. linked_by: see `LinkedBy`.
    accumulates: nodes that add up a parameter's gradient; they have no maker. is_node: per event row.
    inside_node: per event row, the innermost backward node around it (not itself), or -1.
    conflicts: arrows whose two ends carry different Sequence numbers; the arrow was believed.
    """

    node: IntArray
    maker: IntArray
    linked_by: npt.NDArray[np.int64]
    accumulates: BoolArray
    is_node: BoolArray
    inside_node: IntArray
    conflicts: int


def link_autograd(trace: Trace, tree: Tree) -> AutogradLinks:
    """Find the backward nodes and tie each to the forward op that made it."""
    is_node = _node_rows(trace)
    node = tree.order[is_node[tree.order]]
    node = node[np.argsort(tree.start_ns[node], kind="stable")]
    accumulates = trace.named(lambda name: _ACCUMULATE in name)[node]
    inside_node = nearest_ancestor(tree.parent, is_node)

    maker, conflicts = _by_arrow(trace, tree, node, is_node)
    linked_by = np.where(maker >= 0, LinkedBy.ARROW, LinkedBy.OPEN).astype(np.int64)
    by_number = _by_sequence(trace, tree, node, maker)
    found = (maker < 0) & (by_number >= 0) & ~accumulates
    maker, linked_by = np.where(found, by_number, maker), np.where(found, LinkedBy.SEQUENCE, linked_by)
    return AutogradLinks(node, maker, linked_by, accumulates, is_node, inside_node, conflicts)


def is_forward_op(trace: Trace) -> BoolArray:
    """Ops that took part in building the autograd graph: a Sequence number of their own, and no forward thread.

    Communication is none of them: it makes no node, and bears the number that the next op is going to have.
    """
    events = trace.events
    thread = events.argument("forward_thread")
    named_as_node = trace.named(_OLD_NODE.fullmatch)
    without_thread = np.equal(thread, 0) | np.equal(thread, ABSENT)
    rows: BoolArray = np.equal(events.kind, Kind.CPU_OP) & np.greater_equal(events.argument("sequence"), 0)
    return rows & without_thread & ~named_as_node & ~_node_rows(trace) & ~is_communication(trace)


def is_communication(trace: Trace) -> BoolArray:
    """Ops that hand something to another rank."""
    named = trace.named(lambda name: name.startswith("c10d::") or name == "record_param_comms")
    return named & np.equal(trace.events.kind, Kind.CPU_OP)


def _node_rows(trace: Trace) -> BoolArray:
    """Spans in which the engine evaluates one node; before torch 1.9 only the op inside was recorded."""
    on_cpu: BoolArray = np.equal(trace.events.kind, Kind.CPU_OP)
    engine = on_cpu & trace.named(lambda name: name.startswith(NODE_PREFIX))
    return engine if engine.any() else on_cpu & trace.named(_OLD_NODE.fullmatch)


def _by_arrow(trace: Trace, tree: Tree, node: IntArray, is_node: BoolArray) -> tuple[IntArray, int]:
    """Maker of each node by its fwdbwd arrow, -1 for none; and how many arrows tie different Sequence numbers."""
    maker_of_row = np.full(len(trace.events), -1, np.int64)
    tails, heads = _arrows(trace)
    if not len(tails):
        return maker_of_row[node], 0
    flows, sequence = trace.flows, trace.events.argument("sequence")
    numbered = tree.order[(trace.events.kind[tree.order] == Kind.CPU_OP) & (sequence[tree.order] != ABSENT)]
    source = _starting_at(trace, numbered, flows.lane[tails], flows.ts_ns[tails])
    target = _starting_at(trace, numbered, flows.lane[heads], flows.ts_ns[heads])
    complete = (source >= 0) & (target >= 0)
    source, target = source[complete], target[complete]
    target_node = nearest_self_or_ancestor(tree.parent, is_node)[target]
    inside = target_node >= 0
    source, target, target_node = source[inside], target[inside], target_node[inside]
    maker_of_row[target_node] = source
    return maker_of_row[node], int(np.count_nonzero(sequence[source] != sequence[target]))


def _arrows(trace: Trace) -> tuple[IntArray, IntArray]:
    """Positions in `Flows` of the two ends of each complete fwdbwd arrow."""
    flows = trace.flows
    if "fwdbwd" not in trace.strings:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    mine = flows.category == trace.strings.index("fwdbwd")
    tails = np.flatnonzero(mine & flows.is_start)
    heads = np.flatnonzero(mine & ~flows.is_start)
    numbers, first = np.unique(flows.flow[tails], return_index=True)
    if not len(numbers):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    at = np.minimum(np.searchsorted(numbers, flows.flow[heads]), len(numbers) - 1)
    paired = numbers[at] == flows.flow[heads]
    return tails[first[at[paired]]], heads[paired]


def _starting_at(trace: Trace, rows: IntArray, lane: npt.NDArray[np.int32], ts_ns: IntArray) -> IntArray:
    """The innermost of `rows` (in tree order) that starts exactly at a time on a lane, else -1."""
    if not len(rows):
        return np.full(len(ts_ns), -1, np.int64)
    found = rows[last_at_or_before(trace.events.lane[rows], trace.events.ts_ns[rows], lane, ts_ns)]
    exact = (trace.events.ts_ns[found] == ts_ns) & (trace.events.lane[found] == lane)
    return np.where(exact, found, -1)


def _by_sequence(trace: Trace, tree: Tree, node: IntArray, by_arrow: IntArray) -> IntArray:
    """Maker of each node by Sequence number: the last forward op with the number that started before the node."""
    events = trace.events
    sequence, thread = events.argument("sequence"), events.argument("forward_thread")
    ops = tree.order[is_forward_op(trace)[tree.order]]
    lane_of = _lanes_of_threads(events.lane, sequence, thread, node, by_arrow, ops)
    maker = np.full(len(node), -1, np.int64)
    wanted = np.flatnonzero((sequence[node] >= 0) & (by_arrow < 0))
    if not len(ops) or not len(wanted):
        return maker
    ops = ops[np.lexsort((tree.start_ns[ops], sequence[ops], events.lane[ops]))]
    places: dict[tuple[int, int], IntArray] = _group_rows(events.lane[ops], sequence[ops], ops)
    for at in wanted.tolist():
        row = node[at]
        candidates = places.get((lane_of.get(int(thread[row]), -1), int(sequence[row])))
        if candidates is None:
            continue
        before = int(np.searchsorted(tree.start_ns[candidates], tree.start_ns[row]))
        if before:
            maker[at] = candidates[before - 1]
    return maker


def _group_rows(lane: npt.NDArray[np.int32], sequence: IntArray, rows: IntArray) -> dict[tuple[int, int], IntArray]:
    """Rows by (lane, Sequence number); the input is sorted by both."""
    border = np.flatnonzero((np.diff(lane) != 0) | (np.diff(sequence) != 0)) + 1
    starts = np.concatenate([[0], border]).astype(np.int64)
    keys = zip(lane[starts].tolist(), sequence[starts].tolist(), strict=True)
    return dict(zip(keys, np.split(rows, border), strict=True))


def _lanes_of_threads(
    lane: npt.NDArray[np.int32],
    sequence: IntArray,
    thread: IntArray,
    node: IntArray,
    by_arrow: IntArray,
    ops: IntArray,
) -> dict[int, int]:
    """Lane that each `Fwd thread id` stands for.

    Learnt from nodes that an arrow tied; else the lane whose forward ops hold most of the thread's numbers, if one is
    ahead of all others.
    """
    learnt: dict[int, int] = {}
    lanes = np.unique(lane[ops])
    for number in np.unique(thread[node]).tolist():
        mine = thread[node] == number
        tied = by_arrow[mine & (by_arrow >= 0)]
        if len(tied):
            values, counts = np.unique(lane[tied], return_counts=True)
            learnt[int(number)] = int(values[np.argmax(counts)])
            continue
        numbers = np.unique(sequence[node[mine]])
        held = [int(np.isin(numbers, sequence[ops[lane[ops] == each]]).sum()) for each in lanes]
        best = max(held, default=0)
        if best and held.count(best) == 1:
            learnt[int(number)] = int(lanes[held.index(best)])
    return learnt
