"""Cases about GPU time: what is work, what overlaps, what is idle."""

from __future__ import annotations

from tests.case import analyse, findings, ops, table, us
from tracetools.results import Analysis

FIGURES = ("window_ns", "busy_ns", "compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")


def whole(analysis: Analysis, *columns: str) -> dict[int | None, tuple[int, ...]]:
    """Columns of the rows of whole ranks."""
    return table((row for row in analysis.gpu if row.step is None), "rank", *columns)


def test_coalesced_no_metadata():
    assert whole(analyse("coalesced_no_metadata"), *FIGURES, "communication_ns") == {
        0: us(50, 50, 0, 50, 0, 0, 50),
        1: us(50, 50, 0, 50, 0, 0, 50),
    }


def test_cuda_sync_not_kernel():
    analysis = analyse("cuda_sync_not_kernel")
    assert whole(analysis, *FIGURES, "kernels") == {0: (*us(110, 20, 20, 0, 0, 90), 2)}


def test_gpu_annotation_double():
    analysis = analyse("gpu_annotation_double")
    assert whole(analysis, *FIGURES, "kernel_ns", "kernels") == {0: (*us(70, 70, 30, 40, 0, 0, 70), 2)}
    assert ops(analysis, "kernel_ns") == {"aten::mm": us(70)}


def test_interleaved_virtual_stages():
    analysis = analyse("interleaved_virtual_stages")
    stages: dict[str, list[int]] = {}
    for row in analysis.annotations:
        # PP:<stage><F|B><micro-batch>; stages 0 and 2 are rank 0's, 1 and 3 rank 1's.
        assert int(row.name[3]) % 2 == row.rank
        cpu, gpu = stages.setdefault(row.name[3:5], [0, 0])
        stages[row.name[3:5]] = [cpu + row.cpu_ns, gpu + row.gpu_busy_ns]
    assert stages == {
        "0F": list(us(100, 92)),
        "0B": list(us(90, 86)),
        "1F": list(us(110, 102)),
        "1B": list(us(100, 96)),
        "2F": list(us(120, 112)),
        "2B": list(us(110, 106)),
        "3F": list(us(80, 72)),
        "3B": list(us(100, 96)),
    }
    of_rank = {rank: sum(row.cpu_ns for row in analysis.annotations if row.rank == rank) for rank in (0, 1)}
    assert of_rank == {0: us(420), 1: us(390)}


def test_pdl_overlap():
    analysis = analyse("pdl_overlap")
    assert whole(analysis, *FIGURES, "kernel_ns") == {0: us(100, 95, 95, 0, 0, 5, 105)}
    assert ops(analysis, "calls", "gpu_busy_ns", "kernel_ns") == {"aten::mm": (3, *us(95, 105))}
    assert not findings(analysis, rule="late_completion_stamp")


def test_pipeline_1f1b_bubble():
    analysis = analyse("pipeline_1f1b_bubble")
    # The first kernel starts at 1 on stage 0, at 101 on stage 1; the last ends at 1500 and 1300.
    assert whole(analysis, *FIGURES) == {0: us(1499, 1192, 1192, 0, 0, 307), 1: us(1199, 1192, 1192, 0, 0, 7)}
    assert table(analysis.steps, "rank step", "wall_ns", "gpu_busy_ns") == {
        (0, 7): us(1500, 1192),
        (1, 7): us(1500, 1192),
    }
    assert table(analysis.inputs, "rank", "stage") == {0: 0, 1: 1}


def test_rocm_dur_overflow():
    analysis = analyse("rocm_dur_overflow")
    assert whole(analysis, *FIGURES, "kernel_ns") == {0: us(100, 80, 80, 0, 0, 20, 80)}
    assert ops(analysis, "calls", "gpu_busy_ns", "kernel_ns") == {"aten::mm": (4, *us(80, 80))}
    (late,) = findings(analysis, rule="late_completion_stamp")
    assert late.count == 1
    assert "1600000.000 us" in late.message


def test_two_streams_overlap():
    assert whole(analyse("two_streams_overlap"), *FIGURES, "communication_ns", "kernel_ns", "kernels") == {
        0: (*us(170, 150, 120, 30, 0, 20, 70, 190), 3)
    }
