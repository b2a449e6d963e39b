"""Ranges around module forwards: right names in the trace, and a model that is afterwards as it was."""

from __future__ import annotations

import copy
import inspect
import io
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

import tracetools
from collectors.module_ranges import ModuleRanges, range_maker
from tests.test_invariants import check_invariants
from tracetools.results import Analysis, ModuleTime


class Block(nn.Module):
    def __init__(self, width: int, how: bool | None = None) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(self.act(self.fc1(x)))


class Net(nn.Module):
    """Three blocks; the last two are checkpointed, one of each kind."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, how) for how in (None, False, True))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if block.how is None else checkpoint(block, x, use_reentrant=block.how)
        return self.head(x)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def record(folder: Path, run: Callable[[], Any]) -> Analysis:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    path = folder / "rank-00000.trace.json"
    profiler.export_chrome_trace(str(path))
    analysis = tracetools.load(path).analysis
    check_invariants(analysis)
    return analysis


def modules(analysis: Analysis) -> dict[str, ModuleTime]:
    return {row.path: row for row in analysis.modules}


def train(model: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    def run() -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        return loss

    return run


def everything(model: nn.Module) -> list[dict[str, Any]]:
    """All instance dictionaries, with the order of their keys."""
    return [dict(vars(module)) for module in model.modules()]


def test_modules_have_their_names_in_forward_backward_and_recompute(tmp_path: Path):
    model, x = Net(), torch.randn(4, 8, requires_grad=True)
    with ModuleRanges(model) as ranges:
        assert ranges.names[:3] == ("(root)", "blocks", "blocks.0")
        analysis = record(tmp_path, train(model, x))
    found = modules(analysis)
    assert set(found) == {
        "(root)", "head", "(unattributed)", "(optimizer)",
        *(f"blocks.{block}{part}" for block in range(3) for part in ("", ".fc1", ".act", ".fc2")),
    }  # fmt: skip
    assert all(row.calls == 1 and row.source == "fqn" for path, row in found.items() if not path.startswith("("))
    assert found["blocks.1.fc1"].class_ == "torch.nn.modules.linear.Linear"
    assert [found[f"blocks.{block}"].recompute.calls for block in range(3)] == [0, 1, 1]
    assert all(found[f"blocks.{block}.fc1"].backward.cpu_ns > 0 for block in range(3))
    nodes = sum(row.calls for row in analysis.autograd if row.backward_op != "torch::autograd::AccumulateGrad")
    roots = [row for row in analysis.modules if row.parent is None]
    assert sum(row.backward.calls for row in roots) == nodes
    assert not [row for row in analysis.autograd if row.linked_by == "open" and row.forward_op]


def test_the_model_is_afterwards_as_it_was():
    model, x = Net(), torch.randn(4, 8)
    before, state = everything(model), copy.deepcopy(model.state_dict())
    plain = model(x)
    with ModuleRanges(model):
        assert torch.equal(model(x), plain)
        assert "forward" in vars(model)
    after = everything(model)
    assert [list(each) for each in after] == [list(each) for each in before]
    assert all(one[key] is other[key] for one, other in zip(after, before, strict=True) for key in one)
    assert all(torch.equal(model.state_dict()[key], state[key]) for key in state)


def test_an_own_forward_of_an_instance_comes_back():
    model = nn.Linear(2, 2)
    own = model.forward = lambda x: x + 1
    with ModuleRanges(model):
        assert torch.equal(model(torch.zeros(1)), torch.ones(1))
    assert vars(model)["forward"] is own


def test_what_somebody_else_put_in_place_meanwhile_stays():
    model = nn.Linear(2, 2)
    with ModuleRanges(model):
        theirs = model.forward = lambda x: x
    assert vars(model)["forward"] is theirs


def test_an_error_in_forward_passes_through_and_closes_its_range(tmp_path: Path):
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("own")

    model = Fails()

    def run() -> None:
        for _ in range(2):
            with pytest.raises(KeyError, match="own"):
                model(torch.zeros(1))

    with ModuleRanges(model):
        analysis = record(tmp_path, run)
    assert modules(analysis)["(root)"].calls == 2


def test_a_module_that_calls_itself_or_is_shared(tmp_path: Path):
    class Folds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = self.two = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, times: int = 2) -> torch.Tensor:
            return self(self.two(self.one(x)), times - 1) if times else x

    model = Folds()
    with ModuleRanges(model) as ranges:
        assert ranges.names == ("(root)", "one")
        found = modules(record(tmp_path, lambda: model(torch.zeros(1, 2))))
    assert (found["(root)"].calls, found["one"].calls) == (1, 4)


def test_two_threads_at_once():
    meet = threading.Barrier(2, timeout=30)

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            meet.wait()
            return x

    model, done = Waits(), []
    with ModuleRanges(model):
        threads = [threading.Thread(target=lambda: done.append(model(torch.zeros(1)))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(done) == 2


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_module_is_one_range_and_keeps_its_graph(tmp_path: Path, in_place: bool):
    model, x = Net(), torch.randn(4, 8)
    model.blocks = model.blocks[:1]
    block = model.blocks[0]
    plain = model(x)
    if in_place:
        block.compile(backend="eager", fullgraph=True)
    else:
        model.blocks[0] = torch.compile(block, backend="eager", fullgraph=True)
    model(x)
    with ModuleRanges(model) as ranges, torch.no_grad():
        analysis = record(tmp_path, lambda: model(x))
        assert torch.allclose(model(x), plain)
    found = modules(analysis)
    assert found["blocks.0"].calls == 1
    assert "blocks.0.fc1" not in found
    assert ranges.left_out["blocks.0.fc1"] == "inside a compiled or scripted module"
    assert torch.allclose(model(x), plain)


def test_a_scripted_module_is_left_out_by_name():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)), nn.ReLU())
    with ModuleRanges(model) as ranges:
        assert ranges.names == ("(root)", "1")
        assert ranges.left_out == {"0": "scripted: its forward cannot be wrapped"}
        model(torch.zeros(1, 2))


def test_copies_and_pickles_are_models_of_their_own():
    model, x = Net(), torch.randn(4, 8)
    with ModuleRanges(model):
        twin = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
    file.seek(0)
    for other in (twin, torch.load(file, weights_only=False)):
        assert torch.equal(other(x), model(x))
        with torch.no_grad():
            other.head.bias += 1
        assert torch.allclose(other(x), model(x) + 1)


def test_signatures_are_seen_through():
    model = Net()
    with ModuleRanges(model):
        assert list(inspect.signature(model.forward).parameters) == ["x"]


def test_where_the_private_range_is_missing_the_public_one_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(torch._C._profiler, "_RecordFunctionFast")
    assert range_maker() is record_function
    model = Net()
    with ModuleRanges(model):
        found = modules(record(tmp_path, lambda: model(torch.zeros(1, 8))))
    assert found["blocks.0.fc1"].calls == 1
    assert found["blocks.0.fc1"].forward.cpu_ns > 0


def test_losses_are_the_same():
    def losses(ranged: bool) -> list[float]:
        torch.manual_seed(3)
        model, x = Net(), torch.randn(4, 8, requires_grad=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            with ModuleRanges(model) if ranged else torch.enable_grad():
                found.append(train(model, x)().item())
            optimizer.step()
        return found

    assert losses(ranged=True) == losses(ranged=False)


def test_a_forward_stays_a_method_to_whoever_looks():
    model = Net()
    with ModuleRanges(model):
        assert inspect.ismethod(model.forward)
        assert model.forward.__self__ is model
        assert callable(model.forward.__func__)


def test_compilers_look_through_the_ranges():
    model, x = Block(4), torch.ones(2, 4)
    expected = model(x)
    with ModuleRanges(model):
        whole = torch.compile(lambda value: model(value), fullgraph=True, backend="eager")
        assert torch.equal(whole(x), expected)
        assert torch.equal(torch.export.export(model, (x,)).module()(x), expected)


def test_a_copy_has_a_forward_of_its_own_where_the_script_had_replaced_it():
    """As without ranges: a method goes with the copy, a function is shared."""

    def doubled(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return 2 * nn.functional.linear(x, self.weight)

    method, function = nn.Linear(2, 2), nn.Linear(2, 2)
    vars(method)["forward"] = doubled.__get__(method)
    vars(function)["forward"] = lambda x: x + 1
    x = torch.ones(1, 2)
    for model in (method, function):
        with ModuleRanges(model):
            other = copy.deepcopy(model)
        with torch.no_grad():
            other.weight.zero_()
        expected = torch.zeros(1, 2) if model is method else x + 1
        assert torch.equal(other(x), expected)


def test_a_pickle_knows_nothing_of_this_package():
    stream = io.BytesIO()
    with ModuleRanges(nn.Sequential(layer := nn.Linear(2, 2))):
        torch.save(layer, stream)
    assert b"collectors" not in stream.getvalue()


def test_ranges_that_cannot_be_put_on_are_taken_off():
    class Bad(nn.Module):
        @property
        def forward(self) -> Any:
            raise RuntimeError("no")

    class Outer(nn.Module):
        def forward(self) -> None: ...

    model = Outer()
    model.bad = Bad()
    with pytest.raises(RuntimeError), ModuleRanges(model):
        pass
    assert "forward" not in vars(model)


def test_odd_names_come_back_as_they_are(tmp_path: Path):
    names = ["ünï✓", "tab\t", "back\\slash", "a b", 'quo"te', "50%", "\x01"]
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(2, 2))
    with ModuleRanges(model):
        analysis = record(tmp_path, lambda: model(torch.ones(1, 2)))
    assert {row.path for row in analysis.modules if row.class_ and row.class_.endswith("Linear")} == set(names)


def test_a_name_that_is_no_unicode_stops_nothing():
    model = nn.Sequential()
    model.add_module("\ud800", nn.Linear(2, 2))
    with ModuleRanges(model):
        model(torch.ones(1, 2))
