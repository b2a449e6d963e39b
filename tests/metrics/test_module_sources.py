"""Where a module's forward is defined, from the Python frames inside its calls."""

from __future__ import annotations

from pathlib import Path

from tests.build import Builder, by_path


def test_the_outermost_forward_inside_the_call(tmp_path: Path):
    job = Builder()
    job.module("block", 0, 100)
    job.frame("my/model.py(18): forward", 1, 98)
    job.frame("base.py(7): forward", 2, 90)  # super().forward()
    job.module("block.inner", 10, 50)
    job.frame("torch/nn/modules/module.py(1775): _call_impl", 11, 48)
    job.frame("my/inner.py(3): forward", 12, 40)
    job.module("block.scripted", 70, 10)
    rows = by_path(job.run(tmp_path))
    assert rows["block"].defined_at == "my/model.py:18"
    assert rows["block.inner"].defined_at == "my/inner.py:3"
    assert rows["block.scripted"].defined_at is None
    assert rows["(unattributed)"].defined_at is None


def test_kinetos_own_module_frames(tmp_path: Path):
    job = Builder()
    job.frame("nn.Module: Net_0", 0, 100)
    job.frame("torch/nn/modules/module.py(1775): _call_impl", 1, 98)
    job.frame("net (old).py(4): forward", 2, 96)
    assert by_path(job.run(tmp_path))["Net_0"].defined_at == "net (old).py:4"


def test_a_forward_outside_every_module_is_nobodys(tmp_path: Path):
    job = Builder()
    job.frame("serve.py(4): forward", 0, 100)
    job.module("net", 10, 50)
    assert by_path(job.run(tmp_path))["net"].defined_at is None
