"""Which phase of training each CPU span belongs to. In: `Trace`, `Tree`, `AutogradLinks`. Out: one code per row.

Backward is what lies inside a backward node, on whatever thread. Recompute is what lies inside a backward node and yet
is a forward op or a module's forward: activation checkpointing runs them again there, re-entrant or not.
"""

from __future__ import annotations

import enum
from typing import Final

import numpy as np
import numpy.typing as npt

from tracetools.results import Phase
from tracetools.table import BoolArray, IntArray, Kind, Trace
from tracetools.timeline.annotations import innermost_annotation
from tracetools.timeline.autograd import AutogradLinks, is_forward_op
from tracetools.timeline.optimizer import is_optimizer_range
from tracetools.timeline.tree import Tree, nearest_self_or_ancestor

_LOADER: Final = "enumerate(DataLoader)#"

PhaseArray = npt.NDArray[np.uint8]


class Code(enum.IntEnum):
    """Phase as a small number. ACCUMULATE is the adding up of gradients, a part of backward with columns of its own."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    RECOMPUTE = 3
    OPTIMIZER = 4
    ACCUMULATE = 5


PHASE_OF: Final = {
    Code.OTHER: Phase.OTHER,
    Code.FORWARD: Phase.FORWARD,
    Code.BACKWARD: Phase.BACKWARD,
    Code.RECOMPUTE: Phase.RECOMPUTE,
    Code.OPTIMIZER: Phase.OPTIMIZER,
    Code.ACCUMULATE: Phase.BACKWARD,
}


def attribute_phases(trace: Trace, tree: Tree, autograd: AutogradLinks, is_module_call: BoolArray) -> PhaseArray:
    """Phase of every row; rows outside the tree are OTHER.

    Inside a backward node: BACKWARD (ACCUMULATE in an AccumulateGrad node), but RECOMPUTE from the first forward op or
    module call on, until the next backward node inside it. Elsewhere: OPTIMIZER in an `Optimizer.` range, FORWARD in a
    module call or in an op with a Sequence number that is not loading data, OTHER in the rest.
    """
    forward_op = is_forward_op(trace) & ~_loads_data(trace, tree)
    in_node = autograd.inside_node >= 0
    again = (forward_op | is_module_call | _unpack_hooks(trace)) & in_node
    decisive = nearest_self_or_ancestor(tree.parent, autograd.is_node | again)
    # A second backward (create_graph) looks like recompute; nothing in the trace tells them apart.
    accumulate = np.zeros(len(trace.events), bool)
    accumulate[autograd.node[autograd.accumulates]] = True

    forward_in = nearest_self_or_ancestor(tree.parent, forward_op | is_module_call)
    forward = forward_in >= 0
    phase = np.where(forward & tree.in_tree, Code.FORWARD, Code.OTHER).astype(np.uint8)
    held = decisive >= 0
    phase[held] = np.where(
        again[decisive[held]],
        Code.RECOMPUTE,
        np.where(accumulate[decisive[held]], Code.ACCUMULATE, Code.BACKWARD),
    )
    phase[_optimizer_rows(trace, tree, autograd, forward_in)] = Code.OPTIMIZER
    return phase


def _loads_data(trace: Trace, tree: Tree) -> BoolArray:
    """Rows inside a range that torch writes around a data loader's next batch; ops there have Sequence numbers too."""
    ranges = np.equal(trace.events.kind, Kind.ANNOTATION) & trace.named(lambda name: name.startswith(_LOADER))
    loads = np.zeros(len(trace.events), bool)
    if ranges.any():
        rows = tree.order
        held = innermost_annotation(trace, tree, trace.events.lane[rows], tree.start_ns[rows], among=ranges)
        loads[rows[held >= 0]] = True
    return loads


def _unpack_hooks(trace: Trace) -> BoolArray:
    """Python frames in which a non-re-entrant checkpoint runs its recompute."""
    frames: BoolArray = np.equal(trace.events.kind, Kind.PYTHON)
    return frames & trace.named(lambda name: name.endswith(": unpack_hook") and "checkpoint.py(" in name)


def _optimizer_rows(trace: Trace, tree: Tree, autograd: AutogradLinks, forward_in: IntArray) -> IntArray:
    """Spans inside an optimizer range, unless forward or a backward node lies between the two.

    An optimizer may be given a closure that runs forward and backward, as Lightning does in every step.

    forward_in: per row, the module call or forward op that it is or lies in, -1 for none.
    """
    ranges = is_optimizer_range(trace)
    if not ranges.any():
        return np.zeros(0, np.int64)
    rows = tree.order
    held = innermost_annotation(trace, tree, trace.events.lane[rows], tree.start_ns[rows], among=ranges)
    node = np.where(autograd.is_node[rows], rows, autograd.inside_node[rows])
    training = np.zeros(len(rows), bool)
    for inner in (node, forward_in[rows]):
        training |= (inner >= 0) & (tree.start_ns[inner] >= tree.start_ns[held])
    return rows[(held >= 0) & ~training]
