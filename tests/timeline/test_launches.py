"""Which call launched which piece of GPU work."""

from __future__ import annotations

from pathlib import Path

from tests.build import Builder
from tracetools.results import Analysis


def kernels_of(analysis: Analysis) -> dict[str, int | None]:
    return {row.name: row.kernel_ns for row in analysis.ops}


def work(job: Builder, correlation: int, start: float, length: float) -> None:
    """A kernel record alone, without its launch."""
    job.kernel(0, start, length)
    launch, kernel = job.events[-2:]
    kernel["args"]["correlation"] = correlation
    job.events.remove(launch)


def test_zero_is_no_correlation_even_where_a_call_has_it_too(tmp_path: Path):
    job = Builder()
    job.op("aten::all_reduce", 0, 20)
    job.span("cuda_runtime", "cudaLaunchKernel", 5, 1, correlation=0)
    work(job, 0, 100, 10)
    analysis = job.run(tmp_path)
    assert kernels_of(analysis) == {"aten::all_reduce": 0, "(unattributed)": 10_000}
    (row,) = analysis.launches
    assert (row.without_kernel, row.kernels_without_launch) == (1, 1)


def test_of_a_runtime_and_a_driver_call_the_runtime_call_counts(tmp_path: Path):
    # The driver call came first, in another op: the order of kinds decides, not that of time.
    job = Builder()
    job.op("aten::driver", 0, 20)
    job.span("cuda_driver", "cuLaunchKernel", 5, 1, correlation=9)
    job.op("aten::runtime", 30, 20)
    job.span("cuda_runtime", "cudaLaunchKernel", 35, 1, correlation=9)
    work(job, 9, 100, 10)
    assert kernels_of(job.run(tmp_path)) == {"aten::driver": 0, "aten::runtime": 10_000}


def test_of_two_runtime_calls_the_earlier_counts_and_a_finding_says_so(tmp_path: Path):
    job = Builder()
    job.op("aten::later", 30, 20)
    job.span("cuda_runtime", "cudaLaunchKernel", 35, 1, correlation=9)
    job.op("aten::earlier", 0, 20)
    job.span("cuda_runtime", "cudaLaunchKernel", 5, 1, correlation=9)
    work(job, 9, 100, 10)
    analysis = job.run(tmp_path)
    assert kernels_of(analysis) == {"aten::earlier": 10_000, "aten::later": 0}
    assert "correlation_shared" in {finding.rule for finding in analysis.findings}
