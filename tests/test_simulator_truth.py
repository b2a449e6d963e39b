"""The analyzer's figures equal the simulator's truth, on every preset without faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tracetools
from tests.simulator.faults import Fault
from tests.simulator.presets import PRESETS
from tests.simulator.run import simulate
from tests.test_invariants import check_invariants

Rows = dict[tuple[Any, ...], dict[str, Any]]

SECTIONS = {
    "modules": ("rank", "path", "parent"),
    "steps": ("rank", "step"),
    "gpu": ("rank", "device", "step"),
    "launches": ("rank",),
    "flops": ("rank",),
}
LATER = {
    "idle_by_cause",
}
"""Figures of the truth that the analyzer does not offer yet."""


REPLAYS = ("graphs",)
"""Presets in which all that multiplies is replayed from a CUDA graph, which tells no shapes."""


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, Any], dict[str, Any]]]:
    """(truth, analysis) of a preset, simulated once."""
    made: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    def run(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            simulate(PRESETS[name], folder)
            analysis = tracetools.load(folder / "traces", workers=1).analysis
            check_invariants(analysis)
            answer = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
            made[name] = answer, msgspec.json.decode(msgspec.json.encode(analysis))
        return made[name]

    return run


def keyed(rows: list[dict[str, Any]], key: tuple[str, ...]) -> Rows:
    found = {tuple(row[name] for name in key): row for row in rows}
    assert len(found) == len(rows)
    return found


def differences(true: Any, shown: Any, where: str) -> list[str]:
    """Every figure of the truth that is shown otherwise."""
    if isinstance(true, dict):
        return [
            line
            for name, value in true.items()
            if name not in LATER
            for line in differences(value, shown.get(name, "nothing"), f"{where}.{name}")
        ]
    return [] if true == shown else [f"{where}: true {true}, shown {shown}"]


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("preset", [name for name, job in PRESETS.items() if not job.faults])
def test_figures_equal_the_truth(run_of: Callable[[str], Any], preset: str, section: str) -> None:
    answer, document = run_of(preset)
    key = SECTIONS[section]
    if section == "flops":
        answer, document = answer["flops"], document["flops"]
        section = "by_rank"
    true, shown = keyed(answer[section], key), keyed(document[section], key)
    assert set(true) == set(shown)
    wrong = [line for each in true for line in differences(true[each], shown[each], str(each))]
    assert not [line for line in wrong if preset not in REPLAYS or not line.endswith("shown None")]


@pytest.mark.parametrize("preset", REPLAYS)
def test_what_a_graph_replays_is_not_counted_but_named(run_of: Callable[[str], Any], preset: str) -> None:
    answer, document = run_of(preset)
    assert all(row["total"] > 0 for row in answer["flops"]["by_rank"])
    assert [row["total"] for row in document["flops"]["by_rank"]] == [None] * len(answer["flops"]["by_rank"])
    assert {row["op"] for row in document["flops"]["uncounted"]} == {"(graph replay)"}
    assert "flops_uncounted" in {finding["rule"] for finding in document["findings"]}


def test_each_fault_is_named(tmp_path: Path) -> None:
    """Of a job with a different fault on every rank the analyzer says what is wrong where, and goes on."""
    simulate(PRESETS["faulty"], tmp_path)
    analysis = tracetools.load(tmp_path / "traces", workers=1).analysis
    check_invariants(analysis)
    found = {(finding.rank, finding.rule) for finding in analysis.findings}
    rank_of = {fault: rank for rank, faults in PRESETS["faulty"].faults.items() for fault in faults}
    assert {
        (rank_of[Fault.LOST_KERNELS], "lost_gpu_records"),
        (rank_of[Fault.UNTIMED_RECORDS], "starts_before_launch"),
        (rank_of[Fault.CORRELATION_ZERO], "correlation_zero"),
        (rank_of[Fault.CUT_RANK], "truncated"),
        (rank_of[Fault.BROKEN_ESCAPE], "bad_escape"),
        (None, "ranks_missing"),
        (None, "steps_not_common"),
    } <= found
    missing = rank_of[Fault.MISSING_RANK]
    assert [row.rank for row in analysis.inputs] == [rank for rank in range(8) if rank != missing]


def test_a_window_that_opens_later_has_fewer_steps(run_of: Callable[[str], Any]) -> None:
    _, document = run_of("two_hosts_skewed")
    shown = {row["rank"]: row["steps"] for row in document["inputs"]}
    assert shown == {0: [10, 11, 12], 1: [10, 11, 12], 2: [10, 11, 12], 3: [11, 12]}
