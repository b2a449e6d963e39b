"""The synthetic samples: written by today's simulator, their READMEs' sums right, the analyzer's figures the same."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tracetools
from tests.simulator.presets import PRESETS
from tests.simulator.run import simulate
from tracetools.results import Analysis, ModuleTime

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
NAMES = ("te_small_batch", "te_pipeline")
ROW = re.compile(r"^\| (?P<figure>[^|]+) \| `(?P<sum>[^`]+)` \| (?P<value>\d+) \|$", re.MULTILINE)
ARITHMETIC = re.compile(r"[\d\s()+\-*/]+")


@cache
def analysis(name: str) -> Analysis:
    return tracetools.load(SAMPLES / f"synthetic_{name}" / "traces").analysis


def by_hand(name: str) -> dict[str, tuple[int, int]]:
    """Figure → (its sum worked out, the value beside it)."""
    text = (SAMPLES / f"synthetic_{name}" / "README.md").read_text(encoding="utf-8")
    found = {}
    for row in ROW.finditer(text):
        assert ARITHMETIC.fullmatch(row["sum"]), row["sum"]
        found[row["figure"]] = round(eval(row["sum"])), int(row["value"])
    return found


def value(name: str, start: str) -> int:
    (found,) = (value for figure, (_, value) in by_hand(name).items() if figure.startswith(start))
    return found


def module(name: str, path: str, rank: int = 0) -> ModuleTime:
    (row,) = (row for row in analysis(name).modules if row.path == path and row.rank == rank)
    return row


def truth(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((SAMPLES / f"synthetic_{name}" / "truth.json").read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize("name", NAMES)
def test_the_sums_are_right(name: str):
    assert len(by_hand(name)) >= 10
    assert {figure: pair for figure, pair in by_hand(name).items() if pair[0] != pair[1]} == {}


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_what_the_simulator_writes(name: str, tmp_path: Path):
    simulate(PRESETS[name], tmp_path)
    folder = SAMPLES / f"synthetic_{name}"
    written = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.json*"))
    assert written == sorted(path.relative_to(folder) for path in folder.rglob("*.json*"))
    for path in written:
        texts = [(root / path).read_bytes() for root in (tmp_path, folder)]
        if path.suffix == ".gz":
            # Other versions of zlib pack otherwise.
            texts = [gzip.decompress(text) for text in texts]
        assert texts[0] == texts[1], f"{path} is stale; run `make samples`"


def test_the_small_batch_is_what_its_readme_says():
    name = "te_small_batch"
    row = module(name, "layers.3")
    assert row.forward.cpu_ns == value(name, "forward of `layers.3` on the CPU")
    assert row.forward.gpu_busy_ns == value(name, "forward of `layers.3` on the GPU")
    assert row.backward.gpu_busy_ns == value(name, "backward of it")
    assert row.backward.grad_accumulation_ns == value(name, "gradient accumulation of")
    whole = analysis(name).gpu[0]
    assert (whole.kernels, whole.busy_ns) == (value(name, "pieces of GPU work"), value(name, "GPU busy"))
    assert whole.idle_ns > 0.9 * whole.window_ns


def test_the_pipeline_is_what_its_readme_says():
    name = "te_pipeline"
    proj = module(name, "blocks.2.self_attention.proj", 1)
    assert proj.calls == value(name, "forwards of a layer")
    assert proj.forward.gpu_busy_ns == value(name, "forward of `blocks.2")
    assert proj.backward.gpu_busy_ns == value(name, "its backward")
    assert proj.total.kernels == value(name, "kernels of that module")
    flops = truth(name)["flops"]["by_rank"]
    assert [row["forward"] for row in flops] == [value(name, f"forward FLOPs of rank {rank}") for rank in (0, 1)]
    assert flops[0]["wgrad"] == value(name, "weight gradients of rank 0")
    assert flops[0]["dgrad"] == value(name, "input gradients of rank 0")
    for row in truth(name)["pipeline"]["bubbles"]:
        assert row["bubble_ns"] * 100 > row["span_ns"] * value(name, "smallest bubble") * 0.95
