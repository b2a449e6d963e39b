"""The analyzer's figures equal the simulator's truth, on every preset without faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tracetools
from tests.simulator.presets import PRESETS
from tests.simulator.run import simulate
from tests.test_invariants import check_invariants

Rows = dict[tuple[Any, ...], dict[str, Any]]

SECTIONS = {
    "modules": ("rank", "path", "parent"),
    "steps": ("rank", "step"),
    "gpu": ("rank", "device", "step"),
    "launches": ("rank",),
}
LATER = {
    "flops",  # counted by a later capability, here and in the phases of a module
    "idle_by_cause",
}
"""Figures of the truth that the analyzer does not offer yet."""


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
@pytest.mark.parametrize("preset", PRESETS)
def test_figures_equal_the_truth(run_of: Callable[[str], Any], preset: str, section: str) -> None:
    answer, document = run_of(preset)
    key = SECTIONS[section]
    true, shown = keyed(answer[section], key), keyed(document[section], key)
    assert set(true) == set(shown)
    assert not [line for each in true for line in differences(true[each], shown[each], str(each))]
