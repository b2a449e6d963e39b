"""Formulas that users register, in Python and in files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracetools
from tests.build import Builder
from tracetools.errors import UsageError
from tracetools.flops import Flops, OpCall, Uncountable, elements, register, unregister

OP = "my::fused"
FILE = """
from tracetools.flops import register

@register("my::fused")
def fused(call):
    return 2 * call.shape(0)[0]
"""


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    yield
    unregister(OP, "aten::mm")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    job = Builder()
    job.span("cpu_op", OP, 0, 50, **{"Input Dims": [[8, 4], [4, 2]]})
    job.span("cpu_op", "aten::mm", 10, 20, **{"Input Dims": [[8, 4], [4, 2]]})
    job.span("cpu_op", OP, 60, 20, **{"Input Dims": [[16]]})
    return job.write(tmp_path / "trace.json")


def total(path: Path) -> int | None:
    (row,) = tracetools.load(path).analysis.flops.by_rank
    return row.total


def test_an_op_counts_once_registered(trace: Path):
    assert total(trace) == 128

    @register(OP)
    def fused(call: OpCall) -> int:
        return 2 * elements(call.shape(0))

    # The first call holds an op that counts by itself.
    assert total(trace) == 128 + 32
    unregister(OP)
    assert total(trace) == 128


def test_a_formula_of_ones_own_goes_before_ours(trace: Path):
    register("aten::mm")(lambda call: Flops(7))
    assert total(trace) == 7


def test_what_a_formula_cannot_count_is_listed(trace: Path):
    @register(OP)
    def fused(call: OpCall) -> int:
        raise Uncountable("never")

    run = tracetools.load(trace)
    assert [(row.op, row.calls) for row in run.analysis.flops.uncounted] == [(OP, 1)]
    assert run.uncounted()[["op", "calls"]].to_numpy().tolist() == [[OP, 1]]


@pytest.mark.parametrize("result", ["'12'", "None", "1.5", "True", "1 / 0"])
def test_a_formula_that_fails_is_named(result: str, trace: Path):
    register(OP)(lambda call: eval(result))
    with pytest.raises(UsageError, match=f"the formula of {OP}"):
        tracetools.load(trace)


def command(trace: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tracetools", "analyze", str(trace), "--section", "flops", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True)


def test_a_file_on_the_command_line(trace: Path, tmp_path: Path):
    (tmp_path / "formulas.py").write_text(FILE)
    done = command(trace, "--flops", tmp_path / "formulas.py")
    assert done.returncode == 0
    assert "computed 160 FLOP" in done.stdout


def test_a_file_reaches_every_worker(trace: Path, tmp_path: Path):
    (tmp_path / "formulas.py").write_text(FILE)
    (tmp_path / "second.json").write_bytes(trace.read_bytes().replace(b'"rank": 0', b'"rank": 1'))
    lines = f"import tracetools; r = tracetools.load([{str(trace)!r}, {str(tmp_path / 'second.json')!r}], workers=2, "
    lines += f"flops={str(tmp_path / 'formulas.py')!r}); print([row.total for row in r.analysis.flops.by_rank])"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[160, 160]\n", "")


def test_formulas_of_this_process_are_not_lost_to_workers(trace: Path, tmp_path: Path):
    (tmp_path / "second.json").write_bytes(trace.read_bytes().replace(b'"rank": 0', b'"rank": 1'))
    register(OP)(lambda call: 2 * elements(call.shape(0)))
    run = tracetools.load([trace, tmp_path / "second.json"], workers=2)
    assert [row.total for row in run.analysis.flops.by_rank] == [160, 160]


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (None, "No such file"),
        ("def (", "SyntaxError"),
        ("1 / 0", "division by zero"),
        ("x = 1", "registers no formula"),
        ("raise SystemExit(3)", "SystemExit"),
    ],
)
def test_a_file_that_does_not_work_is_an_error(text: str | None, fact: str, trace: Path, tmp_path: Path):
    path = tmp_path / "formulas.py"
    if text is not None:
        path.write_text(text)
    done = command(trace, "--flops", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert fact in done.stderr
    assert "Traceback" not in done.stderr


def test_peaks_and_conventions_on_the_command_line(trace: Path):
    done = command(trace, "--peak", "fp32=1G")
    assert "MFU" in done.stdout or done.returncode == 0
    for wrong in ("bf16", "bf16=", "bf16=fast", "bf17=1T", "bf16=0", "bf16=-1"):
        refused = command(trace, "--peak", wrong)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"tracetools: --peak {wrong}: ")
    assert command(trace, "--convention", "mine").returncode == 2


def test_peaks_and_conventions_in_python(trace: Path):
    for options in ({"convention": "mine"}, {"peaks": {"bf17": 1e12}}, {"peaks": {"bf16": 0}}):
        with pytest.raises(UsageError):
            tracetools.load(trace, **options)  # type: ignore[arg-type]
