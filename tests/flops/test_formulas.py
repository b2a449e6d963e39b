"""Formulas by hand, and the places of inputs against the schemas of the torch at hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tracetools.flops import Bound, Flops, Uncountable
from tracetools.flops.attention import BACKWARD, FORWARD, Fused
from tracetools.flops.call import read_call
from tracetools.flops.formulas import formula_of


def flops(name: str, dims: list[Any], concrete: dict[int, str] | None = None) -> Flops:
    values = [(concrete or {}).get(at, "") for at in range(max(len(dims), 1 + max(concrete or {0: ""})))]
    formula = formula_of(name)
    assert formula is not None
    return formula(read_call(name, json.dumps(dims), None, json.dumps(values)))


@pytest.mark.parametrize(
    ("name", "dims", "expected"),
    [
        ("aten::mm", [[64, 128], [128, 256]], 2 * 64 * 128 * 256),
        ("aten::addmm", [[10], [64, 256], [256, 10], [], []], 2 * 64 * 256 * 10),
        ("aten::bmm", [[8, 3, 4], [8, 4, 5]], 8 * 2 * 3 * 4 * 5),
        ("aten::baddbmm", [[8, 3, 5], [8, 3, 4], [8, 4, 5]], 8 * 2 * 3 * 4 * 5),
        ("aten::mv", [[3, 4], [4]], 2 * 3 * 4),
        ("aten::dot", [[7], [7]], 14),
        ("aten::_grouped_mm", [[1024, 64], [8, 64, 256], [8]], 33_554_432),
        ("aten::_grouped_mm", [[64, 1024], [1024, 256], [8]], 33_554_432),
        ("mkldnn::_linear_pointwise", [[2, 3, 8], [5, 8], [5]], 2 * 2 * 3 * 8 * 5),
    ],
)
def test_products(name: str, dims: list[Any], expected: int):
    assert flops(name, dims).count == expected


def test_products_of_transformer_engine_1():
    """Weight [out, in] transposed times input [rows, in]."""
    dims = [[256, 128], [], [], [], [], [512, 128], [], [], [], [], [512, 256]]
    assert flops("tex_ts::te_gemm_ts", dims, {4: "1", 9: "0"}).count == 2 * 512 * 128 * 256


CONV = {3: "[2, 2]", 4: "[3, 3]", 5: "[1, 1]", 6: "False", 7: "[0, 0]", 8: "1"}


def test_convolutions():
    stem = [[10, 3, 224, 224], [64, 3, 7, 7], [], [], [], [], [], [], []]
    assert flops("aten::convolution", stem, CONV).count == 2 * 10 * 112 * 112 * 64 * 3 * 7 * 7
    grouped = [[1, 6, 10], [9, 2, 3], [], [], [], [], [], [], []]
    one = {3: "[1]", 4: "[0]", 5: "[2]", 6: "False", 8: "3"}
    assert flops("aten::convolution", grouped, one).count == 2 * 6 * 9 * 2 * 3
    transposed = [[2, 4, 5, 5], [4, 8, 3, 3], [], [], [], [], [], [], []]
    assert flops("aten::convolution", transposed, {**CONV, 6: "True"}).count == 2 * 2 * 25 * 4 * 8 * 9


@pytest.mark.parametrize(
    ("mask", "inputs", "weights"),
    [("[True, True, False]", 1, 1), ("[False, True, True]", 0, 1), ("[True, False]", 1, 0)],
)
def test_gradients_of_a_convolution(mask: str, inputs: int, weights: int):
    dims = [[10, 512, 7, 7], [10, 512, 7, 7], [512, 512, 3, 3], [], [], [], [], [], [], [], []]
    each = 2 * 10 * 49 * 512 * 512 * 9
    found = flops("aten::convolution_backward", dims, {7: "False", 10: mask})
    assert (found.count, found.weight) == ((inputs + weights) * each, weights * each)


def test_attention():
    """Four query heads, two of keys and values: query heads count; a causal mask leaves out half."""
    dims = [[2, 4, 128, 64], [2, 2, 128, 64], [2, 2, 128, 64], [], [], [], []]
    found = flops("aten::_scaled_dot_product_flash_attention", dims, {3: "0.", 4: "True"})
    assert (found.count, found.masked, found.weight) == (33_554_432, 16_777_216, 0)
    back = flops("aten::_scaled_dot_product_flash_attention_backward", [[2, 4, 128, 64], *dims], {11: "False"})
    assert (back.count, back.again, back.masked) == (33_554_432 * 5 // 2, 16_777_216, 0)


def test_packed_attention_is_an_upper_bound():
    dims = [[300, 8, 64], [300, 8, 64], [300, 8, 64], [5], [5]]
    found = flops("aten::_flash_attention_forward", dims, {5: "100", 6: "120", 8: "True"})
    assert (found.count, found.bound) == (2 * 8 * 300 * 120 * 128, Bound.UPPER)


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("aten::mm", []),
        ("aten::mm", [[2, 3], [4, 5]]),
        ("aten::mm", [[2, 3], None]),
        ("aten::mm", [[2, 3], [3, 1 << 50]]),
        ("aten::mm", [[2, [3]], [3, 4]]),
        ("aten::convolution", [[1, 3, 8, 8], [4, 3, 3, 3]]),
        ("aten::_scaled_dot_product_flash_attention", [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4]]),
    ],
)
def test_what_the_trace_does_not_hold_is_not_counted(name: str, dims: list[Any]):
    with pytest.raises(Uncountable):
        flops(name, dims)


@pytest.mark.parametrize("name", [name for name in (*FORWARD, *BACKWARD) if name.startswith("aten::")])
def test_inputs_of_attention_lie_where_torch_has_them(name: str):
    how: Fused = {**FORWARD, **BACKWARD}[name]
    names = [each.name for each in getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema.arguments]
    assert names[how.query] == "query"
    assert names[how.causal] in ("is_causal", "custom_mask_type")
    if how.longest is not None:
        assert [names[each] for each in how.longest] in (["max_q", "max_k"], ["max_seqlen_q", "max_seqlen_k"])
