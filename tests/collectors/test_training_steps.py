"""Which steps are found where the loop does not tell them: compiled ones, those of one optimizer after another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from collectors_job import collect, environment, manifest_of, said

LOOP = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

class Descent(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                each.add_(each.grad, alpha=-group["lr"])

def backward(network=model):
    network.zero_grad()
    loss = network(torch.ones(2, 4)).square().sum()
    loss.backward()
    return loss.item()
"""


def collected(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    """The training prints its losses, which are those that it has without us."""
    path = tmp_path / "train.py"
    path.write_text(LOOP + body)
    alone = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True, env=environment())
    done = collect("--out", str(tmp_path / "traces"), "--steps", "3-4", "--warmup", "2", str(path))
    assert (done.returncode, done.stdout) == (0, alone.stdout), done.stderr
    return done


def steps(tmp_path: Path) -> list[int]:
    """Those that were recorded."""
    return [step for each in manifest_of(tmp_path / "traces")["passes"] for step in each["steps"]]


@pytest.mark.parametrize("optimizer", ["torch.optim.AdamW(model.parameters(), 0.01)", "Descent(model.parameters())"])
def test_a_compiled_step(tmp_path: Path, optimizer: str):
    body = f"""
optimizer = {optimizer}
step = torch.compile(lambda: optimizer.step(), backend="eager")
for _ in range(9):
    print(backward())
    step()
"""
    done = collected(tmp_path, body)
    assert "WON'T CONVERT" not in done.stderr
    assert steps(tmp_path) == [3, 4]
    assert manifest_of(tmp_path / "traces")["steps_found_by"] == "optimizer"


def test_a_whole_training_step_that_is_compiled(tmp_path: Path):
    body = """
optimizer = torch.optim.SGD(model.parameters(), 0.01)
@torch.compile(backend="eager")
def train():
    loss = model(torch.ones(2, 4)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
for _ in range(9):
    print(train().item())
"""
    collected(tmp_path, body)
    assert steps(tmp_path) == [3, 4]


def test_a_step_that_is_compiled_after_some_that_were_not(tmp_path: Path):
    body = """
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(2):
    print(backward())
    optimizer.step()
step = torch.compile(lambda: optimizer.step(), backend="eager")
for _ in range(7):
    print(backward())
    step()
"""
    collected(tmp_path, body)
    assert steps(tmp_path) == [3, 4]


def test_a_step_inside_a_graph_that_must_not_break_is_told(tmp_path: Path):
    """torch's own optimizers cannot be compiled so, with or without us."""
    body = """
optimizer = Descent(model.parameters())
step = torch.compile(lambda: optimizer.step(), backend="eager", fullgraph=True)
for _ in range(6):
    print(backward())
    step()
"""
    done = collected(tmp_path, body)
    told = "an optimizer steps inside a function that is compiled with fullgraph=True: such steps are not counted"
    assert sum(line.startswith(told) for line in said(done)) == 1
    assert steps(tmp_path) == []


def test_an_optimizer_that_replaces_the_one_before(tmp_path: Path):
    """A new one for each epoch, as after a warm-up or a reset."""
    body = """
for epoch in range(5):
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for _ in range(2):
        print(backward())
        optimizer.step()
"""
    collected(tmp_path, body)
    assert steps(tmp_path) == [3, 4]


@pytest.mark.parametrize("scheduled", [False, True])
def test_an_optimizer_that_goes_on_where_another_stands_still(tmp_path: Path, scheduled: bool):
    """Both are alive: the second is the clock once it has stepped ten times alone."""
    body = f"""
first, second = (torch.optim.SGD(model.parameters(), 0.001) for _ in range(2))
scheduler = torch.optim.lr_scheduler.LinearLR(first) if {scheduled} else None
before = [vars(each).get("step") for each in (first, second)]
for optimizer, count in ((first, 2), (second, 20)):
    for _ in range(count):
        print(backward())
        optimizer.step()
print([vars(each).get("step") for each in (first, second)] == before)
"""
    done = collected(tmp_path, body)
    assert done.stdout.endswith("True\n")
    assert steps(tmp_path) == [3, 4]


def test_an_optimizer_is_not_kept_alive(tmp_path: Path):
    body = """
import gc, weakref
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(2):
    print(backward())
    optimizer.step()
gone = weakref.ref(optimizer)
del optimizer
gc.collect()
print(gone())
"""
    assert collected(tmp_path, body).stdout.endswith("None\n")


def test_a_critic_steps_within_the_steps_of_the_first(tmp_path: Path):
    body = """
generator, critic = (torch.optim.SGD(model.parameters(), 0.001) for _ in range(2))
for _ in range(6):
    print(backward())
    generator.step()
    for _ in range(5):
        critic.step()
"""
    collected(tmp_path, body)
    assert manifest_of(tmp_path / "traces")["steps_seen"] == 5
    assert steps(tmp_path) == [3, 4]
