"""Activations that a function gathers over its group before it multiplies. In: `Structure`, rows. Out: factors.

With sequence parallelism a rank holds a part of the rows, and a column-parallel layer multiplies all of them:

    _LayerNormLinear [[512, 128], [128], [128], [256, 128], …]     512 rows here
        record_param_comms  "Collective name": "_allgather_base", "Group size": 4
    _LayerNormLinearBackward [[2048, 256]]                         the gradient has all 2048
"""

from __future__ import annotations

import numpy as np

from tracetools.attribution.structure import Structure
from tracetools.flops.call import OpCall, elements, is_shape, read_call
from tracetools.table import ABSENT, IntArray
from tracetools.timeline.tree import nearest_self_or_ancestor

_MOST = 1 << 16


def find_gathered(structure: Structure, rows: IntArray, calls: list[OpCall]) -> dict[int, int]:
    """Function row → how many times its own rows it multiplies; rows that gather nothing are left out.

    rows, calls: forward calls of functions. An all-gather inside says it; where the extension communicates on its own,
    the gradient that comes back is longer than the activation was.
    """
    return _by_gradient(structure, rows, calls) | _by_collective(structure, rows)


def _by_collective(structure: Structure, rows: IntArray) -> dict[int, int]:
    trace = structure.trace
    events = trace.events
    size, collective = events.argument("group_size"), events.argument("collective_name")
    gathers = np.array(["gather" in text.lower() for text in trace.strings], bool)
    at = structure.tree.order
    at = at[(collective[at] != ABSENT) & (size[at] > 1) & (size[at] < _MOST)]
    at = at[gathers[collective[at]]]
    marked = np.zeros(len(events), bool)
    marked[rows] = True
    holder = nearest_self_or_ancestor(structure.tree.parent, marked)[at]
    return {row: factor for row, factor in zip(holder.tolist(), size[at].tolist(), strict=True) if row >= 0}


def _by_gradient(structure: Structure, rows: IntArray, calls: list[OpCall]) -> dict[int, int]:
    autograd = structure.autograd
    node_of = dict(zip(autograd.maker.tolist(), autograd.node.tolist(), strict=True))
    gradient_of = _first_shapes(structure, {node_of[row] for row in rows.tolist() if row in node_of})
    found = {}
    for row, call in zip(rows.tolist(), calls, strict=True):
        gradient = gradient_of.get(node_of.get(row, -1))
        matrices = [shape for shape in call.shapes if is_shape(shape) and len(shape) > 1]
        if not gradient or not matrices:
            continue
        # The activation's rows: of the shapes that end alike, the one whose leading sizes are no weight's.
        lengths = {elements(shape[:-1]) for shape in matrices if gradient[-1] != shape[0] or len(shape) > 2}
        longest = elements(gradient[:-1])
        if len(lengths) == 1 and (length := lengths.pop()) and longest > length and longest % length == 0:
            found[row] = longest // length
    return found


def _first_shapes(structure: Structure, nodes: set[int]) -> dict[int, tuple[int, ...]]:
    """Backward node → shape of the first input of the first span inside it that has shapes."""
    events, inside = structure.trace.events, structure.autograd.inside_node
    dims = events.argument("input_dims")
    wanted = np.zeros(len(events) + 1, bool)
    wanted[list(nodes)] = True
    rows = structure.tree.order[wanted[inside[structure.tree.order]] & (dims[structure.tree.order] != ABSENT)]
    node, first = np.unique(inside[rows], return_index=True)
    found = {}
    for at, row in zip(node.tolist(), rows[first].tolist(), strict=True):
        shapes = read_call("", structure.trace.strings[dims[row]], None, None).shapes
        if shapes and is_shape(shapes[0]) and len(shapes[0]) > 1:
            found[at] = shapes[0]
    return found
