"""Module time on traces built by hand; every figure is in the few lines above it."""

from __future__ import annotations

from pathlib import Path

from tests.build import AUTOGRAD, Builder, by_path

US = 1000


def test_qualified_names_forward_and_backward(tmp_path: Path):
    job = Builder()
    job.module("", 0, 100)
    job.module("blocks.0", 10, 60)
    job.op("aten::addmm", 20, 30, seq=5)
    job.kernel(25, 40, 8)
    job.node("AddmmBackward0", 200, 50, seq=5)
    job.kernel(210, 220, 11, tid=AUTOGRAD)
    job.arrow(20, 200)
    rows = by_path(job.run(tmp_path))
    block, root = rows["blocks.0"], rows["(root)"]
    assert (root.parent, block.parent, block.class_, block.source) == (None, "(root)", "my.Net", "fqn")
    assert (block.calls, block.forward.cpu_ns, block.forward.gpu_busy_ns) == (1, 60 * US, 8 * US)
    assert (block.backward.calls, block.backward.cpu_ns, block.backward.gpu_busy_ns) == (1, 50 * US, 11 * US)
    assert (root.forward.cpu_ns, root.forward.self_cpu_ns) == (100 * US, 40 * US)
    assert (root.backward.cpu_ns, root.backward.self_cpu_ns, root.backward.self_gpu_busy_ns) == (50 * US, 0, 0)
    assert (root.total.cpu_ns, root.total.gpu_busy_ns, root.total.kernels) == (150 * US, 19 * US, 2)


def test_qualified_names_win_over_python_frames(tmp_path: Path):
    job = Builder()
    job.frame("nn.Module: Net_0", 0, 100)
    job.module("", 5, 90)
    assert list(by_path(job.run(tmp_path))) == ["(root)", "(unattributed)", "(optimizer)"]


def test_module_under_two_parents_has_a_row_under_each(tmp_path: Path):
    job = Builder()
    job.module("a", 0, 20)
    job.module("shared", 5, 10)
    job.module("b", 30, 20)
    job.module("shared", 35, 12)
    rows = by_path(job.run(tmp_path))
    assert rows["a > shared"].forward.cpu_ns == 10 * US
    assert rows["b > shared"].forward.cpu_ns == 12 * US


def test_module_that_calls_itself_counts_once(tmp_path: Path):
    job = Builder()
    job.module("net", 0, 100)
    job.module("net", 10, 50)
    net = by_path(job.run(tmp_path))["net"]
    assert (net.calls, net.forward.cpu_ns, net.forward.self_cpu_ns) == (1, 100 * US, 100 * US)


def test_backward_called_inside_a_forward_is_not_forward(tmp_path: Path):
    job = Builder()
    job.module("trainer", 0, 100)
    job.op("aten::mm", 10, 10, seq=1)
    job.span("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 40, 30, **{"Sequence number": 1})
    trainer = by_path(job.run(tmp_path))["trainer"]
    assert (trainer.forward.cpu_ns, trainer.backward.cpu_ns) == (70 * US, 30 * US)


def checkpointed_without_frames() -> Builder:
    """Non-re-entrant: the recompute runs in the first node that asks for a saved tensor, with no Python frame."""
    job = Builder()
    job.module("", 0, 100)
    job.module("block", 10, 80)
    job.module("block.linear", 20, 20)
    job.op("aten::addmm", 25, 10, seq=1)
    job.op("aten::relu", 60, 10, seq=2)
    job.node("ReluBackward0", 200, 100, seq=2)
    job.module("block", 210, 60, tid=AUTOGRAD)
    job.module("block.linear", 220, 20, tid=AUTOGRAD)
    job.op("aten::addmm", 225, 10, seq=7, tid=AUTOGRAD)
    job.kernel(226, 240, 5, tid=AUTOGRAD)
    job.node("AddmmBackward0", 310, 40, seq=1)
    return job


def test_recompute_is_the_place_of_the_forward(tmp_path: Path):
    rows = by_path(checkpointed_without_frames().run(tmp_path))
    assert list(rows) == ["(root)", "block", "block.linear", "(unattributed)", "(optimizer)"]
    assert rows["block"].recompute.calls == 1
    assert rows["block"].recompute.cpu_ns == 60 * US
    assert rows["block.linear"].recompute.cpu_ns == 20 * US
    assert rows["block.linear"].recompute.gpu_busy_ns == 5 * US
    assert rows["block"].backward.cpu_ns == (100 - 60 + 40) * US
    assert rows["block.linear"].backward.cpu_ns == 40 * US
    assert rows["block"].calls == 1


def test_what_the_checkpoint_itself_costs_belongs_to_its_caller(tmp_path: Path):
    job = checkpointed_without_frames()
    job.frame("torch/utils/checkpoint.py(1111): unpack_hook", 205, 70, tid=AUTOGRAD)
    rows = by_path(job.run(tmp_path))
    assert rows["block"].recompute.cpu_ns == 60 * US
    assert rows["(root)"].recompute.cpu_ns == 70 * US
    assert rows["(root)"].recompute.self_cpu_ns == 10 * US
    assert rows["block"].backward.cpu_ns == (100 - 70 + 40) * US


def test_recomputed_op_outside_modules_is_unattributed_without_a_clue(tmp_path: Path):
    job = Builder()
    job.module("net", 0, 50)
    job.op("aten::relu", 10, 10, seq=2)
    job.node("ReluBackward0", 100, 50, seq=2)
    job.op("aten::mul", 110, 20, seq=9, tid=AUTOGRAD)
    rows = by_path(job.run(tmp_path))
    assert rows["net"].recompute.cpu_ns == 0
    assert rows["(unattributed)"].recompute.cpu_ns == 20 * US
    assert rows["net"].backward.cpu_ns == 30 * US


def test_reentrant_checkpoint_without_modules_in_it_belongs_to_its_caller(tmp_path: Path):
    job = Builder()
    job.module("net", 0, 50)
    job.op("CheckpointFunction", 10, 30, seq=3)
    job.op("aten::mm", 15, 10)
    job.node("CheckpointFunctionBackward", 100, 100, seq=3)
    job.op("aten::mm", 110, 20, seq=40, tid=AUTOGRAD)
    job.span(
        "cpu_op",
        "autograd::engine::evaluate_function: MmBackward0",
        140,
        30,
        AUTOGRAD,
        **{"Sequence number": 40, "Fwd thread id": 2},
    )
    net = by_path(job.run(tmp_path))["net"]
    assert net.forward.cpu_ns == 50 * US
    assert net.recompute.cpu_ns == 20 * US
    assert net.backward.cpu_ns == (100 - 20) * US


def test_gradient_accumulation_and_its_all_reduce_have_columns(tmp_path: Path):
    job = Builder()
    job.module("net", 0, 50)
    job.op("aten::mm", 10, 10, seq=2)
    job.node("MmBackward0", 100, 20, seq=2)
    job.node("torch::autograd::AccumulateGrad", 130, 30)
    job.kernel(135, 150, 4, name="add", tid=AUTOGRAD)
    job.kernel(140, 154, 40, name="ncclDevKernel_AllReduce", tid=AUTOGRAD, stream=20)
    net = by_path(job.run(tmp_path))["net"]
    assert net.backward.cpu_ns == 20 * US
    assert net.backward.gpu_busy_ns == 0
    assert (net.backward.grad_accumulation_ns, net.backward.grad_accumulation_cpu_ns, net.backward.grad_sync_ns) == (
        4 * US,
        30 * US,
        40 * US,
    )
    assert net.total.gpu_busy_ns == 44 * US


def test_gradients_sent_on_the_cpu_are_not_accumulated(tmp_path: Path):
    job = Builder()
    job.module("net", 0, 50)
    job.op("aten::mm", 10, 10, seq=2)
    job.node("MmBackward0", 100, 20, seq=2)
    job.node("torch::autograd::AccumulateGrad", 130, 30)
    job.op("c10d::allreduce_", 135, 20, tid=AUTOGRAD)
    net = by_path(job.run(tmp_path))["net"]
    assert (net.backward.grad_accumulation_cpu_ns, net.backward.grad_sync_cpu_ns, net.total.cpu_ns) == (
        10 * US,
        20 * US,
        100 * US,
    )


def test_ops_of_a_data_loader_are_not_forward(tmp_path: Path):
    job = Builder()
    job.span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 40)
    job.op("aten::stack", 10, 20, seq=1)
    job.op("aten::mm", 50, 10, seq=1)
    analysis = job.run(tmp_path)
    assert {row.name: row.phase for row in analysis.ops} == {"aten::stack": "other", "aten::mm": "forward"}


def test_optimizer_has_a_row(tmp_path: Path):
    """Python between its ops counts too: the range is longer than they are."""
    job = Builder()
    job.span("user_annotation", "Optimizer.step#AdamW.step", 0, 100)
    job.op("aten::_foreach_add_", 10, 50)
    job.op("aten::_foreach_mul_", 110, 7)
    job.kernel(20, 30, 7)
    analysis = job.run(tmp_path)
    rows = by_path(analysis)
    assert rows["(optimizer)"].other.cpu_ns == 100 * US
    assert analysis.steps[0].optimizer_ns == 100 * US
    assert rows["(unattributed)"].total.cpu_ns == 7 * US
    assert rows["(optimizer)"].other.gpu_busy_ns == 7 * US


def test_forward_inside_an_optimizer_closure_stays_forward(tmp_path: Path):
    """Lightning runs forward and backward in a closure that it hands to the optimizer."""
    job = Builder()
    job.span("user_annotation", "Optimizer.step#AdamW.step", 0, 100)
    job.module("(root)", 10, 30)
    job.op("aten::linear", 15, 20, seq=1)
    job.op("aten::add_", 60, 30)
    rows = by_path(job.run(tmp_path))
    assert rows["(root)"].calls == 1
    assert rows["(root)"].forward.cpu_ns == 30 * US
    assert rows["(optimizer)"].other.cpu_ns == (100 - 30) * US


def test_backward_inside_an_optimizer_closure_stays_backward(tmp_path: Path):
    job = Builder()
    job.module("net", 0, 20)
    job.op("aten::mm", 5, 10, seq=1)
    job.span("user_annotation", "Optimizer.step#LBFGS.step", 100, 100)
    job.span("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 120, 30, **{"Sequence number": 1})
    rows = by_path(job.run(tmp_path))
    assert rows["net"].backward.cpu_ns == 30 * US
    assert rows["(optimizer)"].other.cpu_ns == (100 - 30) * US


def two_steps() -> Builder:
    job = Builder()
    for number, start in ((4, 0), (5, 100)):
        job.span("user_annotation", f"ProfilerStep#{number}", start, 100)
        job.module("net", start + 10, 20 + number)
        job.kernel(start + 15, start + 90, 20)
    return job


def test_steps_are_pooled_or_chosen(tmp_path: Path):
    job = two_steps()
    both = by_path(job.run(tmp_path))["net"]
    assert (both.calls, both.forward.cpu_ns, both.forward.kernels) == (2, (24 + 25) * US, 2)
    one = job.run(tmp_path, steps=[5])
    net = by_path(one)["net"]
    assert (net.calls, net.forward.cpu_ns, net.forward.kernels) == (1, 25 * US, 1)
    assert [row.step for row in one.steps] == [5]
    assert [(row.step, row.window_ns) for row in one.gpu] == [(None, 120 * US), (5, 100 * US)]


def test_cpu_only_trace_has_no_gpu_figures(tmp_path: Path):
    job = Builder()
    job.module("net", 0, 20)
    analysis = job.run(tmp_path)
    net = by_path(analysis)["net"]
    assert (net.total.gpu_busy_ns, net.total.kernel_ns, net.backward.grad_sync_ns) == (None, None, None)
    assert "cpu_only" in {finding.rule for finding in analysis.findings}
