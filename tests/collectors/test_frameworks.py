"""Real trainings on two CPU processes, collected and analyzed: names, phases, places, micro-batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import tracetools
from collectors_job import collect, manifest_of, script, trace_of
from test_invariants import check_invariants
from tracetools.results import Analysis, ModuleTime
from tracetools.trace_file import PipelineRange, parse_pipeline_range

GPT = {"(root)", "emb", "head"} | {
    f"blocks.{block}{inner}"
    for block in (0, 1)
    for inner in ("", ".norm", ".attn", ".attn.qkv", ".attn.proj", ".mlp", ".mlp.0", ".mlp.1", ".mlp.2")
}
STEPS = 2


def recorded(tmp_path: Path, name: str, *arguments: str, ranks: int = 2) -> tuple[Path, Analysis]:
    folder = tmp_path / "traces"
    done = collect("--out", str(folder), "--steps", "3-4", script(name), *arguments, ranks=ranks)
    assert done.returncode == 0, done.stderr[-3000:]
    analysis = tracetools.load(str(folder)).analysis
    check_invariants(analysis)
    assert [each.rank for each in analysis.inputs] == list(range(ranks))
    assert {each.steps for each in analysis.inputs} == {(3, 4)}
    assert not [each for each in analysis.findings if each.severity != "note"]
    return folder, analysis


def modules(analysis: Analysis, rank: int) -> dict[str, ModuleTime]:
    return {row.path: row for row in analysis.modules if row.rank == rank and row.source == "fqn"}


def check_gpt(analysis: Analysis, calls: int, ranks: int = 2) -> None:
    for rank in range(ranks):
        rows = modules(analysis, rank)
        assert set(rows) == GPT
        assert {row.forward.calls for row in rows.values()} == {calls}
        assert all(row.forward.cpu_ns > 0 and row.backward.cpu_ns > 0 for row in rows.values())
        assert all(row.recompute.cpu_ns == 0 for row in rows.values())
        assert rows["blocks.1.attn.qkv"].class_ == "torch.nn.modules.linear.Linear"


def metadata(folder: Path, rank: int) -> dict[str, object]:
    return trace_of(folder, rank)["tracetools"]


def work_of(folder: Path, rank: int) -> Counter[PipelineRange]:
    ranges = (parse_pipeline_range(each.get("name", "")) for each in trace_of(folder, rank)["traceEvents"])
    return Counter(each for each in ranges if each is not None)


def test_plain_loop(tmp_path: Path):
    folder, analysis = recorded(tmp_path, "plain", ranks=1)
    check_gpt(analysis, STEPS, ranks=1)
    assert metadata(folder, 0)["steps_found_by"] == "optimizer"
    assert manifest_of(folder)["passes"][0]["steps"] == [3, 4]


def test_gradient_accumulation_is_one_step(tmp_path: Path):
    _, analysis = recorded(tmp_path, "plain", "6", "3", ranks=1)
    check_gpt(analysis, 3 * STEPS, ranks=1)


def test_ddp(tmp_path: Path):
    folder, analysis = recorded(tmp_path, "ddp", "2")
    check_gpt(analysis, 2 * STEPS)
    assert [each.coordinates for each in analysis.inputs] == [{"dp": 0}, {"dp": 1}]
    assert metadata(folder, 1)["launcher"] == "torchrun"


def test_fsdp2(tmp_path: Path):
    _, analysis = recorded(tmp_path, "fsdp2")
    check_gpt(analysis, STEPS)
    assert modules(analysis, 0)["blocks.0"].class_ == "gpt.Block"
    assert [each.coordinates for each in analysis.inputs] == [{"dp": 0}, {"dp": 1}]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_torch_pipelining(tmp_path: Path, schedule: str):
    folder, analysis = recorded(tmp_path, "pipelining", schedule)
    for rank in (0, 1):
        rows = modules(analysis, rank)
        assert {path for path in rows if path.count(".") == 1} == {f"blocks.{2 * rank}", f"blocks.{2 * rank + 1}"}
        assert {row.forward.calls for row in rows.values()} == {4 * STEPS}
        assert {row.stage for row in rows.values()} == {rank}
        both = {PipelineRange(work, rank, each) for work in ("forward", "backward") for each in range(4)}
        assert work_of(folder, rank) == Counter(dict.fromkeys(both, STEPS))
        assert metadata(folder, rank)["micro_batches"] == 4
    check_waiting_is_no_work(analysis)


def check_waiting_is_no_work(analysis: Analysis) -> None:
    """Transfers are no forward, and do not cut the ranges around them."""
    assert {row.phase for row in analysis.ops if row.name.startswith("c10d::")} == {"other"}
    assert "nesting_clipped" not in {each.rule for each in analysis.findings}


def test_interleaved_pipelining_with_four_virtual_stages(tmp_path: Path):
    folder, analysis = recorded(tmp_path, "pipelining", "interleaved")
    for rank in (0, 1):
        stages = (rank, rank + 2)
        rows = modules(analysis, rank)
        assert {path for path in rows if "." not in path} == {f"stage_{stage}" for stage in stages}
        assert {f"stage_{stage}.blocks.{stage}.attn.qkv" for stage in stages} <= set(rows)
        assert {row.forward.calls for row in rows.values()} == {4 * STEPS}
        both = {PipelineRange(w, stage, mb) for w in ("forward", "backward") for stage in stages for mb in range(4)}
        assert work_of(folder, rank) == Counter(dict.fromkeys(both, STEPS))
        assert metadata(folder, rank)["virtual_stages"] == list(stages)
        assert metadata(folder, rank)["schedule"] == "ScheduleInterleaved1F1B"
    check_waiting_is_no_work(analysis)


def test_doubles_of_transformer_engine(tmp_path: Path):
    folder, analysis = recorded(tmp_path, "te_double", ranks=1)
    rows = modules(analysis, 0)
    assert rows["0"].class_ == "transformer_engine.pytorch.module.layernorm_linear.LayerNormLinear"
    assert rows["2"].class_ == "torch.nn.modules.linear.Linear"
    assert rows["0"].backward.cpu_ns > 0
    assert metadata(folder, 0)["transformer_engine"] == {
        "modules": {"LayerNormLinear": 1},
        "sequence_parallel": [False],
        "fused_weight_gradient": [True],
        "fp8": [False],
        "tensor_parallel": [1],
    }


def test_nvtx_ranges_of_doubles_on_request(tmp_path: Path):
    for options, calls in (((), 0), (("--nvtx",), STEPS)):
        folder = tmp_path / f"traces{len(options)}"
        done = collect("--out", str(folder), "--steps", "3-4", *options, script("te_double"))
        assert done.returncode == 0, done.stderr[-3000:]
        found = {row.name: row.calls for row in tracetools.load(str(folder)).analysis.annotations}
        assert found.get("LayerNormLinear forward", 0) == calls


def test_doubles_of_megatron(tmp_path: Path):
    folder, analysis = recorded(tmp_path, "megatron_double")
    for rank in (0, 1):
        stages = (rank, rank + 2)
        facts = metadata(folder, rank)
        assert (facts["stage"], facts["stages"], facts["virtual_stages"]) == (rank, 2, list(stages))
        assert (facts["coordinates"], facts["micro_batches"]) == ({"pp": rank}, 4)
        assert facts["schedule"] == "interleaved 1F1B"
        assert facts["frameworks"] == {"megatron": "0.0.double"}
        both = {PipelineRange(w, stage, mb) for w in ("forward", "backward") for stage in stages for mb in range(4)}
        assert work_of(folder, rank) == Counter(dict.fromkeys(both, STEPS))
        assert {row.forward.calls for row in modules(analysis, rank).values()} == {4 * STEPS}


@pytest.mark.parametrize("checkpoint", [False, True])
def test_deepspeed_pipeline(tmp_path: Path, checkpoint: bool):
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    folder, analysis = recorded(tmp_path, "deepspeed_pipeline", *(["checkpoint"] if checkpoint else []))
    for rank in (0, 1):
        rows = modules(analysis, rank)
        blocks = [str(layer) for layer in ((1, 2) if rank == 0 else (3, 4))]
        assert {path for path in rows if "." not in path} == {"(root)", *blocks, "0" if rank == 0 else "5"}
        assert {row.forward.calls for row in rows.values()} == {4 * STEPS}
        assert {rows[block].recompute.cpu_ns > 0 for block in blocks} == {checkpoint}
        assert all(rows[block].backward.cpu_ns > 0 for block in blocks)
        work = work_of(folder, rank)
        for micro_batch in range(4):
            assert work[PipelineRange("forward", rank, micro_batch)] == STEPS
            assert work[PipelineRange("backward", rank, micro_batch)] == STEPS
        assert work[PipelineRange("optimizer_step", rank, None)] == STEPS
        facts = metadata(folder, rank)
        assert (facts["stage"], facts["stages"], facts["micro_batches"]) == (rank, 2, 4)
        assert facts["coordinates"] == {"dp": 0, "pp": rank}
        assert facts["steps_found_by"] == "deepspeed"


def test_lightning(tmp_path: Path):
    pytest.importorskip("lightning", reason="lightning is not installed")
    folder, analysis = recorded(tmp_path, "lightning_loop")
    for rank in (0, 1):
        rows = modules(analysis, rank)
        assert set(rows) == {"(root)", "model"} | {f"model.{path}" for path in GPT - {"(root)"}}
        assert {row.forward.calls for row in rows.values()} == {2 * STEPS}
        assert metadata(folder, rank)["steps_found_by"] == "lightning"


def test_accelerate(tmp_path: Path):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    folder, analysis = recorded(tmp_path, "accelerate_loop")
    check_gpt(analysis, 2 * STEPS)
    assert metadata(folder, 0)["steps_found_by"] == "accelerate"
