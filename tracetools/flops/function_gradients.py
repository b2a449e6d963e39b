"""Backward of functions whose products have no op of their own. In: `Structure`, counted calls. Out: rows and FLOPs.

    _Linear [[256, 128], [512, 128], [256], []]        forward: the shapes of the product
    _LinearBackward [[512, 256]]                       backward: 0 to 2 kernels that multiply

Shapes are those of the forward call; how many kernels multiply says how many gradients were made, and what is
accumulated next says which weights were among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracetools.attribution.structure import Structure
from tracetools.flops.call import OpCall, Uncountable, elements, is_shape
from tracetools.flops.calls import Calls
from tracetools.flops.formulas import Bound, Flops
from tracetools.flops.functions import ATTENTION, LAYERS, Product, attention
from tracetools.flops.gradients import accumulated_sizes
from tracetools.flops.kernels import is_product
from tracetools.table import IntArray
from tracetools.timeline.autograd import NODE_PREFIX
from tracetools.timeline.gpu_work import Work
from tracetools.timeline.tree import nearest_self_or_ancestor


@dataclass(frozen=True, slots=True)
class FunctionGradients:
    """Backward of counted functions.

    row: of the op inside each of their nodes. forward: position of the function's call in `counted`. flops: what each
    node did.
    """

    row: IntArray
    forward: IntArray
    flops: tuple[Flops, ...]


def count_function_gradients(structure: Structure, calls: Calls, counted: IntArray) -> FunctionGradients:
    """FLOPs of the backward nodes that functions among `counted` (positions in `calls`) made.

    A node in which an op counts is left to that op.
    """
    is_function = np.array([call.name in LAYERS or call.name in ATTENTION for call in calls.call] or [False])
    functions = np.flatnonzero(is_function[calls.which[counted]])
    autograd = structure.autograd
    if not len(functions):
        return FunctionGradients(functions, functions, ())
    position = np.full(len(structure.trace.events) + 1, -1, np.int64)
    position[calls.row[counted[functions]]] = functions
    forward = position[autograd.maker]
    made = (forward >= 0) & ~np.isin(autograd.node, autograd.inside_node[calls.row[counted]])
    node, forward = autograd.node[made], forward[made]
    kernels = _product_kernels(structure)
    accumulated = accumulated_sizes(structure)
    flops = tuple(
        gradients_of(calls.call[which], kernels.get(at, 0), accumulated.get(at, ()))
        for at, which in zip(node.tolist(), calls.which[counted[forward]].tolist(), strict=True)
    )
    return FunctionGradients(_ops_in(structure, node), forward, flops)


def _ops_in(structure: Structure, node: IntArray) -> IntArray:
    """The op that the engine evaluates in each node, which bears the node's name; the node where there is none."""
    order, parent = structure.tree.order, structure.tree.parent
    position = np.zeros(len(parent), np.int64)
    position[order] = np.arange(len(order))
    inner = order[np.minimum(position[node] + 1, len(order) - 1)]
    strings, name = structure.trace.strings, structure.trace.events.name
    same = [
        strings[outer] == NODE_PREFIX + strings[within]
        for outer, within in zip(name[node].tolist(), name[inner].tolist(), strict=True)
    ]
    return np.where((parent[inner] == node) & np.array(same, bool), inner, node)


def gradients_of(call: OpCall, kernels: int, accumulated: Sequence[int]) -> Flops:
    """What the backward of a call did.

    kernels: how many that multiply it launched. accumulated: elements of the gradients that were accumulated next.

    >>> call = OpCall("_Linear", ((256, 128), (512, 128), (256,), ()))
    >>> gradients_of(call, 2, (256 * 128, 256)).count, gradients_of(call, 1, ()).weight
    (67108864, 0)
    """
    try:
        if call.name in ATTENTION:
            lengths, bound = attention(call)
            return lengths.backward(bound=bound) if kernels else Flops(0, weight=0, bound=Bound.LOWER)
        products = LAYERS[call.name](call)
    except Uncountable:
        return Flops(0, weight=0, bound=Bound.LOWER)
    return _of_layer(call, products, kernels, Counter(accumulated))


def _of_layer(call: OpCall, products: Sequence[Product], kernels: int, accumulated: Counter[int]) -> Flops:
    """Gradients of weights are those accumulated; the kernels left made those of inputs, of the last product first.

    Where nothing is accumulated (a flat parameter of FSDP), kernels beyond one for each product made the weights'.
    """
    experts = _experts(call, products)
    if experts > 1 and kernels % experts == 0:
        kernels //= experts
    trained = []
    left = Counter(accumulated)
    for each in products:
        if left[each.weight]:
            left[each.weight] -= 1
            trained.append(each)
    if not trained and kernels > len(products):
        trained = list(products[2 * len(products) - kernels :])
    inputs = kernels - len(trained)
    weight = sum(each.count for each in trained)
    if not 0 <= inputs <= len(products):
        return Flops(min(kernels, len(products)) * min(each.count for each in products), bound=Bound.LOWER)
    through = products[len(products) - inputs :]
    return Flops(weight + sum(each.count for each in through), weight=weight)


def _experts(call: OpCall, products: Sequence[Product]) -> int:
    """How many weights of one shape share a product."""
    if call.name != "_GroupedLinear":
        return 1
    matrices = [shape for shape in call.shapes if is_shape(shape) and len(shape) == 2]
    return max(sum(elements(shape) == each.weight for shape in matrices) for each in products)


def _product_kernels(structure: Structure) -> dict[int, int]:
    """Backward node → kernels inside that multiply."""
    work, owner = structure.work, structure.launches.owner
    multiplies = structure.trace.named(is_product)[work.row] & (work.work == Work.COMPUTE) & (owner >= 0)
    holder = nearest_self_or_ancestor(structure.tree.parent, structure.autograd.is_node)[owner[multiplies]]
    nodes, count = np.unique(holder[holder >= 0], return_counts=True)
    return dict(zip(nodes.tolist(), count.tolist(), strict=True))
