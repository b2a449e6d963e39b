"""Functions that multiply without an op: shapes by hand, in the orders of several versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.build import AUTOGRAD, Builder
from tests.test_invariants import check_invariants
from tracetools.flops import Bound, OpCall, Uncountable
from tracetools.flops.function_gradients import gradients_of
from tracetools.flops.functions import ATTENTION, LAYERS, attention
from tracetools.results import Analysis, RankFlops


def call(name: str, *shapes: tuple[int, ...]) -> OpCall:
    return OpCall(name, shapes)


@pytest.mark.parametrize(
    ("shapes", "expected", "weight"),
    [
        pytest.param([(256, 128), (512, 128), (256,), ()], 2 * 512 * 128 * 256, 256 * 128, id="weight-first"),
        pytest.param([(512, 128), (128,), (128,), (256, 128), (), (256,)], 2 * 512 * 128 * 256, 256 * 128, id="norm"),
        pytest.param([(4, 128, 128), (256, 128), ()], 2 * 512 * 128 * 256, 256 * 128, id="input-3d-first"),
        pytest.param([(256, 128), (256, 128), (512, 128), (256,)], 2 * 512 * 128 * 256, 256 * 128, id="fp8-copy"),
        pytest.param([(128, 128), (128, 128), (128,)], 2 * 128**3, 128 * 128, id="all-square"),
    ],
)
def test_a_linear_function(shapes: list[tuple[int, ...]], expected: int, weight: int):
    (product,) = LAYERS["_Linear"](call("_Linear", *shapes))
    assert (product.count, product.weight) == (expected, weight)


@pytest.mark.parametrize("shapes", [[], [(8, 4)], [(8, 4), (6, 5)], [(8, 4), (6, 4), (7, 4)], [(8,), ()]])
def test_what_does_not_fit_is_not_counted(shapes: list[tuple[int, ...]]):
    for name, layer in LAYERS.items():
        if (name, len(shapes)) != ("_OperationFuserAutogradFunction", 3):
            with pytest.raises(Uncountable):
                layer(call(name, *shapes))


@pytest.mark.parametrize("wide", [1024, 2048])
def test_norm_and_mlp_with_and_without_a_gate(wide: int):
    shapes = (512, 256), (256,), (256,), (wide, 256), (wide,), (256, 1024), (256,), ()
    first, second = LAYERS["_LayerNormMLP"](call("_LayerNormMLP", *shapes))
    assert (first.count, second.count) == (2 * 512 * 256 * wide, 2 * 512 * 1024 * 256)


def test_ops_fused_behind_each_other():
    shapes = (512, 256), (1024, 256), (1024,), (256, 1024), (256,)
    found = LAYERS["_OperationFuserAutogradFunction"](call("_OperationFuserAutogradFunction", *shapes))
    assert sum(each.count for each in found) == 2 * 2 * 512 * 256 * 1024


LINEAR = call("_Linear", (256, 128), (512, 128), (256,), ())
MLP = call("_LayerNormMLP", (512, 256), (256,), (256,), (2048, 256), (2048,), (256, 1024), (256,), ())
EXPERTS = call("_GroupedLinear", (512, 128), *((256, 128),) * 4)
EACH = 2 * 512 * 128 * 256
FIRST, SECOND = 2 * 512 * 256 * 2048, 2 * 512 * 256 * 1024


@pytest.mark.parametrize(
    ("forward", "kernels", "accumulated", "inputs", "weights"),
    [
        pytest.param(LINEAR, 2, [256 * 128, 256], EACH, EACH, id="both"),
        pytest.param(LINEAR, 1, [256 * 128], 0, EACH, id="first-layer"),
        pytest.param(LINEAR, 1, [], EACH, 0, id="frozen"),
        pytest.param(LINEAR, 0, [], 0, 0, id="neither"),
        pytest.param(LINEAR, 2, [], EACH, EACH, id="flat-parameter"),
        pytest.param(MLP, 4, [2048 * 256, 256 * 1024], FIRST + SECOND, FIRST + SECOND, id="mlp"),
        pytest.param(MLP, 3, [2048 * 256, 256 * 1024], SECOND, FIRST + SECOND, id="mlp-first-layer"),
        pytest.param(MLP, 3, [256 * 1024], FIRST + SECOND, SECOND, id="mlp-first-weight-frozen"),
        pytest.param(MLP, 2, [], FIRST + SECOND, 0, id="mlp-frozen"),
        pytest.param(EXPERTS, 8, [256 * 128] * 4, EACH, EACH, id="experts-one-kernel-each"),
        pytest.param(EXPERTS, 2, [256 * 128] * 4, EACH, EACH, id="experts-one-kernel-for-all"),
        pytest.param(EXPERTS, 4, [], EACH, 0, id="experts-frozen"),
    ],
)
def test_gradients_by_kernels_and_what_is_accumulated(
    forward: OpCall, kernels: int, accumulated: list[int], inputs: int, weights: int
):
    found = gradients_of(forward, kernels, accumulated)
    assert (found.count, found.weight, found.bound) == (inputs + weights, weights, Bound.EXACT)


def test_more_kernels_than_gradients_are_a_lower_bound():
    found = gradients_of(LINEAR, 5, [256 * 128])
    assert (found.count, found.weight, found.bound) == (EACH, None, Bound.LOWER)


@pytest.mark.parametrize(
    ("name", "shapes", "expected", "bound"),
    [
        ("FlashAttnFunc", [(2, 128, 4, 64)] * 3, 4 * 2 * 4 * 128 * 128 * 64, Bound.EXACT),
        ("FusedAttnFunc", [(3,), (3,), (2, 128, 4, 64), (2, 128, 2, 64), (2, 128, 2, 64)], 4 * 2 * 4 * 128**2 * 64, 0),
        ("FusedAttnFunc", [(3,), (3,), *[(128, 2, 4, 64)] * 3], 4 * 2 * 4 * 128 * 128 * 64, Bound.EXACT),
        ("FusedAttnFunc", [(128, 1, 4, 64)] * 3, 4 * 4 * 128 * 128 * 64, Bound.EXACT),
        ("FusedAttnFunc", [(128, 8, 4, 64)] * 3, 4 * 128 * 4 * 8 * 8 * 64, Bound.LOWER),
        ("FusedAttnFunc", [(5,), (5,), *[(512, 4, 64)] * 3], 4 * 4 * 4 * 128 * 128 * 64, Bound.LOWER),
        ("FusedAttnFunc", [(2,), (2,), *[(512, 4, 64)] * 3], 4 * 4 * 512 * 512 * 64, Bound.EXACT),
    ],
)
def test_attention_in_the_layouts_it_may_have(name: str, shapes: list[Any], expected: int, bound: Bound):
    lengths, found = attention(call(name, *shapes))
    assert (lengths.forward().count, found) == (expected, bound)
    assert name in ATTENTION


class Engine(Builder):
    """Traces of Transformer Engine, as its source writes them; no real one is at hand."""

    def function(self, name: str, start: float, length: float, shapes: list[list[int]], seq: int) -> None:
        args = {"Sequence number": seq, "Fwd thread id": 0, "Input Dims": shapes}
        self.span("cpu_op", name, start, length, **args, **{"Input type": ["c10::BFloat16"] * len(shapes)})

    def backward(self, name: str, start: float, length: float, gradient: list[int], seq: int) -> None:
        self.node(name, start, length, seq)
        inner = self.events[-1]
        inner["ts"], inner["dur"] = start + 1, length - 2
        inner["args"] |= {"Input Dims": [gradient], "Input type": ["c10::BFloat16"]}

    def accumulate(self, start: float, *shapes: list[int]) -> None:
        for at, shape in enumerate(shapes):
            self.node("torch::autograd::AccumulateGrad", start + 2 * at, 1)
            self.events[-1]["args"] |= {"Input Dims": [shape]}


GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT"


def run(job: Engine, folder: Path) -> tuple[Analysis, RankFlops]:
    analysis = job.run(folder)
    check_invariants(analysis)
    (row,) = analysis.flops.by_rank
    return analysis, row


def linear(job: Engine, kernels: int = 2, name: str = "_Linear") -> Engine:
    job.function(name, 10, 40, [[256, 128], [512, 128], [256], []], seq=3)
    job.kernel(20, 60, 30, name=GEMM)
    job.backward(f"{name}Backward", 200, 60, [512, 256], seq=3)
    for at in range(kernels):
        job.kernel(210 + 10 * at, 300 + 40 * at, 30, name=GEMM, tid=AUTOGRAD)
    return job


def test_a_layer_in_a_trace(tmp_path: Path):
    job = linear(Engine())
    job.accumulate(270, [256, 128], [256])
    analysis, row = run(job, tmp_path)
    assert (row.forward, row.dgrad, row.wgrad, row.known_kernel_ns) == (EACH, EACH, EACH, 90_000)
    assert {each.name: each.flops for each in analysis.ops}["_LinearBackward"] == 2 * EACH


def test_a_function_whose_product_is_an_op_counts_by_the_op(tmp_path: Path):
    """Version 1.x: the product shows, inside the same function."""
    job = Engine()
    job.function("_Linear", 10, 40, [[512, 128], [256, 128]], seq=3)
    shapes = [[256, 128], [], [], [], [], [512, 128], [], [], [], [], [512, 256]]
    concrete = [""] * 4 + ["True"] + [""] * 4 + ["False"] + [""]
    job.span("cpu_op", "tex_ts::te_gemm_ts", 20, 20, **{"Input Dims": shapes, "Concrete Inputs": concrete})
    job.kernel(25, 60, 30, name=GEMM)
    assert run(job, tmp_path)[1].total == EACH


@pytest.mark.parametrize("shown", ["collective", "gradient"])
def test_rows_that_are_gathered_inside_count(shown: str, tmp_path: Path):
    """A quarter of the rows is here; the function gathers the others, or its extension does without a word."""
    job = Engine()
    job.function("_LayerNormLinear", 10, 40, [[512, 128], [128], [128], [256, 128], [], [256]], seq=3)
    if shown == "collective":
        args = {"Collective name": "_allgather_base", "Group size": 4}
        job.span("cpu_op", "record_param_comms", 15, 5, **args)
    job.kernel(25, 60, 30, name=GEMM)
    job.backward("_LayerNormLinearBackward", 200, 60, [2048, 256], seq=3)
    for at in range(2):
        job.kernel(210 + 10 * at, 300 + 40 * at, 30, name=GEMM, tid=AUTOGRAD)
    job.accumulate(270, [256, 128])
    row = run(job, tmp_path)[1]
    assert (row.forward, row.dgrad, row.wgrad) == (4 * EACH, 4 * EACH, 4 * EACH)


def test_fp8_is_told_by_the_kernel(tmp_path: Path):
    job = Engine()
    job.header["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    job.function("_Linear", 10, 40, [[256, 128], [512, 128], [256], []], seq=3)
    job.kernel(20, 60, 30, name="nvjet_qqtst_128x256_128x4_1x2_h_bz_coopA_TNT")
    analysis, _ = run(job, tmp_path)
    assert [(peak.dtype, peak.flop_per_s) for peak in analysis.flops.peak] == [("fp8", 1979e12)]


def test_a_delayed_weight_gradient_is_listed_as_not_counted(tmp_path: Path):
    """Its kernel is launched later, outside every op."""
    job = linear(Engine(), kernels=1)
    job.kernel(400, 500, 30, name=GEMM)
    analysis, row = run(job, tmp_path)
    assert (row.dgrad, row.wgrad) == (EACH, 0)
    assert [(each.op, each.kernel_ns) for each in analysis.flops.uncounted] == [("(no op)", 30_000)]
    assert "flops_uncounted" in {finding.rule for finding in analysis.findings}


def test_bounds_are_said(tmp_path: Path):
    job = linear(Engine(), kernels=5)
    job.accumulate(270, [256, 128])
    analysis, row = run(job, tmp_path)
    assert (row.unsplit, row.dgrad, row.wgrad) == (EACH, 0, 0)
    rules = {finding.rule: finding.count for finding in analysis.findings if finding.rule.startswith("flops_")}
    assert rules == {"flops_lower_bound": 1, "flops_unsplit": 1}
