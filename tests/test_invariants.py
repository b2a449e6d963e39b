"""What holds of every analysis, whatever the trace; `check_invariants` is applied to all cases and all real traces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tracetools.findings import sort_key
from tracetools.results import SCHEMA_VERSION, Analysis, BackwardTime, GpuTime, ModuleTime, PhaseTime, RankFlops

PHASES = ("forward", "backward", "recompute", "other", "total")


def check_invariants(analysis: Analysis) -> None:
    """Assert every rule of the figures that one analysis can show."""
    assert analysis.schema_version == SCHEMA_VERSION
    check_keys(analysis)
    check_numbers(analysis)
    check_gpu(analysis)
    for rank in {row.rank for row in analysis.modules}:
        rows = [row for row in analysis.modules if row.rank == rank]
        check_module_phases(rows)
        check_module_tree(rows)
        check_nothing_lost(rows, [row for row in analysis.gpu if row.rank == rank])
    for row in analysis.flops.by_rank:
        check_flops(row, [each for each in analysis.modules if each.rank == row.rank])
    for step in analysis.flops.by_step:
        assert (step.model or 0) <= (step.executed or 0)
        assert (step.model_ideal_ns or 0) <= (step.ideal_ns or 0) or step.ideal_ns is None
    check_ops(analysis)
    check_steps(analysis)
    check_launches(analysis)


def ascending(ranks: list[int | None]) -> bool:
    """Ranks in order, those of unnamed files together at one end."""
    named = sorted(rank for rank in ranks if rank is not None)
    unnamed = [None] * ranks.count(None)
    return ranks in (unnamed + named, named + unnamed)


def check_keys(analysis: Analysis) -> None:
    """Each section's key is unique, and ranks ascend; findings are sorted worst first."""
    unique([(row.path,) for row in analysis.inputs])
    unique([(row.rank, row.path, row.parent) for row in analysis.modules])
    unique([(row.rank, row.name, row.phase) for row in analysis.ops])
    unique([(row.rank, row.name) for row in analysis.annotations])
    unique([(row.rank, row.forward_op, row.backward_op, row.linked_by) for row in analysis.autograd])
    unique([(row.rank, row.step) for row in analysis.steps])
    unique([(row.rank, row.device, row.step) for row in analysis.gpu])
    unique([(row.rank,) for row in analysis.launches])
    for section in ("inputs", "modules", "ops", "annotations", "autograd", "steps", "gpu", "launches"):
        assert ascending([row.rank for row in getattr(analysis, section)]), section
    assert list(analysis.findings) == sorted(analysis.findings, key=sort_key)


def unique(keys: list[tuple[Any, ...]]) -> None:
    assert len(set(keys)) == len(keys), [key for key in set(keys) if keys.count(key) > 1]


def check_numbers(analysis: Analysis) -> None:
    """No count or time is below zero, and the document is JSON with whole numbers only.

    The number of a device is what the file says.
    """

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if name != "device":
                    walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)
        else:
            assert value is None or isinstance(value, str | int), value
            assert not isinstance(value, int) or value >= 0, value

    document = msgspec.json.decode(msgspec.json.encode(analysis))
    for section in ("modules", "ops", "annotations", "autograd", "steps", "gpu", "launches", "findings"):
        walk(document[section])


def check_gpu(analysis: Analysis) -> None:
    for row in analysis.gpu:
        assert row.busy_ns + row.idle_ns == row.window_ns, row
        assert row.compute_ns + row.exposed_communication_ns + row.exposed_copy_ns == row.busy_ns, row
        assert row.exposed_communication_ns <= row.communication_ns <= row.busy_ns, row
        # A step's window may hold work of other steps too.
        assert row.busy_ns <= row.kernel_ns or row.step is not None, row
        assert row.compute_ns <= row.busy_ns, row
    devices: dict[tuple[int | None, int], list[GpuTime]] = defaultdict(list)
    for row in analysis.gpu:
        devices[row.rank, row.device].append(row)
    for rows in devices.values():
        (whole,) = (row for row in rows if row.step is None)
        steps = [row for row in rows if row.step is not None]
        # Windows of steps lie end to end inside the rank's; each piece of work belongs to one step at most.
        assert sum(row.window_ns for row in steps) <= whole.window_ns
        assert sum(row.busy_ns for row in steps) <= whole.busy_ns
        assert sum(row.kernels for row in steps) <= whole.kernels
        assert sum(row.kernel_ns for row in steps) <= whole.kernel_ns
        if sum(row.window_ns for row in steps) == whole.window_ns:
            assert sum(row.busy_ns for row in steps) == whole.busy_ns


def check_module_phases(rows: list[ModuleTime]) -> None:
    """Inside one row: self within own, busy within kernel time, and phases sum to the total."""
    for row in rows:
        for phase in PHASES:
            time: PhaseTime = getattr(row, phase)
            assert 0 <= time.self_cpu_ns <= time.cpu_ns, (row.path, phase)
            if time.kernels is None:
                assert time.gpu_busy_ns is time.self_gpu_busy_ns is time.kernel_ns is None, (row.path, phase)
            else:
                assert 0 <= time.self_gpu_busy_ns <= time.gpu_busy_ns <= time.kernel_ns, (row.path, phase)
        parts = [getattr(row, phase) for phase in PHASES[:-1]]
        total = row.total
        gradients = row.backward.grad_accumulation_cpu_ns + row.backward.grad_sync_cpu_ns
        assert sum(part.cpu_ns for part in parts) + gradients == total.cpu_ns, row.path
        if total.kernels is None:
            continue
        outside = (row.backward.grad_accumulation_ns or 0) + (row.backward.grad_sync_ns or 0)
        assert sum(part.kernels for part in parts) <= total.kernels, row.path
        assert sum(part.kernel_ns for part in parts) + outside <= total.kernel_ns or outside, row.path
        if not outside and not gradients:
            assert sum(part.kernels for part in parts) == total.kernels, row.path
            assert sum(part.kernel_ns for part in parts) == total.kernel_ns, row.path
        busy = [part.gpu_busy_ns for part in parts]
        assert max(busy) <= total.gpu_busy_ns <= sum(busy) + outside, row.path


@dataclass(frozen=True)
class Node:
    """All rows of one path (a module called from two parents has several), and the rows right below."""

    path: str
    own: list[ModuleTime]
    children: list[ModuleTime]


def nodes(rows: list[ModuleTime]) -> Iterable[Node]:
    by_path: dict[str, list[ModuleTime]] = defaultdict(list)
    by_parent: dict[str | None, list[ModuleTime]] = defaultdict(list)
    for row in rows:
        by_path[row.path].append(row)
        by_parent[row.parent].append(row)
    assert set(by_parent) - {None} <= set(by_path), "a parent without a row of its own"
    for row in rows:
        assert (row.parent is None) == (row.depth == 0), row.path
    return [Node(path, own, by_parent[path]) for path, own in by_path.items()]


def check_module_tree(rows: list[ModuleTime]) -> None:
    """A parent holds its children: self figures and what is below sum to it, and busy time is a union."""
    for node in nodes(rows):
        for phase in PHASES:
            check_node(node, phase)
        assert sum(row.backward.grad_accumulation_cpu_ns for row in node.children) <= sum(
            row.backward.grad_accumulation_cpu_ns for row in node.own
        ), node.path
        for column in ("grad_accumulation_ns", "grad_sync_ns"):
            own = sum(getattr(row.backward, column) or 0 for row in node.own)
            assert all((getattr(row.backward, column) or 0) <= own for row in node.children), (node.path, column)
    for phase in PHASES:
        roots = sum(getattr(row, phase).cpu_ns for row in rows if row.parent is None)
        assert sum(getattr(row, phase).self_cpu_ns for row in rows) == roots, phase


def check_node(node: Node, phase: str) -> None:
    def own(column: str) -> int:
        return sum(getattr(getattr(row, phase), column) or 0 for row in node.own)

    def below(column: str) -> list[int]:
        return [getattr(getattr(row, phase), column) or 0 for row in node.children]

    where = (node.path, phase)
    assert own("self_cpu_ns") + sum(below("cpu_ns")) == own("cpu_ns"), where
    assert sum(below("flops")) <= own("flops"), where
    assert sum(below("kernels")) <= own("kernels"), where
    assert sum(below("kernel_ns")) <= own("kernel_ns"), where
    busy, children = own("gpu_busy_ns"), below("gpu_busy_ns")
    widest, longest = max(children, default=0), min(sum(children), busy)
    assert widest <= busy, where
    # The union of the children is at least the longest of them, at most their sum; so with one child it is exact.
    assert busy - longest <= own("self_gpu_busy_ns") <= busy - widest, where


def check_flops(rank: RankFlops, rows: list[ModuleTime]) -> None:
    """Parts sum to the total, and modules sum to the rank, each phase for itself."""
    if rank.total is None:
        assert all(row.total.flops is None for row in rows)
        return
    parts = rank.forward, rank.dgrad, rank.wgrad, rank.unsplit, rank.recompute, rank.optimizer, rank.other
    assert sum(part or 0 for part in parts) == rank.total == rank.executed
    assert 0 <= (rank.model or 0) <= rank.total
    assert (rank.known_kernel_ns or 0) <= (rank.compute_kernel_ns or 0)
    roots = [row for row in rows if row.parent is None]
    for phase, expected in (
        ("forward", rank.forward),
        ("recompute", rank.recompute),
        ("other", (rank.optimizer or 0) + (rank.other or 0)),
        ("total", rank.total),
    ):
        assert sum(getattr(row, phase).flops for row in roots) == expected, phase
    for kind in ("dgrad", "wgrad", "unsplit"):
        assert sum(getattr(row.backward, f"{kind}_flops") for row in roots) == getattr(rank, kind), kind
    for row in rows:
        back = row.backward
        assert back.dgrad_flops + back.wgrad_flops + back.unsplit_flops == back.flops, row.path


def check_nothing_lost(rows: list[ModuleTime], gpu: list[GpuTime]) -> None:
    """Roots and rows in brackets hold every piece of GPU work once."""
    whole = [row for row in gpu if row.step is None]
    roots = [row.total for row in rows if row.parent is None]
    if not whole:
        assert not any(root.kernels for root in roots)
        return
    assert sum(root.kernels or 0 for root in roots) == sum(row.kernels for row in whole)
    assert sum(root.kernel_ns or 0 for root in roots) == sum(row.kernel_ns for row in whole)


def check_ops(analysis: Analysis) -> None:
    for row in analysis.ops:
        assert row.self_cpu_ns <= row.cpu_ns, row
        assert (row.gpu_busy_ns is None) == (row.kernel_ns is None), row
        assert row.kernel_ns is None or row.gpu_busy_ns <= row.kernel_ns, row
    for row in analysis.annotations:
        assert row.calls > 0, row
        assert (row.gpu_busy_ns is None) == (row.kernel_ns is None), row
        assert row.kernel_ns is None or row.gpu_busy_ns <= row.kernel_ns, row
    for row in analysis.autograd:
        assert row.linked_by in ("arrow", "sequence", "open"), row
        assert (row.forward_op is None) == (row.linked_by == "open"), row


def check_steps(analysis: Analysis) -> None:
    found = {row.rank: row.steps for row in analysis.inputs}
    for row in analysis.steps:
        # Without steps the whole recording is one row.
        assert row.step in (found[row.rank] or (None,)), row
    for row in analysis.gpu:
        assert row.step is None or row.step in found[row.rank], row


def check_launches(analysis: Analysis) -> None:
    ranks = {row.rank for row in analysis.inputs}
    for row in analysis.launches:
        assert row.rank in ranks
        assert row.without_kernel <= row.count, row
        if (ahead := row.run_ahead_ns) is not None:
            assert ahead.p50 <= ahead.p95 <= ahead.max, row
    linked = {row.rank: row.count > row.without_kernel for row in analysis.launches}
    assert {row.rank: row.run_ahead_ns is not None for row in analysis.launches} == linked


def gpu_row(**figures: int) -> GpuTime:
    zeros = dict.fromkeys(GpuTime.__struct_fields__, 0)
    return GpuTime(**{**zeros, "rank": 0, "step": None, **figures})


@pytest.mark.parametrize(
    "figures",
    [
        {"window_ns": 10, "busy_ns": 5, "compute_ns": 5, "kernel_ns": 5, "idle_ns": 4},
        {"window_ns": 5, "busy_ns": 5, "compute_ns": 4, "kernel_ns": 5},
        {"window_ns": 5, "busy_ns": 5, "compute_ns": 5, "kernel_ns": 4},
    ],
)
def test_a_broken_gpu_row_is_noticed(figures: dict[str, int]):
    empty: dict[str, Any] = dict.fromkeys(Analysis.__struct_fields__, ())
    analysis = Analysis(**{**empty, "gpu": (gpu_row(**figures),)})
    with pytest.raises(AssertionError):
        check_gpu(analysis)


def phase_time(
    calls: int = 0, cpu: int = 0, self_cpu: int = 0, busy: int = 0, self_busy: int = 0, flops: int = 0
) -> PhaseTime:
    return PhaseTime(calls, cpu, self_cpu, busy, self_busy, kernel_ns=busy, kernels=1, flops=flops)


def module_row(path: str, parent: str | None, time: PhaseTime) -> ModuleTime:
    none = PhaseTime(0, 0, 0, 0, 0, 0, 0, 0)
    backward = BackwardTime(*msgspec.structs.astuple(none), 0, 0, 0, 0, 0, 0, 0)
    depth = 0 if parent is None else 1
    return ModuleTime(0, None, path, parent, "M", 1, depth, "fqn", time, backward, none, none, time, None)


@pytest.mark.parametrize(
    ("parent", "child"),
    [
        (phase_time(cpu=10, self_cpu=1), phase_time(cpu=8, self_cpu=8)),
        (phase_time(busy=5, self_busy=5), phase_time(busy=6, self_busy=6)),
        (phase_time(busy=5, self_busy=1), phase_time(busy=3, self_busy=3)),
        (phase_time(flops=5), phase_time(flops=6)),
    ],
)
def test_a_broken_module_tree_is_noticed(parent: PhaseTime, child: PhaseTime):
    with pytest.raises(AssertionError):
        check_module_tree([module_row("A", None, parent), module_row("A/B", "A", child)])
