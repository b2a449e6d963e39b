"""Communication on the CPU, as torch.distributed.pipelining over gloo records it.

A send and a receive peek at the autograd number that the next op will take, and run for as long as they wait. Gloo's
own ranges are open until somebody waits for the transfer, across whatever the thread does meanwhile.
"""

from __future__ import annotations

from pathlib import Path

from tests.build import Builder, by_path
from tracetools.results import Analysis

US = 1000


def pipelined(folder: Path) -> Analysis:
    """A step of 1000 us: 20 of forward, 40 of backward, and 700 in which the thread waits for another stage."""
    job = Builder()
    job.step(3, 0, 1000)
    job.module("stage", 10, 20)
    job.op("aten::mm", 12, 10, seq=7)
    job.op("c10d::send", 40, 100, seq=8)
    job.span("user_annotation", "gloo:send", 130, 900)
    job.span("user_annotation", "PP:0F1", 200, 100)
    job.span("user_annotation", "gloo:send", 210, 860)
    job.op("c10d::recv_", 300, 600, seq=8)
    job.span("user_annotation", "gloo:recv", 890, 20)
    job.node("MmBackward0", 920, 40, seq=7)
    job.arrow(12, 920)
    return job.run(folder)


def test_waiting_for_a_stage_is_no_forward(tmp_path: Path):
    analysis = pipelined(tmp_path)
    rows = by_path(analysis)
    assert (rows["stage"].forward.cpu_ns, rows["stage"].backward.cpu_ns) == (20 * US, 40 * US)
    assert rows["(unattributed)"].forward.cpu_ns == 0
    assert rows["(unattributed)"].other.cpu_ns == 700 * US
    assert {(row.name, row.phase): row.cpu_ns for row in analysis.ops if row.name.startswith("c10d")} == {
        ("c10d::send", "other"): 100 * US,
        ("c10d::recv_", "other"): 600 * US,
    }
    assert [(row.wall_ns, row.forward_ns, row.backward_ns) for row in analysis.steps] == [(1000 * US, 20 * US, 40 * US)]


def test_a_send_makes_no_backward_node_by_its_number(tmp_path: Path):
    """Without arrows: the op with the number of the node that starts last is its maker, but no send is."""
    job = Builder()
    job.module("stage", 0, 30)
    job.op("aten::mm", 5, 10, seq=8)
    job.op("c10d::send", 40, 100, seq=8)
    job.node("MmBackward0", 200, 40, seq=8)
    assert by_path(job.run(tmp_path))["stage"].backward.cpu_ns == 40 * US


def test_a_collective_in_a_module_belongs_to_its_phase(tmp_path: Path):
    job = Builder()
    job.module("stage", 0, 300)
    job.op("aten::mm", 5, 10, seq=8)
    job.op("c10d::allreduce_", 40, 100, seq=9)
    assert by_path(job.run(tmp_path))["stage"].forward.cpu_ns == 300 * US


def test_transfers_under_way_are_counted_and_clip_nothing(tmp_path: Path):
    analysis = pipelined(tmp_path)
    found = {row.name: (row.calls, row.cpu_ns) for row in analysis.annotations}
    assert found == {
        "ProfilerStep#3": (1, 1000 * US),
        "PP:0F1": (1, 100 * US),
        "gloo:send": (2, (1070 - 130) * US),
        "gloo:recv": (1, 20 * US),
    }
    assert "nesting_clipped" not in {each.rule for each in analysis.findings}
