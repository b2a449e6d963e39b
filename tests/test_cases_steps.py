"""Cases about steps: the last one, work that runs after its step, ranks that recorded different ones."""

from __future__ import annotations

from tests.case import analyse, findings, table, us


def test_last_step_kept():
    analysis = analyse("last_step_kept")
    assert table(analysis.inputs, "rank", "steps") == {0: (5, 6)}
    assert table(analysis.steps, "step", "wall_ns", "gpu_busy_ns") == {5: us(1000, 250), 6: us(1000, 250)}
    # Work 130-330 and 1005-1055 is step 5's, 1130-1330 and 2005-2055 step 6's.
    assert table(analysis.gpu, "step", "window_ns", "busy_ns", "idle_ns", "kernels") == {
        None: (*us(1925, 500, 1425), 4),
        5: (*us(925, 250, 675), 2),
        6: (*us(1000, 250, 750), 2),
    }


def test_step_mismatch_ranks():
    analysis = analyse("step_mismatch_ranks")
    assert table(analysis.inputs, "rank", "steps") == {0: (10, 11, 12), 1: (11, 12, 13)}
    assert table(analysis.steps, "step rank", "wall_ns") == {
        (10, 0): us(600),
        (11, 0): us(610),
        (11, 1): us(611),
        (12, 0): us(620),
        (12, 1): us(621),
        (13, 1): us(631),
    }
    (uncommon,) = findings(analysis, "step", "common")
    assert "10 (rank 0)" in uncommon.message
    assert "13 (rank 1)" in uncommon.message
