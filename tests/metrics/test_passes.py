"""Two passes of one rank: times from the timing pass, what stacks tell from the structure pass."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracetools
from tests.build import Builder, by_path
from tracetools.findings import Finding
from tracetools.results import Analysis
from tracetools.trace_file import MEASURED_KEY, METADATA_KEY

US = 1000


def recorded(kind: str, calls: tuple[int, ...], steps: int = 2, length: int = 40) -> Builder:
    """A pass of some steps; module `net` is called as often as said in each, `net.inner` once in each call."""
    job = Builder()
    job.header[METADATA_KEY] = {"pass": kind, "rank": 0}
    for step in range(steps):
        start = 1000 * step
        job.step(step + (10 if kind == "structure" else 2), start, 900)
        for call in range(calls[step % len(calls)]):
            at = start + 100 * call
            job.module("net", at, length)
            if kind == "structure":
                job.frame("model.py(5): forward", at + 1, length - 2)
            job.module("net.inner", at + 5, length - 10)
    return job


def analyzed(folder: Path, timing: Builder, structure: Builder, **options: object) -> Analysis:
    timing.write(folder / "rank-00000.trace.json")
    structure.write(folder / "rank-00000.structure.trace.json")
    return tracetools.load(folder, **options).analysis


def found(analysis: Analysis, rule: str) -> list[Finding]:
    return [each for each in analysis.findings if each.rule == rule]


def test_times_are_those_of_the_timing_pass(tmp_path: Path):
    analysis = analyzed(tmp_path, recorded("timing", (3,)), recorded("structure", (3,), steps=1, length=90))
    rows = by_path(analysis)
    assert (rows["net"].calls, rows["net"].forward.cpu_ns) == (6, 6 * 40 * US)
    assert (rows["net"].defined_at, rows["net.inner"].defined_at) == ("model.py:5", None)
    assert [(each.steps, Path(each.structure_path or "").name) for each in analysis.inputs] == [
        ((2, 3), "rank-00000.structure.trace.json")
    ]
    assert [each.count for each in found(analysis, "structure_pass")] == [1]
    assert not found(analysis, "passes_differ")


@pytest.mark.parametrize("steps", [None, [3]])
def test_passes_that_did_different_work(tmp_path: Path, steps: list[int] | None):
    analysis = analyzed(tmp_path, recorded("timing", (3,)), recorded("structure", (4,)), steps=steps)
    (finding,) = found(analysis, "passes_differ")
    assert (finding.count, finding.severity) == (2, "warning")
    assert "net, net.inner not called as often" in finding.message
    assert "net: 3 times a step in the timing pass, 4 in the structure pass" in finding.message


def test_one_chosen_step_is_compared_by_its_own_calls(tmp_path: Path):
    """Steps of 2 and 4 calls; the structure pass has 4 in each."""
    timing = recorded("timing", (2, 4))
    assert not found(analyzed(tmp_path, timing, recorded("structure", (4,)), steps=[3]), "passes_differ")
    assert found(analyzed(tmp_path, timing, recorded("structure", (4,)), steps=[2]), "passes_differ")


def test_a_pass_that_was_cut_short_is_not_compared(tmp_path: Path):
    structure = recorded("structure", (1,))
    structure.header[MEASURED_KEY] = {"complete": False, "reason": "SIGTERM came"}
    assert not found(analyzed(tmp_path, recorded("timing", (3,)), structure), "passes_differ")


def test_a_damaged_structure_pass_costs_no_time(tmp_path: Path):
    recorded("timing", (3,)).write(tmp_path / "rank-00000.trace.json")
    path = recorded("structure", (3,)).write(tmp_path / "rank-00000.structure.trace.json")
    path.write_bytes(path.read_bytes()[:-700])
    analysis = tracetools.load(tmp_path).analysis
    rows = by_path(analysis)
    assert (rows["net"].calls, rows["net"].defined_at) == (6, "model.py:5")
    assert {each.status for each in analysis.inputs} == {"read"}
    assert not [each for each in analysis.findings if each.severity == "error"]
    damage = [each for each in analysis.findings if each.affects == ("modules.defined_at",)]
    assert damage
    assert {each.path for each in damage} == {str(path)}


def test_two_structure_passes_of_a_rank_clash(tmp_path: Path):
    recorded("timing", (3,)).write(tmp_path / "rank-00000.trace.json")
    for name in "ab":
        recorded("structure", (3,)).write(tmp_path / f"rank-00000.{name}.trace.json")
    with pytest.raises(tracetools.UsageError, match="rank 0 appears in two files"):
        tracetools.load(tmp_path)
