"""MFU and HFU on a trace built by hand, and what stands in their way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build import Builder
from tests.test_invariants import check_invariants
from tracetools.results import Analysis

SIZES = [[1000, 1000], [1000, 1000]]
EACH = 2 * 1000**3


def job(
    kind: str = "c10::BFloat16", kernel: str = "nvjet_tst", device: str = "NVIDIA H200", kernel_us: float = 10
) -> Builder:
    """Two steps of 100 µs with one product each; on the GPU they take 100 and 120 µs."""
    made = Builder()
    made.header["deviceProperties"] = [{"id": 0, "name": device}]
    for number, start in ((4, 0), (5, 100)):
        made.step(number, start, 100)
        made.span("cpu_op", "aten::mm", start + 10, 20, **{"Input Dims": SIZES, "Input type": [kind] * 2})
        made.kernel(start + 15, start + 50, kernel_us, name=kernel)
        made.kernel(start + 40, start + (140 if number == 4 else 160), 10, name="void at::native::elementwise_kernel")
    return made


def rules(analysis: Analysis) -> set[str]:
    return {finding.rule for finding in analysis.findings}


def test_utilization_of_steps_and_rank(tmp_path: Path):
    """989 TFLOP/s: 2 GFLOP take 2.022 µs. Windows: 50 to 150, 150 to 270."""
    analysis = job().run(tmp_path)
    check_invariants(analysis)
    section = analysis.flops
    assert [(row.step, row.window_ns, row.executed, row.ideal_ns) for row in section.by_step] == [
        (4, 100_000, EACH, 2022),
        (5, 120_000, EACH, 2022),
    ]
    assert [row.hfu for row in section.by_step] == [0.02022, 2022 / 120_000]
    assert section.mfu == section.hfu == section.by_rank[0].mfu == pytest.approx(2 * 2022 / 220_000)
    assert [(peak.device, peak.dtype, peak.flop_per_s) for peak in section.peak] == [("NVIDIA H200", "bf16", 989e12)]


def test_one_step_alone(tmp_path: Path):
    analysis = job().run(tmp_path, steps=[5])
    assert analysis.flops.by_rank[0].total == EACH
    assert analysis.flops.mfu == pytest.approx(2022 / 120_000)


def test_a_peak_that_is_given_goes_before_the_listed_one(tmp_path: Path):
    analysis = job().run(tmp_path, peaks={"bf16": 500e12})
    assert [(peak.flop_per_s, peak.source) for peak in analysis.flops.peak] == [(500e12, "--peak")]
    assert analysis.flops.by_step[0].ideal_ns == 4000


@pytest.mark.parametrize("device", ["NVIDIA H100", "Some GPU", "NVIDIA B300 SXM6 AC"])
def test_a_device_that_is_not_listed_has_no_peak(device: str, tmp_path: Path):
    analysis = job(device=device).run(tmp_path)
    check_invariants(analysis)
    assert (analysis.flops.mfu, analysis.flops.hfu, analysis.flops.by_step[0].ideal_ns) == (None, None, None)
    assert "peak_unknown" in rules(analysis)
    assert analysis.flops.by_rank[0].total == 2 * EACH


@pytest.mark.parametrize(
    ("kernel", "ideal_ns"),
    [("ampere_sgemm_128x64_nn", 29_851), ("cutlass_80_tensorop_s1688gemm_128x64_nn", 4040), ("unheard_of_gemm", None)],
)
def test_floats_are_multiplied_in_what_the_kernel_says(kernel: str, ideal_ns: int | None, tmp_path: Path):
    """FP32 at 67 TFLOP/s, TF32 at 495, or nobody knows."""
    analysis = job("float", kernel, kernel_us=40).run(tmp_path)
    assert analysis.flops.by_step[0].ideal_ns == ideal_ns
    assert ("precision_unknown" in rules(analysis)) == (ideal_ns is None)


def test_an_op_above_the_peak_is_a_finding(tmp_path: Path):
    assert "above_peak" not in rules(job(kernel_us=2).run(tmp_path))
    (finding,) = (each for each in job(kernel_us=1).run(tmp_path).findings if each.rule == "above_peak")
    assert "aten::mm seems to run at 2000 TFLOP/s, above the peak of 989" in finding.message


def test_what_may_multiply_and_is_not_counted_is_listed(tmp_path: Path):
    made = job()
    made.span("cpu_op", "my::op", 60, 20)
    made.kernel(65, 300, 30, name="my_secret_kernel")
    made.span("cpu_op", "triton_poi_fused_add_0", 85, 5)
    made.kernel(86, 340, 5, name="triton_poi_fused_add_0")
    analysis = made.run(tmp_path)
    check_invariants(analysis)
    assert [(row.op, row.calls, row.kernel_ns) for row in analysis.flops.uncounted] == [("my::op", 1, 30_000)]
    (row,) = analysis.flops.by_rank
    assert (row.compute_kernel_ns, row.known_kernel_ns) == (75_000, 45_000)
    assert "flops_uncounted" in rules(analysis)
