"""Which forward op made which backward node."""

from __future__ import annotations

from pathlib import Path

from tests.build import AUTOGRAD, MAIN, Builder
from tracetools.results import Analysis


def links(analysis: Analysis) -> dict[str, tuple[str | None, str]]:
    return {row.backward_op: (row.forward_op, row.linked_by) for row in analysis.autograd}


def rules(analysis: Analysis) -> set[str]:
    return {finding.rule for finding in analysis.findings}


def test_number_means_the_last_started_op_before_the_node(tmp_path: Path):
    job = Builder()
    job.op("aten::linear", 0, 30, seq=5)
    job.op("aten::addmm", 10, 10, seq=5)
    job.node("AddmmBackward0", 100, 10, seq=5)
    job.op("aten::later", 200, 10, seq=5)
    analysis = job.run(tmp_path)
    assert links(analysis) == {"AddmmBackward0": ("aten::addmm", "sequence")}
    assert "linked_by_sequence" in rules(analysis)


def test_numbers_of_two_threads_are_kept_apart(tmp_path: Path):
    # Both threads use number 5; each forward thread number belongs to the lane that holds most of its numbers.
    job = Builder()
    for seq, name in ((5, "aten::mm"), (6, "aten::relu")):
        job.op(name, seq * 10, 5, seq=seq)
    for seq, name in ((5, "aten::bmm"), (8, "aten::tanh")):
        job.op(name, seq * 10, 5, seq=seq, tid=AUTOGRAD + 1)
    job.node("MmBackward0", 200, 5, seq=5, thread=1)
    job.node("ReluBackward0", 210, 5, seq=6, thread=1)
    job.node("BmmBackward0", 220, 5, seq=5, thread=2)
    job.node("TanhBackward0", 230, 5, seq=8, thread=2)
    made = links(job.run(tmp_path))
    assert made["MmBackward0"][0] == "aten::mm"
    assert made["BmmBackward0"][0] == "aten::bmm"


def test_an_arrow_teaches_the_lane_of_a_thread(tmp_path: Path):
    # Numbers alone fit both lanes; one arrow says which lane thread 1 is.
    job = Builder()
    for tid, word in ((MAIN, "right"), (AUTOGRAD + 1, "wrong")):
        job.op(f"aten::{word}_a", 10, 5, seq=1, tid=tid)
        job.op(f"aten::{word}_b", 20, 5, seq=2, tid=tid)
    job.node("ABackward0", 100, 5, seq=1)
    job.node("BBackward0", 110, 5, seq=2)
    job.arrow(10, 100)
    assert links(job.run(tmp_path)) == {
        "ABackward0": ("aten::right_a", "arrow"),
        "BBackward0": ("aten::right_b", "sequence"),
    }


def test_an_ambiguous_thread_stays_open(tmp_path: Path):
    job = Builder()
    for tid in (MAIN, AUTOGRAD + 1):
        job.op("aten::mm", 10, 5, seq=1, tid=tid)
    job.node("MmBackward0", 100, 5, seq=1)
    analysis = job.run(tmp_path)
    assert links(analysis) == {"MmBackward0": (None, "open")}
    assert "backward_open" in rules(analysis)


def test_an_arrow_between_different_numbers_is_believed_and_named(tmp_path: Path):
    job = Builder()
    job.op("aten::mm", 10, 5, seq=1)
    job.op("aten::add", 20, 5, seq=2)
    job.node("MmBackward0", 100, 5, seq=1)
    job.arrow(20, 100)
    analysis = job.run(tmp_path)
    assert links(analysis) == {"MmBackward0": ("aten::add", "arrow")}
    assert "arrow_conflict" in rules(analysis)


def test_node_made_before_the_window_is_open(tmp_path: Path):
    job = Builder()
    job.node("MmBackward0", 100, 5, seq=1)
    job.node("torch::autograd::AccumulateGrad", 110, 5)
    analysis = job.run(tmp_path)
    assert links(analysis) == {
        "MmBackward0": (None, "open"),
        "torch::autograd::AccumulateGrad": (None, "open"),
    }
    assert [finding.count for finding in analysis.findings if finding.rule == "backward_open"] == [1]


def test_traces_before_engine_records_have_their_backward_ops_as_nodes(tmp_path: Path):
    job = Builder()
    job.module("net", 0, 30)
    job.op("aten::mm", 10, 5, seq=1)
    job.span("cpu_op", "MmBackward", 100, 20, AUTOGRAD, **{"Sequence number": 1, "Fwd thread id": 1})
    job.span("cpu_op", "aten::mm", 105, 10, AUTOGRAD)
    job.span("cpu_op", "torch::autograd::AccumulateGrad", 130, 5, AUTOGRAD)
    analysis = job.run(tmp_path)
    assert links(analysis)["MmBackward"] == ("aten::mm", "sequence")
    net = analysis.modules[0]
    assert (net.backward.cpu_ns, net.backward.grad_accumulation_cpu_ns) == (20_000, 5_000)


def test_an_arrow_means_the_innermost_op_that_starts_there(tmp_path: Path):
    job = Builder()
    job.op("aten::linear", 10, 30, seq=5)
    job.op("aten::addmm", 10, 20, seq=5)
    job.node("AddmmBackward0", 100, 10, seq=5)
    job.arrow(10, 100)
    assert links(job.run(tmp_path)) == {"AddmmBackward0": ("aten::addmm", "arrow")}
