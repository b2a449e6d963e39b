"""FLOPs of fused attention: scores and their product with the values, 2·B·H·Sq·Sk·(Dqk + Dv) forward.

Backward makes the gradients of values, scores, queries and keys, 2·B·H·Sq·Sk·(2·Dqk + 2·Dv), and fused kernels work the
scores out once more before, 2·B·H·Sq·Sk·Dqk (T. Dao, "FlashAttention-2", 2023). H counts query heads: grouped keys and
values are read again, not multiplied less. Softmax, masks and dropout are left out.

A causal mask leaves half of a square out. Nothing is taken off where lengths differ (which half is not recorded), nor
where the mask itself is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tracetools.flops.call import OpCall, Shape, Uncountable
from tracetools.flops.formulas import Bound, Flops, Formula, built_in


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sizes of one attention: sequences times query heads, lengths of queries and keys, widths of a head."""

    batch_heads: int
    queries: int
    keys: int
    width: int
    value_width: int

    def forward(self, causal: bool = False, bound: Bound = Bound.EXACT) -> Flops:
        """FLOPs of the forward pass."""
        return self._flops(self.width + self.value_width, 0, causal, bound)

    def backward(self, causal: bool = False, bound: Bound = Bound.EXACT) -> Flops:
        """FLOPs of the backward pass, all of them for gradients of inputs."""
        return self._flops(3 * self.width + 2 * self.value_width, self.width, causal, bound)

    def _flops(self, widths: int, again: int, causal: bool, bound: Bound) -> Flops:
        pairs = 2 * self.batch_heads * self.queries * self.keys
        masked = pairs * widths // 2 if causal and self.queries == self.keys else 0
        return Flops(pairs * widths, masked=masked, again=pairs * again, weight=0, bound=bound)


@dataclass(frozen=True, slots=True)
class Fused:
    """How an op lists its inputs.

    query: place of the queries; keys and values follow. causal: place of the flag, or of a mask type that is 0 without
    a mask. heads_first: [B, H, S, D], else [B, S, H, D]. longest: places of the longest lengths, where sequences may
    be packed behind each other, [all, H, D]; their lengths are not recorded, so that a count is an upper bound.
    """

    query: int
    causal: int
    heads_first: bool
    longest: tuple[int, int] | None = None


FORWARD: Final = {
    "aten::_scaled_dot_product_flash_attention": Fused(0, 4, True),
    "aten::_scaled_dot_product_flash_attention_for_cpu": Fused(0, 4, True),
    "aten::_scaled_dot_product_efficient_attention": Fused(0, 6, True),
    "aten::_scaled_dot_product_cudnn_attention": Fused(0, 6, True),
    "aten::_scaled_dot_product_fused_attention_overrideable": Fused(0, 5, True),
    "aten::_flash_attention_forward": Fused(0, 8, False, (5, 6)),
    "aten::_efficient_attention_forward": Fused(0, 9, False, (6, 7)),
    "aten::_cudnn_attention_forward": Fused(0, 10, True, (6, 7)),
    "flash_attn::_flash_attn_forward": Fused(0, 5, False),
    "flash_attn::_flash_attn_varlen_forward": Fused(0, 9, False, (5, 6)),
}
BACKWARD: Final = {
    "aten::_scaled_dot_product_flash_attention_backward": Fused(1, 11, True),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": Fused(1, 7, True),
    "aten::_scaled_dot_product_efficient_attention_backward": Fused(1, 11, True),
    "aten::_scaled_dot_product_cudnn_attention_backward": Fused(1, 14, True),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": Fused(1, 13, True),
    "aten::_flash_attention_backward": Fused(1, 11, False, (8, 9)),
    "aten::_efficient_attention_backward": Fused(1, 14, False, (8, 9)),
    "flash_attn::_flash_attn_backward": Fused(1, 11, False),
    "flash_attn::_flash_attn_varlen_backward": Fused(1, 15, False, (11, 12)),
}


def lengths_of(query: Shape, key: Shape, value: Shape, heads_first: bool) -> Lengths:
    """Sizes from three shapes of four dimensions.

    >>> lengths_of((2, 4, 128, 64), (2, 2, 128, 64), (2, 2, 128, 64), heads_first=True).forward().count
    33554432

    Raises: Uncountable where they do not fit.
    """
    heads, length = (1, 2) if heads_first else (2, 1)
    if query[0] != key[0] or key[:3] != value[:3] or query[3] != key[3]:
        raise Uncountable("queries, keys and values do not fit")
    return Lengths(query[0] * query[heads], query[length], key[length], query[3], value[3])


def _sizes(call: OpCall, how: Fused) -> tuple[Lengths, bool, Bound]:
    query, key, value = (call.shape(how.query + each, 3, 4) for each in range(3))
    try:
        causal = bool(call.value(how.causal))
    except Uncountable:
        causal = False
    if len(query) == len(key) == len(value) == 4:
        return lengths_of(query, key, value, how.heads_first), causal, Bound.EXACT
    if how.longest is None or not len(query) == len(key) == len(value) == 3:
        raise Uncountable("queries, keys and values do not fit")
    # Packed: each query meets at most the longest sequence of keys.
    return Lengths(query[1], query[0], call.integer(how.longest[1]), query[2], value[2]), False, Bound.UPPER


def _formula(how: Fused, flops: Callable[[Lengths, bool, Bound], Flops]) -> Formula:
    return lambda call: flops(*_sizes(call, how))


for _name, _how in FORWARD.items():
    built_in(_name)(_formula(_how, Lengths.forward))
for _name, _how in BACKWARD.items():
    built_in(_name)(_formula(_how, Lengths.backward))
