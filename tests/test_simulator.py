"""The simulator agrees with itself: textbook bubbles, closed formulas, sums of causes, the same bytes twice."""

from __future__ import annotations

import ast
import gzip
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.simulator import vocabulary
from tests.simulator.cluster import Cluster
from tests.simulator.job import Job, plays_of
from tests.simulator.kineto import Writer
from tests.simulator.machine import IDEAL, Machine
from tests.simulator.player import Player
from tests.simulator.presets import PRESETS
from tests.simulator.recorder import Sizes, Style
from tests.simulator.run import simulate
from tests.simulator.schedules import SCHEDULES, gpipe
from tests.test_real_traces import FILES

FOLDER = Path(__file__).resolve().parent / "simulator"
REAL = [path for path in FILES if path.stat().st_size > 1000]
CHAIN = Job(
    "chain",
    sizes=Sizes(sequence=1024, hidden=1024),
    machine=replace(IDEAL, queue_depth=1 << 30),
    shape="linears",
    optimizer=False,
    layers=16,
    micro_batches=8,
    pipeline=4,
    steps=1,
)


@pytest.fixture(scope="module")
def truth_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Job], dict[str, Any]]:
    return lambda job: simulate(job, tmp_path_factory.mktemp("simulated"))


def rows(truth: dict[str, Any], path: str) -> list[dict[str, Any]]:
    return [row for row in truth["modules"] if row["path"] == path]


def window(truth: dict[str, Any], rank: int = 0) -> dict[str, Any]:
    return next(row for row in truth["gpu"] if row["rank"] == rank and row["step"] is None)


def test_it_imports_nothing_of_tracetools():
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] in ("tracetools", "collectors")], path


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_every_schedule_does_everything_once(schedule: str, stages: int):
    chunks = 2 if schedule == "interleaved" else 1
    for stage in range(stages):
        actions = SCHEDULES[schedule](stage, stages, 8, chunks)
        kinds = "FIW" if schedule == "zero_bubble" else "FB"
        assert sorted(actions) == sorted(itertools.product(kinds, range(chunks), range(8)))


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4)])
@pytest.mark.parametrize("batches", [4, 8])
def test_without_overhead_the_bubble_is_the_textbook_s(
    truth_of: Callable[[Job], Any], schedule: str, chunks: int, batches: int
):
    job = replace(CHAIN, schedule=schedule, chunks=chunks, micro_batches=batches)
    for row in truth_of(job)["pipeline"]["bubbles"]:
        share = Fraction(job.pipeline - 1, chunks * batches + job.pipeline - 1)
        assert row["bubble_ns"] * share.denominator == row["span_ns"] * share.numerator
        assert row["ideal_share"] == float(share)


def test_split_backward_makes_the_bubble_smaller(truth_of: Callable[[Job], Any]):
    def bubble(schedule: str) -> int:
        return sum(row["bubble_ns"] for row in truth_of(replace(CHAIN, schedule=schedule))["pipeline"]["bubbles"])

    assert bubble("zero_bubble") < bubble("1f1b") / 2


def test_a_slow_stage_is_imbalance_for_the_others(truth_of: Callable[[Job], Any]):
    even, slow = truth_of(PRESETS["pipeline_4x8"]), truth_of(PRESETS["slow_stage"])

    def imbalance(truth: dict[str, Any]) -> list[int]:
        rows = [row for row in truth["pipeline"]["bubbles"] if row["step"] == 10]
        return [row["by_cause"]["imbalance"] for row in rows]

    others = [0, 1, 3]
    assert all(imbalance(slow)[stage] > 2 * imbalance(even)[stage] for stage in others)
    assert imbalance(slow)[2] <= imbalance(even)[2]


@pytest.mark.parametrize(
    ("preset", "path", "ns"),
    [
        ("te_small_batch", "layers.3", 140_000),
        ("te_small_batch_after", "layers.3", 115_000),
        ("plain_small_batch", "layers.3", 74_000),
    ],
)
def test_cpu_time_of_a_module_s_forward(truth_of: Callable[[Job], Any], preset: str, path: str, ns: int):
    (row,) = rows(truth_of(PRESETS[preset]), path)
    assert row["forward"]["cpu_ns"] == row["calls"] * ns
    assert row["calls"] == 3


def test_gaps_come_from_the_cpu_where_kernels_are_short(truth_of: Callable[[Job], Any]):
    causes = window(truth_of(PRESETS["te_small_batch"]))
    assert causes["idle_by_cause"]["host"] > causes["window_ns"] / 2
    busy = window(truth_of(PRESETS["tp_plain"]))
    assert busy["busy_ns"] > busy["window_ns"] * 0.7


def test_twice_the_cpu_cost(truth_of: Callable[[Job], Any]):
    """A launch-bound step grows in proportion, a GPU-bound one by no more than its first launches are late."""

    def step_ns(job: Job, share: float) -> int:
        return truth_of(replace(job, machine=replace(job.machine, cpu_share=share)))["steps"][-1]["wall_ns"]

    bound = PRESETS["te_small_batch"]
    once, twice = step_ns(bound, 1), step_ns(bound, 2)
    launches = truth_of(bound)["launches"][0]["count"] // bound.steps
    # Launch calls are not scaled, nor is the wait for the last kernels.
    assert twice - once == pytest.approx(once - launches * bound.machine.launch_ns, rel=0.04)
    big = replace(
        CHAIN,
        machine=Machine(),
        pipeline=1,
        micro_batches=1,
        steps=2,
        sizes=Sizes(sequence=16384, hidden=4096),
        layers=8,
    )
    once, twice = step_ns(big, 1), step_ns(big, 2)
    cpu_of_a_layer = 14_000 + 26_600
    assert once < twice < once + 3 * cpu_of_a_layer + 60_000


def test_flops_equal_closed_formulas(truth_of: Callable[[Job], Any]):
    job = replace(PRESETS["tp_plain"], tensor=1, steps=3)
    tokens, hidden, layers = job.sizes.tokens, job.sizes.hidden, job.layers
    attention = layers * 4 * job.sizes.batch * job.sizes.sequence**2 * hidden
    products = 2 * tokens * (layers * 12 * hidden**2 + hidden * job.sizes.vocabulary)
    (row,) = truth_of(job)["flops"]["by_rank"]
    assert row == {
        "rank": 0,
        "forward": 3 * (products + attention),
        "dgrad": 3 * (products + attention * 5 // 2),
        "wgrad": 3 * products,
        "recompute": 0,
        "total": 3 * (3 * products + attention * 7 // 2),
    }


@pytest.mark.parametrize("checkpoint", ["non_reentrant", "reentrant"])
def test_a_checkpoint_computes_every_block_s_forward_again(truth_of: Callable[[Job], Any], checkpoint: str):
    job = replace(PRESETS["frozen"], style=Style(checkpoint=checkpoint))
    truth = truth_of(job)
    for name in ("blocks.0", "blocks.1.mlp.fc1"):
        (row,) = rows(truth, name)
        assert row["recompute"]["flops"] == row["forward"]["flops"] > 0
        assert row["recompute"]["calls"] == row["forward"]["calls"]
    (head,) = rows(truth, "head")
    assert head["recompute"]["flops"] == 0 < head["forward"]["flops"]


def test_frozen_weights_have_no_gradient(truth_of: Callable[[Job], Any]):
    job = PRESETS["frozen"]
    trained, frozen = truth_of(replace(job, style=Style()))["flops"], truth_of(job)["flops"]
    left_out = 2 * job.sizes.tokens * (3 + 4) * job.sizes.hidden**2 * job.micro_batches * job.steps
    assert frozen["by_rank"][0]["wgrad"] == trained["by_rank"][0]["wgrad"] - left_out
    assert frozen["by_rank"][0]["dgrad"] == trained["by_rank"][0]["dgrad"]


@pytest.mark.parametrize("preset", PRESETS)
def test_parts_add_up(truth_of: Callable[[Job], Any], preset: str):
    job = PRESETS[preset]
    truth = truth_of(job)
    assert truth["synthetic"]
    for row in truth["gpu"]:
        assert sum(row["idle_by_cause"].values()) == row["idle_ns"]
        assert row["compute_ns"] + row["exposed_communication_ns"] + row["exposed_copy_ns"] == row["busy_ns"]
    for rank in range(job.ranks):
        gaps = [row for row in truth["launch_gaps"]["by_module"] if row["rank"] == rank]
        causes = window(truth, rank)["idle_by_cause"]
        assert sum(row["host_ns"] for row in gaps) == causes["host"]
        assert sum(row["launch_call_ns"] for row in gaps) == causes["launch_call"]
        roots = [row for row in truth["modules"] if row["rank"] == rank and row["parent"] is None]
        assert sum(row["total"]["flops"] for row in roots) == truth["flops"]["by_rank"][rank]["total"]
        assert sum(row["total"]["kernels"] for row in roots) == window(truth, rank)["kernels"]
    for row in truth["pipeline"]["bubbles"]:
        assert row["busy_ns"] + row["bubble_ns"] == row["span_ns"]
        assert sum(row["by_cause"].values()) == row["bubble_ns"]
        assert min(row["by_cause"].values()) >= 0


def test_the_critical_path_is_as_long_as_the_run(tmp_path: Path):
    for name in ("pipeline_4x8", "straggler", "full_queue", "te_small_batch"):
        job = PRESETS[name]
        truth = simulate(job, tmp_path / name)
        ends = {row["rank"]: max(window(truth, row["rank"])["window_ns"], 1) for row in truth["critical_path"]}
        for row in truth["critical_path"]:
            # The path begins with the simulation, a little before the rank's first GPU work.
            assert 0 <= sum(row["by_kind"].values()) - ends[row["rank"]] < 40_000_000
    by_kind = truth["critical_path"][0]["by_kind"]
    assert by_kind["cpu"] > by_kind["kernel"]


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path):
    job = PRESETS["straggler"]
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        simulate(replace(job, seed=seed), tmp_path / name)
    written = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.json*")]
    assert len(written) == job.ranks + 1
    for path in written:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()
        assert (tmp_path / "a" / path).read_bytes() != (tmp_path / "c" / path).read_bytes()


def test_every_trace_says_that_it_is_synthetic(tmp_path: Path):
    simulate(PRESETS["moe"], tmp_path)
    for path in tmp_path.rglob("*.json.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        assert document["synthetic"] == "tests.simulator moe"
        assert document["traceEvents"]


@pytest.mark.parametrize("preset", [name for name, job in PRESETS.items() if not job.faults])
def test_traces_use_the_words_of_real_traces(tmp_path: Path, preset: str):
    simulate(PRESETS[preset], tmp_path)
    words = vocabulary.words_of(vocabulary.load(path) for path in sorted(tmp_path.rglob("*.json.gz"))[:2])
    known = json.loads(vocabulary.FILE.read_text(encoding="utf-8"))
    assert vocabulary.strange(words, known) == []
    assert {"X cpu_op", "X kernel", "X cuda_runtime", "s ac2g", "f ac2g", "top level"} <= set(words)


def test_a_word_that_no_real_trace_has_is_found():
    known = json.loads(vocabulary.FILE.read_text(encoding="utf-8"))
    event = {"ph": "X", "cat": "kernel", "args": {"correlation": "7", "invented": 1}}
    strange = vocabulary.strange(vocabulary.words_of([[event]]), known)
    assert strange == [("X kernel", "correlation", "str"), ("X kernel", "invented", "int")]


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="the public traces are not at hand")
def test_the_vocabulary_is_that_of_the_real_traces():
    words = vocabulary.words_of(map(vocabulary.load, REAL))
    assert json.loads(vocabulary.FILE.read_text(encoding="utf-8")) == words


def test_ranks_that_wait_for_ever_are_an_error(tmp_path: Path):
    job = replace(CHAIN, pipeline=2, layers=2)
    cluster = Cluster(lambda _: 0)
    writer = Writer(tmp_path / "t.json.gz", 0, 4000, 0, {"synthetic": True}, frames=False)
    players = [Player(1, plays_of(job, 1), job.machine, job.clock_of(1), writer, cluster.meet, 1)]
    with pytest.raises(RuntimeError, match="wait for ever"):
        cluster.run(players)
    writer.close()


def test_gpipe_is_forward_then_backward():
    assert gpipe(0, 2, 2) == [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)]
