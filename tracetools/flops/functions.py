"""FLOPs of autograd functions whose products have no op of their own. In: `OpCall` of the function. Out: `Product`s.

Transformer Engine multiplies in its own extension; its autograd functions are the innermost spans with shapes:

    {"name": "_Linear", "args": {"Input Dims": [[256, 128], [512, 128], [256], []], …}}    weight, input, bias, …

Which input is what differs between versions, so shapes are found by what fits: a weight is [out, in], and the
activation ends in `in`. Whether a tensor of two dimensions is the weight or the activation makes no difference: the
product is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from tracetools.flops.attention import Lengths
from tracetools.flops.call import OpCall, Shape, Uncountable, elements, is_shape
from tracetools.flops.formulas import Bound, Flops, built_in


@dataclass(frozen=True, slots=True)
class Product:
    """A product with a weight: FLOPs of it, and of each of its gradients. weight: number of elements of the weight."""

    count: int
    weight: int


Layer: TypeAlias = Callable[[OpCall], tuple[Product, ...]]


def linear(call: OpCall) -> tuple[Product, ...]:
    """One product; of experts, which share one shape, all of them together.

    >>> linear(OpCall("_Linear", ((256, 128), (512, 128), (256,), ())))
    (Product(count=33554432, weight=32768),)

    Raises: Uncountable.
    """
    wide = _matrices(call)
    last = wide[0][-1] if wide else 0
    fitting = [shape for shape in wide if shape[-1] == last]
    # Of two matrices the one that is listed more often is the weight: of several experts, or kept in FP8 besides.
    distinct = sorted(set(fitting), key=lambda shape: (len(shape), -fitting.count(shape), fitting.index(shape)))
    if len(distinct) == 1 and len(fitting) > 1:
        distinct *= 2
    if len(distinct) != 2 or len(distinct[0]) != 2:
        raise Uncountable("no weight and activation that fit")
    first, second = distinct
    # Else the bias tells; it matters for the number of elements only.
    biased = {shape[0] for shape in call.shapes if is_shape(shape) and len(shape) == 1}
    by_bias = len(second) == 2 and second[0] in biased and first[0] not in biased
    weight = second if by_bias and fitting.count(first) == 1 else first
    rows = elements(first[:-1]) * elements(second[:-1])
    return (Product(2 * rows * last, elements(weight)),)


def norm_and_mlp(call: OpCall) -> tuple[Product, ...]:
    """Two products, with weights [wide, hidden] and [hidden, wide]; the first is twice as wide where it is gated.

    Raises: Uncountable.
    """
    wide = _matrices(call)
    x, rest = (wide[0], wide[1:]) if wide else ((), [])
    hidden = x[-1] if x else 0
    for at, first in enumerate(rest):
        for second in rest[at + 1 :]:
            fits = len(first) == len(second) == 2 and first[1] == second[0] == hidden
            if fits and first[0] in (second[1], 2 * second[1]):
                rows = 2 * elements(x[:-1])
                return tuple(Product(rows * elements(weight), elements(weight)) for weight in (first, second))
    raise Uncountable("no two weights and activation that fit")


def chain(call: OpCall) -> tuple[Product, ...]:
    """Ops that were fused behind each other: each weight whose input is as wide as what came before.

    Raises: Uncountable where there is none.
    """
    x, *weights = _matrices(call) or [()]
    width, found = x[-1] if x else 0, []
    for weight in weights:
        if len(weight) == 2 and weight[1] in (width, width // 2):
            found.append(Product(2 * elements(x[:-1]) * elements(weight), elements(weight)))
            width = weight[0]
    if not found:
        raise Uncountable("no weight and activation that fit")
    return tuple(found)


LAYERS: Final[dict[str, Layer]] = {
    "_Linear": linear,
    "_LayerNormLinear": linear,
    "_GroupedLinear": linear,
    "_LayerNormMLP": norm_and_mlp,
    "_OperationFuserAutogradFunction": chain,
}
ATTENTION: Final = ("FusedAttnFunc", "FlashAttnFunc")
"""Functions of fused attention; whether their mask was causal is not recorded."""


def attention(call: OpCall) -> tuple[Lengths, Bound]:
    """Sizes from three neighbouring inputs of equal rank, and how sure they are.

    flash-attn lists [B, S, H, D]. Transformer Engine lists that, [S, B, H, D] or [all, H, D], and the layout is not
    recorded: the offsets of sequences, of length B + 1, tell it, or a batch of one; else the smaller size is taken for
    the length, which gives a lower bound. Packed sequences are taken to be of equal length, a lower bound too.

    Raises: Uncountable.
    """
    query, key, value = _three(call)
    batches = {shape[0] - 1 for shape in call.shapes if is_shape(shape) and len(shape) == 1} - {0}
    if len(query) == 3:
        if call.name != "FusedAttnFunc" or len(batches) != 1:
            raise Uncountable("the number of packed sequences is not recorded")
        (batch,) = batches
        lengths = Lengths(query[1] * batch, query[0] // batch, key[0] // batch, query[2], value[2])
        return lengths, Bound.LOWER if batch > 1 else Bound.EXACT
    at, sure = (0, True) if call.name != "FusedAttnFunc" else _batch_of(query, batches)
    return (
        Lengths(query[at] * query[2], query[1 - at], key[1 - at], query[3], value[3]),
        Bound.EXACT if sure else Bound.LOWER,
    )


def _batch_of(query: Shape, batches: set[int]) -> tuple[int, bool]:
    """Which of the first two sizes counts sequences, and whether that is sure."""
    if query[0] == query[1]:
        return 0, True
    for known in (batches, {1}):
        fits = [at for at in (0, 1) if query[at] in known]
        if len(fits) == 1:
            return fits[0], True
    return (0 if query[0] > query[1] else 1), False


def _three(call: OpCall) -> tuple[Shape, Shape, Shape]:
    for query, key, value in zip(call.shapes, call.shapes[1:], call.shapes[2:], strict=False):
        if is_shape(query) and is_shape(key) and is_shape(value) and len(query) in (3, 4):
            same = len(query) == len(key) == len(value) and key[:-1] == value[:-1] and query[-1] == key[-1]
            if same:
                return query, key, value
    raise Uncountable("queries, keys and values do not fit")


def _matrices(call: OpCall) -> list[Shape]:
    """Shapes of two dimensions or more, in order."""
    return [shape for shape in call.shapes if is_shape(shape) and len(shape) > 1]


def _sum(call: OpCall, layer: Layer) -> Flops:
    return Flops(sum(each.count for each in layer(call)))


def _attention_forward(call: OpCall) -> Flops:
    lengths, bound = attention(call)
    return lengths.forward(bound=bound)


for _name, _layer in LAYERS.items():
    built_in(_name)(partial(_sum, layer=_layer))
built_in(*ATTENTION)(_attention_forward)
