"""Cases about nesting: crossing spans, ends rounded past the parent's, equal times."""

from __future__ import annotations

from tests.case import analyse, at, findings, ops, parents, self_times, trace, tree_by_name, us
from tracetools.results import Phase
from tracetools.timeline.tree import build_tree


def test_bleeding_runtime():
    outer = "autograd::engine::evaluate_function: NativeLayerNormBackward0"
    read = trace("bleeding_runtime")
    assert parents(read) == {
        outer: None,
        "aten::empty_strided": outer,
        "cudaLaunchKernel": outer,
        "aten::copy_": outer,
        "layer_norm_bwd": None,
    }
    assert self_times(read) == {
        outer: us(72),
        "aten::empty_strided": us(10),
        "cudaLaunchKernel": us(8),
        "aten::copy_": us(10),
    }
    tree = build_tree(read)
    assert (tree.clipped_events, tree.clipped_ns) == (1, us(0.2))
    assert ops(analyse("bleeding_runtime"), "phase", "cpu_ns", "gpu_busy_ns") == {
        outer: (Phase.BACKWARD, *us(100, 20)),
        "aten::empty_strided": (Phase.BACKWARD, *us(10, 0)),
        "aten::copy_": (Phase.BACKWARD, *us(10, 0)),
    }


def test_child_end_rounding():
    read = trace("child_end_rounding")
    assert parents(read) == {
        "aten::linear": None,
        "aten::addmm": "aten::linear",
        "cudaLaunchKernel": "aten::addmm",
        "gemm": None,
    }
    tree, rows = tree_by_name(read)
    assert int(tree.end_ns[rows["aten::addmm"]]) == at(150)
    assert (tree.clipped_events, tree.clipped_ns) == (1, 1)
    analysis = analyse("child_end_rounding")
    assert ops(analysis, "cpu_ns", "self_cpu_ns", "gpu_busy_ns") == {
        "aten::linear": us(50, 10, 12),
        "aten::addmm": us(40, 35, 12),
    }
    (clipped,) = findings(analysis, rule="nesting_clipped")
    assert clipped.count == 1
    assert "0.001 us in all" in clipped.message


def test_dispatch_mode_double():
    read = trace("dispatch_mode_double")
    tree = build_tree(read)
    mm = [row for row in range(len(read.events)) if read.strings[read.events.name[row]] == "aten::mm"]
    assert tree.parent[mm].tolist() == [-1, mm[0], -1, mm[2]]
    assert tree.self_ns[[mm[0], mm[2]]].sum() == us(40)
    assert ops(analyse("dispatch_mode_double"), "calls", "cpu_ns", "gpu_busy_ns", "kernel_ns") == {
        "aten::mm": (2, *us(120, 40, 40))
    }


def test_equal_timestamps():
    read = trace("equal_timestamps")
    # The annotation nn.block has a lane of its own.
    assert parents(read) == {
        "nn.block": None,
        "aten::to": None,
        "aten::_to_copy": "aten::to",
        "aten::empty": "aten::_to_copy",
        "aten::mm": None,
    }
    assert self_times(read) == {
        "aten::to": us(0),
        "aten::_to_copy": us(20),
        "aten::empty": us(0),
        "aten::mm": us(10),
    }
    assert build_tree(read).clipped_events == 0


def test_profilerstep_crossing():
    read = trace("profilerstep_crossing")
    frame, tail = "train.py(5): loop_body", "train.py(9): tail"
    assert parents(read) == {frame: None, "ProfilerStep#3": None, "aten::mm": frame, tail: None}
    tree, rows = tree_by_name(read)
    assert (int(tree.start_ns[rows[frame]]), int(tree.end_ns[rows[frame]])) == (at(50), at(400))
    assert tree.clipped_events == 0
    analysis = analyse("profilerstep_crossing")
    assert [(row.step, row.wall_ns) for row in analysis.steps] == [(3, us(500))]
    assert ops(analysis, "calls", "cpu_ns") == {"aten::mm": (1, us(40))}


def test_us_truncation_negative_self():
    read = trace("us_truncation_negative_self")
    assert parents(read) == {"aten::a": None, "aten::b": "aten::a", "aten::c": "aten::b"}
    assert self_times(read) == {"aten::a": us(1), "aten::b": us(0), "aten::c": us(9)}
    tree = build_tree(read)
    assert (tree.clipped_events, tree.clipped_ns) == (2, us(2))
    analysis = analyse("us_truncation_negative_self")
    (clipped,) = findings(analysis, rule="nesting_clipped")
    assert clipped.count == 2
    assert "2.000 us in all" in clipped.message
    assert findings(analysis, rule="coarse_clock")
