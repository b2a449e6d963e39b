"""Which gradient a product in backward makes: the input's or the weight's. In: calls. Out: a `Gradient` per product.

Of a product [m, k]·[k, n] there are two gradients, each a product itself:

    input's   [m, n]·[n, k] = [m, k]        or, transposed, [k, n]·[n, m]
    weight's  [k, m]·[m, n] = [k, n]        or, transposed, [n, m]·[m, k]

so the dimension that is summed away tells them apart: n for the first factor, m for the second. Where m = n strides do:
torch takes the first factor of the second's gradient transposed.

The weight is the second factor in a linear layer. Elsewhere it is the factor that has the size of a gradient which is
accumulated right after; a product of which neither is (of queries and keys, say) has none. In a trace that shows no
accumulation it is the second.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec
import numpy as np

from tracetools.attribution.structure import Structure
from tracetools.flops.call import Shape
from tracetools.flops.calls import Calls
from tracetools.table import ABSENT, BoolArray, IntArray
from tracetools.timeline.tree import nearest_self_or_ancestor

_VIEWS: Final = (
    "TBackward",
    "ViewBackward",
    "ReshapeAliasBackward",
    "UnsafeViewBackward",
    "TransposeBackward",
    "PermuteBackward",
    "ToCopyBackward",
    "AliasBackward",
    "SqueezeBackward",
    "UnsqueezeBackward",
    "ExpandBackward",
    "torch::autograd::CopySlices",
)
"""Nodes that only hand a gradient on."""


class Gradient(enum.IntEnum):
    """What a product in backward makes. UNKNOWN: one or the other."""

    INPUT = 0
    WEIGHT = 1
    UNKNOWN = 2


class _Made(NamedTuple):
    """A product of a maker: its distinct call, and whether its weight is its second factor by what ran it.

    That is a linear layer, or a region that was compiled or scripted, whose gradients nothing follows step by step.
    """

    which: int
    second_is_weight: bool


class _Factor(enum.Flag):
    """Of which factor of a product another one may be the gradient."""

    NONE = 0
    FIRST = enum.auto()
    SECOND = enum.auto()


def split_gradients(structure: Structure, calls: Calls, counted: IntArray, products: IntArray) -> IntArray:
    """The `Gradient` of each of `products`.

    counted, products: positions in `calls`, of all that count and of those in backward whose formula does not say it.
    """
    node = structure.autograd.inside_node[calls.row[products]]
    accumulated = accumulated_sizes(structure)
    made_by = _products_of_nodes(structure, calls, counted, second_is_weight=not accumulated)
    transposed = _first_is_transposed(structure, calls, products)
    result = np.full(len(products), Gradient.UNKNOWN)
    ambiguous = np.zeros(len(products), bool)
    known: dict[tuple[object, ...], tuple[Gradient, bool]] = {}
    for at, (which, at_node, first_transposed) in enumerate(
        zip(calls.which[products].tolist(), node.tolist(), transposed, strict=True)
    ):
        makers = made_by.get(at_node, ())
        sizes = accumulated.get(at_node, ())
        key = (which, makers, sizes, first_transposed)
        if key not in known:
            known[key] = _gradient(calls, which, makers, sizes, first_transposed)
        result[at], ambiguous[at] = known[key]
    return _pair_up(result, ambiguous, node)


def _pair_up(gradient: IntArray, ambiguous: BoolArray, node: IntArray) -> IntArray:
    """Two products of one node that sizes do not tell apart are one of each, whatever their strides said.

    They are equally large, so that it does not matter which is which.
    """
    unsure = np.flatnonzero(ambiguous & (node >= 0))
    unsure = unsure[np.argsort(node[unsure], kind="stable")]
    _, first, count = np.unique(node[unsure], return_index=True, return_counts=True)
    first = first[count == 2]
    alike = first[gradient[unsure[first]] == gradient[unsure[first + 1]]]
    gradient[unsure[alike]], gradient[unsure[alike + 1]] = Gradient.INPUT, Gradient.WEIGHT
    return gradient


def accumulated_sizes(structure: Structure) -> dict[int, tuple[int, ...]]:
    """Backward node → numbers of elements of the gradients that are accumulated right after it on its thread."""
    autograd = structure.autograd
    lane = structure.trace.events.lane[autograd.node]
    order = np.argsort(lane, kind="stable")
    node, lane, accumulates = autograd.node[order], lane[order], autograd.accumulates[order]
    hands_on = structure.trace.named(lambda name: any(view in name for view in _VIEWS))[node]
    last = np.maximum.accumulate(np.where(accumulates | hands_on, -1, np.arange(len(node))))
    with_source = np.flatnonzero(accumulates & (last >= 0) & (lane[last] == lane))
    sizes = _sizes_of_accumulated(structure)
    found: dict[int, list[int]] = {}
    for source, at in zip(node[last[with_source]].tolist(), node[with_source].tolist(), strict=True):
        if at in sizes:
            found.setdefault(source, []).append(sizes[at])
    return {node: tuple(sorted(each)) for node, each in found.items()}


def _sizes_of_accumulated(structure: Structure) -> dict[int, int]:
    """AccumulateGrad node → elements of its gradient: those of the first span inside that has shapes."""
    dims = structure.trace.events.argument("input_dims")
    inside = structure.autograd.inside_node
    accumulates = np.zeros(len(dims), bool)
    accumulates[structure.autograd.node[structure.autograd.accumulates]] = True
    rows = structure.tree.order[dims[structure.tree.order] != ABSENT]
    rows = rows[(inside[rows] >= 0) & accumulates[inside[rows]]]
    nodes, first = np.unique(inside[rows], return_index=True)
    strings = structure.trace.strings

    @cache
    def elements(text: int) -> int:
        return _first_size(strings[text])

    return {node: elements(text) for node, text in zip(nodes.tolist(), dims[rows[first]].tolist(), strict=True)}


def _first_size(text: str) -> int:
    """Elements of the first tensor of a list of shapes, 0 where there is none."""
    try:
        shapes = msgspec.json.decode(text, type=list[list[int]])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return 0
    return math.prod(shapes[0]) if shapes else 0


def _products_of_nodes(
    structure: Structure, calls: Calls, counted: IntArray, *, second_is_weight: bool
) -> dict[int, tuple[_Made, ...]]:
    """Backward node → the distinct products that its maker ran."""
    autograd = structure.autograd
    tied = autograd.maker >= 0
    is_maker = np.zeros(len(structure.trace.events), bool)
    is_maker[autograd.maker[tied]] = True
    rows = calls.row[counted]
    maker = nearest_self_or_ancestor(structure.tree.parent, is_maker)[rows]
    made = np.flatnonzero(maker >= 0)
    inner = (maker[made] != rows[made]) | _in_linear(structure, rows[made]) | second_is_weight
    by_maker: dict[int, set[_Made]] = {}
    for at, *product in zip(maker[made].tolist(), calls.which[counted[made]].tolist(), inner.tolist(), strict=True):
        by_maker.setdefault(at, set()).add(_Made(*product))
    distinct = {row: tuple(sorted(each)) for row, each in by_maker.items()}
    pairs = zip(autograd.node[tied].tolist(), autograd.maker[tied].tolist(), strict=True)
    return {node: distinct[maker] for node, maker in pairs if maker in distinct}


def _in_linear(structure: Structure, rows: IntArray) -> BoolArray:
    """Whether each product is that of a linear layer: its op lies in `aten::linear`, or in a matmul in one."""
    parent = structure.tree.parent
    linear = structure.trace.named(lambda name: name == "aten::linear")
    outer = parent[rows]
    outermost = np.where(outer >= 0, parent[outer], -1)
    found: BoolArray = ((outer >= 0) & linear[outer]) | ((outermost >= 0) & linear[outermost])
    return found


def _gradient(
    calls: Calls, which: int, makers: Sequence[_Made], sizes: tuple[int, ...], first_transposed: bool | None
) -> tuple[Gradient, bool]:
    """What a product makes, and whether it could be either gradient of the one product that it can come from."""
    found = calls.flops[which]
    if found is None or found.factors is None:
        return Gradient.UNKNOWN, False
    factor, weights = _Factor.NONE, set()
    for maker in makers:
        made = calls.flops[maker.which]
        if made is not None and made.factors is not None:
            factor |= _factor_of(found.factors, made.factors)
            weights.add(_weight_of(made.factors, sizes, maker.second_is_weight))
    if weights == {_Factor.NONE}:
        return Gradient.INPUT, False
    both = factor == _Factor.FIRST | _Factor.SECOND
    if both and first_transposed is not None:
        factor = _Factor.SECOND if first_transposed else _Factor.FIRST
    if factor not in (_Factor.FIRST, _Factor.SECOND) or len(weights) != 1:
        return Gradient.UNKNOWN, both and len(makers) == 1
    return Gradient.WEIGHT if factor in weights else Gradient.INPUT, both and len(makers) == 1


def _factor_of(gradient: tuple[Shape, Shape], product: tuple[Shape, Shape]) -> _Factor:
    """Of which factors of a product another product can be the gradient, by its sizes.

    >>> _factor_of(((64, 10), (10, 256)), ((64, 256), (256, 10)))
    <_Factor.FIRST: 1>
    """
    (x, y), z = gradient[0][-2:], gradient[1][-1]
    (m, k), n = product[0][-2:], product[1][-1]
    found = _Factor.NONE
    if y == n and {x, z} == {m, k}:
        found |= _Factor.FIRST
    if y == m and {x, z} == {k, n}:
        found |= _Factor.SECOND
    return found


def _weight_of(factors: tuple[Shape, Shape], sizes: tuple[int, ...], second_is_weight: bool) -> _Factor:
    first, second = (math.prod(each) for each in factors)
    # Batches on both sides are no layer; those of the second alone are experts.
    is_layer = second_is_weight and 2 in (len(factors[0]), len(factors[1]))
    if second in sizes or is_layer:
        return _Factor.SECOND
    return _Factor.FIRST if first in sizes else _Factor.NONE


def _first_is_transposed(structure: Structure, calls: Calls, products: IntArray) -> list[bool | None]:
    """Whether the first factor of each product is laid out transposed; None where strides are not recorded."""
    strides = structure.trace.events.argument("input_strides")[calls.row[products]]
    strings = structure.trace.strings

    @cache
    def transposed(text: int, operand: int) -> bool | None:
        try:
            found = msgspec.json.decode(strings[text], type=list[list[int]])
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
        if operand >= len(found) or len(found[operand]) < 2:
            return None
        row, column = found[operand][-2:]
        return None if row == column else row < column

    result: list[bool | None] = []
    for text, which in zip(strides.tolist(), calls.which[products].tolist(), strict=True):
        flops = calls.flops[which]
        result.append(None if text == ABSENT or flops is None else transposed(text, flops.operand))
    return result
