"""Cases about modules: backward and recompute by module, shared modules, stages, forward ops of backward nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracetools
from tests.case import CASES, analyse, findings, modules, ops, table, unattributed, us
from tracetools.results import Analysis

TWO_LAYERS = ("backward_by_module", "bwd_flops_measured", "cpu_backward_same_thread", "no_fwdbwd_flows")


def check_two_layers(analysis: Analysis, linked_by: str) -> None:
    rows = modules(analysis)
    assert table(rows, "path", "parent", "class_", "calls", "depth", "source") == {
        "MLP_0": (None, "MLP", 1, 0, "python_frames"),
        "MLP_0/Linear_0": ("MLP_0", "Linear", 1, 1, "python_frames"),
        "MLP_0/Linear_1": ("MLP_0", "Linear", 1, 1, "python_frames"),
    }
    assert table(
        rows, "path", *(f"forward.{name}" for name in ("cpu_ns", "self_cpu_ns", "gpu_busy_ns", "kernel_ns"))
    ) == {
        "MLP_0": us(200, 40, 22, 22),
        "MLP_0/Linear_0": us(80, 80, 10, 10),
        "MLP_0/Linear_1": us(80, 80, 12, 12),
    }
    assert table(
        rows, "path", *(f"backward.{name}" for name in ("cpu_ns", "self_cpu_ns", "gpu_busy_ns", "kernel_ns"))
    ) == {
        "MLP_0": us(160, 0, 72, 72),
        "MLP_0/Linear_0": us(60, 60, 30, 30),
        "MLP_0/Linear_1": us(100, 100, 42, 42),
    }
    assert table(
        rows,
        "path",
        *(f"backward.{name}" for name in ("grad_accumulation_ns", "grad_accumulation_cpu_ns", "grad_sync_ns")),
    ) == {
        "MLP_0": us(7, 40, 0),
        "MLP_0/Linear_0": us(4, 20, 0),
        "MLP_0/Linear_1": us(3, 20, 0),
    }
    assert table(rows, "path", "total.cpu_ns", "total.gpu_busy_ns", "total.kernels") == {
        "MLP_0": (*us(400, 101), 7),
        "MLP_0/Linear_0": (*us(160, 44), 3),
        "MLP_0/Linear_1": (*us(200, 57), 4),
    }
    assert table(rows, "path", "recompute.cpu_ns", "recompute.kernels")["MLP_0"] == (0, 0)
    assert table(analysis.autograd, "forward_op backward_op", "calls", "linked_by", "gpu_busy_ns", "cpu_ns") == {
        ("aten::addmm", "AddmmBackward0"): (2, linked_by, *us(72, 160)),
        (None, "torch::autograd::AccumulateGrad"): (2, "open", *us(7, 40)),
    }
    (gpu,) = analysis.gpu
    assert (gpu.busy_ns, gpu.kernels) == (us(101), 7)


def test_backward_by_module():
    check_two_layers(analyse("backward_by_module"), "arrow")


def test_bwd_flops_measured():
    check_two_layers(analyse("bwd_flops_measured"), "arrow")


def test_cpu_backward_same_thread():
    check_two_layers(analyse("cpu_backward_same_thread"), "arrow")


def test_no_fwdbwd_flows():
    check_two_layers(analyse("no_fwdbwd_flows"), "sequence")
    (by_number,) = findings(analyse("no_fwdbwd_flows"), rule="linked_by_sequence")
    assert by_number.count == 2


@pytest.mark.parametrize("name", TWO_LAYERS[:3])
def test_links_by_arrow_need_no_doubt(name: str):
    assert not findings(analyse(name), rule="linked_by_sequence")


def test_no_python_frames():
    analysis = analyse("no_python_frames")
    assert modules(analysis) == []
    rest = unattributed(analysis)
    assert (rest.total.cpu_ns, rest.total.gpu_busy_ns, rest.total.kernels) == (*us(50, 25), 1)
    assert ops(analysis, "calls", "cpu_ns", "gpu_busy_ns") == {"aten::linear": (1, *us(50, 25))}
    (reason,) = findings(analysis, rule="no_modules")
    assert "with_stack" in reason.message
    assert any(figure.startswith("modules") for figure in reason.affects)


def test_recompute_reentrant():
    rows = modules(analyse("recompute_reentrant"))
    assert table(rows, "path", "parent", "calls", "forward.calls") == {
        "Stage_0": (None, 1, 1),
        "Stage_0/Layer_0": ("Stage_0", 1, 1),
    }
    assert table(rows, "path", "forward.cpu_ns", "forward.gpu_busy_ns") == {
        "Stage_0": us(100, 25),
        "Stage_0/Layer_0": us(80, 25),
    }
    assert table(rows, "path", "recompute.cpu_ns", "recompute.gpu_busy_ns") == {
        "Stage_0": us(80, 25),
        "Stage_0/Layer_0": us(80, 25),
    }
    assert table(rows, "path", "recompute.calls")["Stage_0/Layer_0"] == 1
    # CheckpointFunctionBackward lasts 300: 80 recompute, 150 MmBackward0 of the layer, 70 its own, the stage's.
    assert table(rows, "path", "backward.cpu_ns", "backward.self_cpu_ns", "backward.gpu_busy_ns") == {
        "Stage_0": us(220, 70, 53),
        "Stage_0/Layer_0": us(150, 150, 53),
    }


def test_same_module_label_two_stages():
    analysis = analyse("same_module_label_two_stages")
    assert table(analysis.inputs, "rank", "stage") == {0: 0, 1: 1}
    assert table(modules(analysis), "stage path", "rank", "calls", "forward.cpu_ns", "forward.gpu_busy_ns") == {
        (0, "Linear_0"): (0, 1, *us(100, 50)),
        (1, "Linear_0"): (1, 1, *us(300, 150)),
    }


def test_seq_shared_ops():
    analysis = analyse("seq_shared_ops")
    assert table(analysis.autograd, "forward_op backward_op", "calls", "linked_by", "gpu_busy_ns", "cpu_ns") == {
        ("aten::view", "ViewBackward0"): (1, "arrow", None, us(52)),
        ("aten::addmm", "AddmmBackward0"): (1, "arrow", None, us(51)),
        ("aten::bmm", "BmmBackward0"): (1, "arrow", None, us(50)),
    }


def test_seq_shared_ops_without_arrows(tmp_path: Path):
    """The same links by number alone: of the ops that share one, the last-started made the node."""
    document = json.loads((CASES / "seq_shared_ops" / "trace.json").read_text(encoding="utf-8"))
    document["traceEvents"] = [event for event in document["traceEvents"] if event.get("cat") != "fwdbwd"]
    (tmp_path / "trace.json").write_text(json.dumps(document), encoding="utf-8")
    assert table(tracetools.load(tmp_path).analysis.autograd, "backward_op", "forward_op", "linked_by", "cpu_ns") == {
        "ViewBackward0": ("aten::view", "sequence", us(52)),
        "AddmmBackward0": ("aten::addmm", "sequence", us(51)),
        "BmmBackward0": ("aten::bmm", "sequence", us(50)),
    }


def test_shared_module_two_parents():
    rows = modules(analyse("shared_module_two_parents"))
    assert table(rows, "path", "parent", "calls", "forward.cpu_ns", "forward.self_cpu_ns", "forward.gpu_busy_ns") == {
        "Net_0": (None, 1, *us(400, 100, 40)),
        "Net_0/Block_0": ("Net_0", 1, *us(150, 50, 20)),
        "Net_0/Block_0/Linear_0": ("Net_0/Block_0", 1, *us(100, 100, 20)),
        "Net_0/Block_1": ("Net_0", 1, *us(150, 50, 20)),
        "Net_0/Block_1/Linear_0": ("Net_0/Block_1", 1, *us(100, 100, 20)),
    }


def test_stage_unknown_pg():
    stages = table(analyse("stage_unknown_pg").inputs, "rank", "stage")
    # Unknown, or found from who sends to whom; never the rank.
    assert stages in (dict.fromkeys(range(4)), {0: 0, 1: 2, 2: 1, 3: 3})


def test_te_linear_no_gemm_op():
    rows = modules(analyse("te_linear_no_gemm_op"))
    assert table(rows, "path", "forward.cpu_ns", "forward.gpu_busy_ns", "backward.cpu_ns", "backward.gpu_busy_ns") == {
        "Linear_0": us(130, 30, 150, 64),
        "LayerNormLinear_0": us(130, 38, 0, 0),
    }
