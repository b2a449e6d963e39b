"""The command as a user meets it: a process with arguments, two streams and an exit code."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tracetools
from tracetools.cli import parse_ranks, parse_steps
from tracetools.errors import UsageError

TRACE = {
    "schemaVersion": 1,
    "distributedInfo": {"rank": 0, "world_size": 1},
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "pid": 1, "tid": 1, "ts": 0.0, "dur": 100.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.0, "dur": 50.5},
    ],
    "traceName": "made by hand",
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TRACE))
    return path


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """A file whose copy was cut: it can be read in part, with a finding of severity error or a refusal."""
    path = tmp_path / "torn.json"
    path.write_text('{"traceEvents": [')
    return path


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return kept | extra


def tool(*arguments: object, cwd: Path | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tracetools", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", cwd=cwd, env=environment(**extra), timeout=60
    )


def test_version() -> None:
    done = tool("--version")
    assert (done.returncode, done.stdout) == (0, f"tracetools {tracetools.__version__}\n")


def test_help_states_units_and_exit_codes() -> None:
    done = tool("analyze", "--help")
    assert done.returncode == 0
    for words in ("Examples:", "in ms", "in integer ns", "Exit codes:", "130  interrupted", "--rank-from-name"):
        assert words in done.stdout


def test_help_loads_no_numpy() -> None:
    code = "import sys\nfrom tracetools.cli import run\nrun(['analyze', '--help'])\nprint('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_a_trace_gives_a_report_and_nothing_on_stderr(trace: Path) -> None:
    done = tool("analyze", trace)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"tracetools {tracetools.__version__} · 1 rank · steps 4 · 2 events · CPU only\n")


def test_json_on_stdout_is_the_document_and_nothing_else(trace: Path) -> None:
    done = tool("analyze", trace, "--format", "json")
    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert document["steps"][0]["wall_ns"] == 100_000
    assert [row["self_cpu_ns"] for row in document["ops"] if row["name"] == "aten::mm"] == [50_500]


def test_json_says_that_it_holds_every_row(trace: Path) -> None:
    done = tool("analyze", trace, "--format", "json", "--top", 1)
    assert json.loads(done.stdout)
    assert done.stderr == "tracetools: --module, --top and --depth shape the table; JSON holds every row\n"


def test_the_same_input_gives_the_same_bytes(trace: Path) -> None:
    once, again = (tool("analyze", trace, "--format", "json", PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert once.stdout == again.stdout


def test_out_writes_the_document_and_tables(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "made" / "here"
    done = tool("analyze", trace, "--out", out)
    tables = "annotations flops_by_rank flops_by_step flops_uncounted gpu modules ops steps"
    names = ["analysis.json", *(f"{name}.csv" for name in tables.split())]
    assert done.returncode == 0
    assert sorted(path.name for path in out.iterdir()) == names
    assert (out / "analysis.json").read_text() == tool("analyze", trace, "--format", "json").stdout
    assert done.stderr.startswith(f"tracetools: wrote to {out}: analysis.json")


WRONG = {
    "no command": ((), "Missing command"),
    "no path": (("analyze",), "Missing argument 'PATHS'"),
    "missing file": (("analyze", "nowhere.json"), "nowhere.json"),
    "unknown option": (("analyze", "x", "--colour"), "No such option"),
    "bad step": (("analyze", "x", "--step", "ten"), "--step ten: not a number, a range or a list; write 7, 5-7 or 5,7"),
    "backward range": (("analyze", "x", "--step", "7-5"), "--step 7-5: not a range that can be used"),
    "huge range": (("analyze", "x", "--step", "0-99999999999"), "not a range that can be used"),
    "bad rank": (("analyze", "x", "--rank", "a=b"), "--rank a=b: not a number"),
    "bad depth": (("analyze", "x", "--depth", "-1"), "--depth"),
    "bad format": (("analyze", "x", "--format", "xml"), "'xml'"),
    "file as folder": (("analyze", "x", "--out", "/dev/null/out"), "/dev/null/out: cannot be written"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_one_line_and_exit_2(case: str, tmp_path: Path) -> None:
    arguments, words = WRONG[case]
    done = tool(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.startswith("tracetools: ")
    assert done.stderr.count("\n") == 1


def test_nothing_readable_is_exit_2(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("no trace at all")
    done = tool("analyze", tmp_path / "notes.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "notes.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_rank_or_step_is_exit_2(trace: Path) -> None:
    for arguments in (("--rank", 9), ("--step", 99)):
        done = tool("analyze", trace, *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("tracetools: ")


def test_a_rank_can_be_given_to_a_file(trace: Path) -> None:
    done = tool("analyze", trace, "--rank", f"{trace}=7", "--format", "json")
    assert [row["rank"] for row in json.loads(done.stdout)["inputs"]] == [7]


def test_strict_turns_a_finding_of_severity_error_into_exit_1(trace: Path, torn: Path) -> None:
    assert tool("analyze", trace, "--strict").returncode == 0
    both = (trace, torn, "--rank", f"{torn}=1")
    assert tool("analyze", *both).returncode == 0
    done = tool("analyze", *both, "--strict")
    assert done.returncode == 1
    assert "error" in done.stdout


def test_a_name_with_an_escape_cannot_reach_the_terminal(tmp_path: Path) -> None:
    evil = tmp_path / "evil\x1b[2J.json"
    done = tool("analyze", evil)
    assert r"evil\x1b[2J.json" in done.stderr
    assert "\x1b" not in done.stderr


def test_an_early_reader_is_no_error(trace: Path) -> None:
    command = f"{sys.executable} -m tracetools analyze {trace} --format json | head -c 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, env=environment(), timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{", "")


def test_an_ascii_terminal_gets_an_approximation(trace: Path) -> None:
    done = tool("analyze", trace, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


def test_an_interrupt_is_exit_130() -> None:
    code = (
        "import tracetools.run, time\n"
        "tracetools.run.analyze = lambda *a, **k: (print('started', flush=True), time.sleep(60))\n"
        "from tracetools.cli import main\nmain(['analyze', 'x'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "tracetools: interrupted\n")


def on_a_terminal(*arguments: object, **extra: str) -> str:
    """What the command writes when all its streams are a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tracetools", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(TERM="xterm", **extra)
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            block = os.read(ours, 65536)
        except OSError:  # Linux reports the end of a terminal's output so.
            break
        if not block:
            break
        written += block
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return written.decode("utf-8").replace("\r\n", "\n")


def test_colour_only_on_a_terminal_that_wants_it(trace: Path) -> None:
    assert "\x1b[1m" in on_a_terminal("analyze", trace)
    assert "\x1b" not in on_a_terminal("analyze", trace, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal("analyze", trace, "--no-color")
    assert "\x1b" not in tool("analyze", trace).stdout


def test_a_small_trace_is_analyzed_in_a_moment(trace: Path) -> None:
    tool("analyze", trace)
    started = time.perf_counter()
    tool("analyze", trace)
    # 0.6 s where the machine does nothing else; tests share it with others.
    assert time.perf_counter() - started < 3


def test_ranks_in_both_forms() -> None:
    ranks = parse_ranks(["3", "0-1", "dir/a=b.json=2"])
    assert ranks.selected == (0, 1, 3)
    assert ranks.of_file == {"dir/a=b.json": 2}
    with pytest.raises(UsageError, match="given two ranks"):
        parse_ranks(["a.json=1", "a.json=2"])


def test_steps_in_all_forms() -> None:
    assert parse_steps(["10-12", "3, 5", "11"]) == (3, 5, 10, 11, 12)


def test_the_sample_run(golden: Callable[[str, str], None]) -> None:
    root = Path(__file__).resolve().parent.parent
    golden("resnet_checkpoint_mi300x.txt", tool("analyze", "samples/resnet_checkpoint_mi300x", cwd=root).stdout)
