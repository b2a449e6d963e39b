"""Cases about launches: which call started which GPU work, what has no partner, how far the CPU ran ahead."""

from __future__ import annotations

from tests.case import analyse, findings, ops, table, trace, unattributed, us
from tracetools.findings import Severity
from tracetools.results import Analysis, RunAhead


def launches(analysis: Analysis) -> dict[int | None, tuple[int, int, int]]:
    return table(analysis.launches, "rank", "count", "without_kernel", "kernels_without_launch")


def run_ahead(analysis: Analysis) -> RunAhead | None:
    (row,) = analysis.launches
    return row.run_ahead_ns


def same(time: float) -> RunAhead:
    return RunAhead(p50=us(time), p95=us(time), max=us(time))


def test_async_annotation():
    analysis = analyse("async_annotation")
    assert launches(analysis) == {0: (2, 0, 1)}
    assert ops(analysis, "calls", "cpu_ns", "gpu_busy_ns")["aten::mm"] == (2, *us(120, 800))
    assert ops(analysis, "kernel_ns") == {"aten::mm": us(800), "(unattributed)": us(500)}
    assert table(analysis.annotations, "name", "calls", "cpu_ns", "gpu_busy_ns", "kernel_ns") == {
        "fwd::layer_3": (1, *us(200, 800, 800))
    }


def test_correlation_zero():
    analysis = analyse("correlation_zero")
    assert launches(analysis) == {0: (3, 3, 3)}
    assert run_ahead(analysis) is None
    assert table(analysis.gpu, "rank", "communication_ns", "exposed_communication_ns", "compute_ns") == {
        0: us(90, 90, 0)
    }
    assert ops(analysis, "kernel_ns") == {"record_param_comms": 0, "(unattributed)": us(90)}
    assert (unattributed(analysis).total.kernels, unattributed(analysis).total.kernel_ns) == (3, us(90))


def test_cpu_pid_zero():
    analysis = analyse("cpu_pid_zero")
    assert sum(ops(analysis, "cpu_ns").values()) == us(30)
    assert table(analysis.gpu, "rank device", "busy_ns", "kernels") == {(0, 0): (us(40), 1)}
    assert launches(analysis) == {0: (1, 0, 0)}


def test_cuda_graph_replay():
    analysis = analyse("cuda_graph_replay")
    assert launches(analysis) == {0: (1, 0, 0)}
    assert run_ahead(analysis) == same(5)
    assert table(analysis.gpu, "rank", "window_ns", "busy_ns", "idle_ns", "kernels") == {0: (*us(50, 40, 10), 4)}
    assert table(analysis.annotations, "name", "calls", "gpu_busy_ns") == {"decoder_step": (1, us(40))}


def test_driver_launch():
    analysis = analyse("driver_launch")
    assert launches(analysis) == {0: (2, 0, 0)}
    assert run_ahead(analysis).max == us(10)
    assert ops(analysis, "calls", "kernel_ns") == {"triton_poi_fused_add_0": (1, us(12)), "aten::mm": (1, us(20))}


def test_flow_id_collision():
    analysis = analyse("flow_id_collision")
    assert launches(analysis) == {0: (1, 0, 0), 1: (1, 0, 0)}
    assert table(analysis.ops, "rank name", "kernel_ns") == {(0, "aten::mm"): us(30), (1, "aten::mm"): us(40)}
    assert table(analysis.inputs, "rank", "host") == {0: "node-a", 1: "node-b"}


def test_flow_outside_slice():
    analysis = analyse("flow_outside_slice")
    assert launches(analysis) == {0: (2, 0, 1)}
    assert table(analysis.launches, "rank", "started_before_launch") == {0: 1}
    assert ops(analysis, "kernel_ns") == {"aten::mm": us(10), "aten::add": us(9), "(unattributed)": us(10)}


def test_gpu_bound_no_gap():
    analysis = analyse("gpu_bound_no_gap")
    assert table(analysis.gpu, "rank", "window_ns", "busy_ns", "idle_ns") == {0: us(302, 300, 2)}
    ahead = run_ahead(analysis)
    assert (ahead.p50, ahead.max) == us(85, 166)


def test_kernel_before_launch():
    analysis = analyse("kernel_before_launch")
    assert launches(analysis) == {0: (3, 0, 0)}
    assert table(analysis.launches, "rank", "started_before_launch") == {0: 2}
    assert run_ahead(analysis) == same(0)
    (early,) = findings(analysis, rule="starts_before_launch")
    assert early.count == 2
    assert early.message.count("3.000 us") == 2, "the worst case, and the smallest shift that mends it"


def test_kernel_without_launch():
    analysis = analyse("kernel_without_launch")
    assert launches(analysis) == {0: (2, 0, 1)}
    assert run_ahead(analysis) == same(40)
    assert table(analysis.gpu, "rank", "window_ns", "busy_ns") == {0: us(110, 90)}
    assert ops(analysis, "kernel_ns") == {"aten::mm": us(40), "(unattributed)": us(50)}


def test_launches_without_kernels():
    analysis = analyse("launches_without_kernels")
    assert launches(analysis) == {0: (5, 5, 0)}
    assert run_ahead(analysis) is None
    assert analysis.gpu == ()
    assert ops(analysis, "calls", "cpu_ns", "gpu_busy_ns", "kernel_ns") == {"aten::mm": (5, us(75), None, None)}
    assert unattributed(analysis).total.gpu_busy_ns is None
    (lost,) = findings(analysis, rule="no_gpu_records", severity=Severity.ERROR)
    assert "0 of 5" in lost.message
    assert "gpu" in lost.affects


def test_partial_kernel_loss():
    analysis = analyse("partial_kernel_loss")
    assert launches(analysis) == {0: (10, 4, 0)}
    assert table(analysis.gpu, "rank", "window_ns", "busy_ns", "idle_ns") == {0: us(110, 60, 50)}
    (lost,) = findings(analysis, rule="lost_gpu_records")
    assert lost.count == 4
    assert "6 of 10" in lost.message
    assert "first 4" in lost.message
    assert {"gpu", "steps"} <= set(lost.affects)


def test_te_launch_bound():
    analysis = analyse("te_launch_bound")
    assert table(analysis.gpu, "rank", "window_ns", "busy_ns", "idle_ns") == {0: us(240, 120, 120)}
    assert (
        table(analysis.modules, "path", "forward.cpu_ns", "forward.gpu_busy_ns").items()
        >= {f"Linear_{k}": us(100, 40) for k in range(3)}.items()
    )
    assert run_ahead(analysis) == same(4)


def test_no_launch_is_an_event_of_its_own_kind():
    """Launch calls come from correlations: the sync call of cuda_sync_not_kernel carries one and starts nothing."""
    read = trace("cuda_sync_not_kernel")
    assert "cudaStreamSynchronize" in read.strings
    assert launches(analyse("cuda_sync_not_kernel")) == {0: (2, 0, 0)}
