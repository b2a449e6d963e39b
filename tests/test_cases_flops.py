"""Worked cases about FLOPs; every figure is in their expected.md."""

from __future__ import annotations

import pytest

import tracetools
from tests.case import CASES, analyse, modules, ops, table
from tracetools.results import RankFlops


def flops(name: str) -> RankFlops:
    (row,) = analyse(name).flops.by_rank
    return row


def test_backward_is_counted_and_not_taken_for_twice_forward():
    row = flops("bwd_flops_measured")
    assert (row.forward, row.dgrad, row.wgrad) == (4_521_984, 327_680, 4_194_304 + 327_680)
    rows = modules(analyse("bwd_flops_measured"))
    by_module = table(rows, "path", "forward.flops", "backward.flops", "backward.dgrad_flops", "backward.wgrad_flops")
    layers = {path.rpartition("/")[2]: figures for path, figures in by_module.items()}
    assert layers["Linear_0"] == (4_194_304, 4_194_304, 0, 4_194_304)
    assert layers["Linear_1"] == (327_680, 655_360, 327_680, 327_680)
    root = next(row for row in rows if row.parent is None)
    assert (root.forward.flops, root.backward.flops) == (4_521_984, 4_849_664)
    assert root.forward.flops / root.forward.gpu_busy_ns == pytest.approx(205.5, abs=0.05)
    assert root.backward.flops / root.backward.gpu_busy_ns == pytest.approx(67.4, abs=0.05)


@pytest.mark.parametrize(
    ("convention", "causal", "expected"),
    [("torchtitan", "full", 33_554_432), ("flopcounter", "full", 33_554_432), ("megatron", "half", 16_777_216)],
)
def test_causal_attention_by_each_convention(convention: str, causal: str, expected: int):
    analysis = tracetools.load(CASES / "causal_attention", convention=convention).analysis
    (row,) = analysis.flops.by_rank
    assert (row.forward, row.causal_masked) == (expected, 16_777_216)
    assert (analysis.flops.convention.name, analysis.flops.convention.causal) == (convention, causal)


def test_products_of_experts_do_not_depend_on_their_number():
    grouped = [row for row in analyse("moe_grouped_mm").ops if row.name == "aten::_grouped_mm"]
    assert [(row.calls, row.flops) for row in grouped] == [(1, 33_554_432)] * 2
    assert flops("moe_grouped_mm").total == 2 * 33_554_432


def test_transformer_engine_counts_without_an_op_for_its_products():
    analysis = analyse("te_linear_no_gemm_op")
    found = table(modules(analysis), "path", "forward.flops", "backward.flops", "forward.gpu_busy_ns")
    assert found == {
        "Linear_0": (33_554_432, 67_108_864, 30_000),
        "LayerNormLinear_0": (33_554_432, 0, 38_000),
    }
    (row,) = analysis.flops.by_rank
    assert (row.dgrad, row.wgrad, row.unsplit) == (33_554_432, 33_554_432, 0)
    assert row.known_kernel_ns == row.compute_kernel_ns


def test_an_op_shown_twice_by_a_dispatch_mode_counts_once():
    assert ops(analyse("dispatch_mode_double"), "calls", "flops", "gpu_busy_ns") == {"aten::mm": (2, 1_048_576, 40_000)}


def test_replays_of_a_graph_are_listed_with_their_time():
    analysis = analyse("cuda_graph_replay")
    listed = {row.op: row.kernel_ns for row in analysis.flops.uncounted}
    (row,) = analysis.flops.by_rank
    assert listed.get("(graph replay)", 0) == row.compute_kernel_ns - row.known_kernel_ns
