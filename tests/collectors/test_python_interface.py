"""`collectors.collect` in a loop of one's own, the decorator, Lightning's callback; the model ends as it was."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import collectors
import tracetools
from collectors.folder import Folder
from collectors.instrumentation import Instrumentation
from collectors.journal import Journal
from collectors.session import Collection
from collectors.training_steps import StepEnds
from collectors_job import document, environment, manifest_of, script, trace_of
from tracetools.results import ModuleTime


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)
        self.unused = nn.Linear(3, 3)
        self.projection = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        # Used past its forward, as tied and fused layers are.
        x = nn.functional.linear(x, self.projection.weight)
        return self.second(x)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def training(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    loss = model(torch.ones(2, 4)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def made() -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.SGD(model.parameters(), 0.01)


def recorded(folder: Path, count: int = 6, model: Any = "own", **chosen: Any) -> None:
    own, optimizer = made()
    given = own if model == "own" else model
    with collectors.collect(folder, model=given, **{"steps": "2-3", "warmup": 1, **chosen}) as collection:
        for _ in range(count):
            training(own, optimizer)
            collection.step()


def rows(folder: Path) -> dict[str, ModuleTime]:
    return {row.path: row for row in tracetools.load(folder).analysis.modules}


def test_a_loop_that_tells_its_steps(tmp_path: Path):
    recorded(tmp_path)
    found = rows(tmp_path)
    assert {path for path in found if not path.startswith("(")} == {"first", "second"}
    assert found["first"].calls == 2
    assert manifest_of(tmp_path)["steps_found_by"] == "step()"
    assert manifest_of(tmp_path)["passes"][0]["steps"] == [2, 3]


def test_steps_given_to_step_alone_count(tmp_path: Path):
    """Two optimizers' steps in one training step: the hook would see four steps where there are two."""
    model, optimizer = made()
    with collectors.collect(tmp_path, model=model, steps="2-3", warmup=1) as collection:
        for _ in range(6):
            training(model, optimizer)
            training(model, optimizer)
            collection.step()
    assert rows(tmp_path)["first"].calls == 4


def test_the_model_is_afterwards_as_it_was(tmp_path: Path):
    model, optimizer = made()
    twin, twins_optimizer = made()
    before = [dict(vars(module)) for module in model.modules()]
    step = vars(optimizer).get("step")
    forward = nn.Linear.forward
    with collectors.collect(tmp_path, model=model, steps="2-3", warmup=1) as collection:
        losses = []
        for _ in range(6):
            losses.append(training(model, optimizer))
            collection.step()
    assert losses == [training(twin, twins_optimizer) for _ in range(6)]
    after = [dict(vars(module)) for module in model.modules()]
    assert [list(each) for each in after] == [list(each) for each in before]
    assert all(one[key] is other[key] for one, other in zip(after, before, strict=True) for key in one)
    assert all(torch.equal(model.state_dict()[key], twin.state_dict()[key]) for key in twin.state_dict())
    assert vars(optimizer).get("step") is step
    assert nn.Linear.forward is forward


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_model_is_as_it_was_when_the_block_ends_early(tmp_path: Path, steps: int):
    """In the trial, in the warm-up and while recording."""
    model, optimizer = made()
    before = [dict(vars(module)) for module in model.modules()]
    with collectors.collect(tmp_path, model=model, steps="3-4", warmup=2) as collection:
        for _ in range(steps):
            training(model, optimizer)
            collection.step()
    assert [dict(vars(module)) for module in model.modules()] == before
    with collectors.collect(tmp_path / "again", model=model, steps="1", warmup=0) as collection:
        for _ in range(3):
            training(model, optimizer)
            collection.step()
    assert rows(tmp_path / "again")["first"].calls == 1


def test_one_collection_after_another(tmp_path: Path):
    model, optimizer = made()
    for name in ("one", "two"):
        with collectors.collect(tmp_path / name, model=model, steps="1-2", warmup=1) as collection:
            for _ in range(4):
                training(model, optimizer)
                collection.step()
    assert rows(tmp_path / "one")["first"].calls == rows(tmp_path / "two")["first"].calls == 2


def test_several_models_have_names(tmp_path: Path):
    model, optimizer = made()
    critic = copy.deepcopy(model)
    models = {"actor": model, "critic": critic}
    with collectors.collect(tmp_path, model=models, steps="2-3", warmup=1) as collection:
        for _ in range(5):
            critic(torch.ones(2, 4))
            training(model, optimizer)
            collection.step()
    assert {path for path in rows(tmp_path) if "." not in path} >= {"actor", "critic"}


def test_modules_past_forward_are_listed(tmp_path: Path):
    recorded(tmp_path)
    assert trace_of(tmp_path)["tracetools_measured"]["never_called"] == {"count": 2, "first": ["unused", "projection"]}
    (finding,) = [each for each in tracetools.load(tmp_path).analysis.findings if each.rule == "modules_not_called"]
    assert finding.message.startswith("unused, projection never called through forward")


def test_the_decorator(tmp_path: Path):
    model, optimizer = made()

    @collectors.collect_steps(tmp_path, model=model, steps="2-3", warmup=1)
    def train_step(factor: float = 1.0) -> float:
        """Mine."""
        return factor * training(model, optimizer)

    assert train_step.__doc__ == "Mine."
    assert all(isinstance(train_step(factor=2.0), float) for _ in range(5))
    assert rows(tmp_path)["first"].calls == 2
    assert manifest_of(tmp_path)["passes"][0]["complete"] is True


def test_the_decorator_passes_exceptions_on(tmp_path: Path):
    calls = []

    @collectors.collect_steps(tmp_path, steps="1", warmup=0)
    def train_step() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train_step()
    train_step()
    train_step()
    assert len(calls) == 3


def test_an_exception_passes_through_the_block(tmp_path: Path):
    model, optimizer = made()

    def fails() -> None:
        with collectors.collect(tmp_path, model=model, steps="1-9", warmup=0) as collection:
            for _ in range(3):
                training(model, optimizer)
                collection.step()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails()
    assert manifest_of(tmp_path)["passes"][0]["complete"] is False


def test_without_shapes_and_without_names(tmp_path: Path):
    recorded(tmp_path / "with")
    recorded(tmp_path / "without", shapes=False, module_ranges=False)
    with_, without = (trace_of(tmp_path / each)["traceEvents"] for each in ("with", "without"))
    assert any("Input Dims" in each.get("args", {}) for each in with_)
    assert not any("Input Dims" in each.get("args", {}) for each in without)
    assert not any(each.get("name", "").startswith("tracetools.module") for each in without)
    assert {"first", "second"}.isdisjoint(rows(tmp_path / "without"))


@pytest.mark.parametrize(
    ("chosen", "files", "stacks", "memory"),
    [
        ({}, ["rank-00000"], [False], [False]),
        ({"stack": True, "memory": True}, ["rank-00000"], [True], [True]),
        ({"passes": "structure"}, ["rank-00000.structure"], [True], [False]),
        ({"passes": "structure", "memory": True}, ["rank-00000.structure"], [True], [True]),
        (
            {"passes": "both", "memory": True, "stack": True},
            ["rank-00000", "rank-00000.structure"],
            [False, True],
            [False, True],
        ),
    ],
)
def test_what_a_pass_records(
    tmp_path: Path, chosen: dict[str, Any], files: list[str], stacks: list[bool], memory: list[bool]
):
    recorded(tmp_path, count=12, **chosen)
    assert sorted(each.name for each in tmp_path.glob("*.gz")) == sorted(f"{name}.trace.json.gz" for name in files)
    for name, with_stacks, with_memory in zip(files, stacks, memory, strict=True):
        trace = document(tmp_path / f"{name}.trace.json.gz")
        kinds = {each.get("cat") for each in trace["traceEvents"]}
        names = {each.get("name") for each in trace["traceEvents"]}
        assert ("python_function" in kinds) is with_stacks
        assert ("[memory]" in names) is with_memory
        assert (trace["tracetools"]["stacks"], trace["tracetools"]["memory"]) == (with_stacks, with_memory)
        assert trace["tracetools_measured"]["complete"] is True


def test_the_cost_of_recording_is_in_the_trace(tmp_path: Path):
    recorded(tmp_path)
    measured = trace_of(tmp_path)["tracetools_measured"]
    assert set(measured["cost"]) == {"op_ns", "module_range_ns", "idle_module_range_ns"}
    for each in measured["cost"].values():
        lower, upper = each["quartiles"]
        assert -100_000 < lower <= each["median"] <= upper < 1_000_000
    assert measured["cost"]["op_ns"]["median"] > 0
    assert len(measured["step_ns"]["recorded"]) == 2
    assert all(each > 0 for each in measured["step_ns"]["recorded"])


def test_undisturbed_steps_are_none_of_the_first(tmp_path: Path):
    """The first two make states and compile; of later ones those before the trial."""
    recorded(tmp_path / "late", count=9, steps="5-6")
    assert len(undisturbed(tmp_path / "late")) == 2
    recorded(tmp_path / "early")
    assert undisturbed(tmp_path / "early") is None


def undisturbed(folder: Path) -> Any:
    return trace_of(folder)["tracetools_measured"]["step_ns"]["undisturbed"]


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"steps": "8-6"}, "the first lies behind the last"),
        ({"ranks": []}, "no rank is to record"),
        ({"warmup": -1}, "warm-up of -1 steps"),
        ({"passes": "all"}, "say timing, structure or both"),
        ({"max_size": "big"}, "say a number of bytes"),
        ({"max_size": 1.5}, "max_size 1.5: say a whole number"),
        ({"steps": (3,)}, r"steps \(3,\): say the first and the last as two whole numbers"),
        ({"steps": ("6", "8")}, "two whole numbers"),
        ({"steps": (1, 2, 3)}, "two whole numbers"),
        ({"steps": 2.5}, "steps '2.5': say one step or a span"),
        ({"ranks": 1.5}, "ranks 1.5: say whole numbers"),
        ({"ranks": [[1]]}, "say whole numbers"),
        ({"ranks": ["0"]}, "say whole numbers"),
        ({"ranks": -1}, "say whole numbers"),
        ({"warmup": "2"}, "warmup '2': say a whole number"),
        ({"passes": 3}, "say timing, structure or both"),
        ({"shapes": "no"}, "shapes 'no': say True or False"),
        ({"model": 3}, "model: int is no torch.nn.Module"),
        ({"model": [nn.ReLU(), 3]}, "model: int is no torch.nn.Module"),
        ({"model": {"actor": "mine"}}, "model: str is no torch.nn.Module"),
        ({"step": "6", "warm": 1}, "no such option: step, warm; there are steps, warmup,"),
        ({"clock_probe": True, "ranks": [0]}, "the clock probe needs every rank"),
    ],
)
def test_options_that_mean_nothing(tmp_path: Path, chosen: dict[str, Any], words: str):
    with pytest.raises(collectors.CollectError, match=words):
        collectors.collect(tmp_path, **chosen)


@pytest.mark.parametrize("out", [3, None])
def test_a_folder_that_is_no_path(out: Any):
    with pytest.raises(collectors.CollectError, match="say a path"):
        collectors.collect(out)


def test_one_rank_as_a_number(tmp_path: Path):
    recorded(tmp_path, ranks=0)
    assert manifest_of(tmp_path)["passes"][0]["complete"] is True


def test_lightnings_callback(tmp_path: Path):
    pytest.importorskip("lightning", reason="lightning is not installed")
    done = subprocess.run(
        [sys.executable, script("lightning_loop"), "callback", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=180, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path)
    assert found["model.blocks.0"].calls == 2 * 2
    assert manifest_of(tmp_path)["steps_found_by"] == "step()"


@pytest.mark.parametrize("fails", ["take_off", "write", "release", "stop"])
def test_what_fails_at_the_end_keeps_the_rest_and_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: str
):
    """Each thing that is put back, where another one is not."""
    owner: Any = {"take_off": Instrumentation, "write": Journal, "release": Folder, "stop": StepEnds}[fails]
    whole = getattr(owner, fails)

    def failing(self: Any, *given: Any) -> None:
        whole(self, *given)
        raise RuntimeError("at the end")

    monkeypatch.setattr(owner, fails, failing)
    before = signal.getsignal(signal.SIGTERM)
    model, optimizer = made()
    own = [dict(vars(module)) for module in model.modules()]
    with collectors.collect(tmp_path, model=model, steps="2-3", warmup=1) as collection:
        for _ in range(6):
            training(model, optimizer)
            collection.step()
    assert collection.done
    told = capsys.readouterr().err
    assert "nothing more is recorded (RuntimeError: at the end); the training goes on" in told
    assert [dict(vars(module)) for module in model.modules()] == own
    assert signal.getsignal(signal.SIGTERM) == before
    # Listening for steps ends with the first step(), before anything is recorded.
    traces = [] if fails == "stop" else ["rank-00000.trace.json.gz"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rank-00000.manifest.json", *traces]


@pytest.mark.parametrize("fails", ["_ask_frameworks", "_end_after"])
def test_what_fails_when_a_step_is_found_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: str
):
    def failing(self: Any, *given: Any) -> None:
        raise RuntimeError("in the optimizer")

    monkeypatch.setattr(StepEnds, fails, failing)
    model, optimizer = made()
    with collectors.collect(tmp_path, model=model, steps="2-3", warmup=1):
        for _ in range(6):
            training(model, optimizer)
    assert "nothing more is recorded (RuntimeError: in the optimizer)" in capsys.readouterr().err
    assert vars(optimizer).get("step") is None


def test_a_trial_that_cannot_be_dropped_ends_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The script's own profiler starts in the trial."""
    model, optimizer = made()
    with collectors.collect(tmp_path, model=model, steps="2-3", warmup=1) as collection:
        training(model, optimizer)
        collection.step()
        drop = Collection._drop_profiler

        def failing(self: Collection) -> None:
            drop(self)
            raise RuntimeError("dropped")

        monkeypatch.setattr(Collection, "_drop_profiler", failing)
        with torch.profiler.profile():
            training(model, optimizer)
        assert collection.done
    assert manifest_of(tmp_path)["passes"] == []
