"""The folder of a run: many ranks at once, other runs, folders that cannot be written, nothing half-written."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from collectors.errors import CollectError
from collectors.folder import Folder
from collectors_job import environment
from tracetools.trace_file import MEASURED_KEY, Pass

NOBODY = 65534
RANKS = 64


def trace(folder: Folder, text: str = '{"traceEvents": []\n}\n', recorded: Pass = Pass.TIMING) -> Path:
    path = folder.unpacked(recorded)
    path.write_text(text, encoding="utf-8")
    return path


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def record_as(rank: int, path: Path) -> None:
    folder = Folder(path, rank, RANKS, None)
    folder.claim(overwrite=False)
    folder.write_trace(trace(folder, json.dumps({"rank": rank, "traceEvents": []})), Pass.TIMING, {"rank": rank})
    folder.write_manifest({"rank": rank})
    folder.release()


def test_many_ranks_at_once(tmp_path: Path):
    """Processes that are no children of a torch that runs threads."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(8) as pool:
        pool.starmap(record_as, [(rank, tmp_path / "a" / "b") for rank in range(RANKS)], chunksize=1)
    there = names(tmp_path / "a" / "b")
    assert there == sorted(
        f"rank-{rank:05d}.{kind}" for rank in range(RANKS) for kind in ("trace.json.gz", "manifest.json")
    )
    for rank in (0, 17, RANKS - 1):
        with gzip.open(tmp_path / "a" / "b" / f"rank-{rank:05d}.trace.json.gz") as file:
            assert json.load(file) == {"rank": rank, "traceEvents": [], MEASURED_KEY: {"rank": rank}}


def test_another_run_is_noticed_whatever_its_size(tmp_path: Path):
    record_as(5, tmp_path)
    own = Folder(tmp_path, 4, RANKS, None)
    own.claim(overwrite=False)  # its own run's rank 5, as far as it can tell
    own.release()
    with pytest.raises(CollectError, match="holds another run"):
        Folder(tmp_path, 5, RANKS, None).claim(overwrite=False)
    with pytest.raises(CollectError, match="holds another run"):
        Folder(tmp_path, 0, 2, None).claim(overwrite=False)  # a job of two has no rank 5
    with pytest.raises(CollectError, match="holds another run"):
        Folder(tmp_path, 0, RANKS, {0, 1}).claim(overwrite=False)  # nor one of which two record
    last = Folder(tmp_path, 0, 2, None)
    last.claim(overwrite=True)
    last.release()
    assert names(tmp_path) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_many_runs_that_start_at_once_one_is_let_in(tmp_path: Path, overwrite: bool):
    code = """
import sys
from pathlib import Path
from collectors.errors import CollectError
from collectors.folder import Folder
folder = Folder(Path(sys.argv[1]), 0, 1, None)
print("ready", flush=True)
sys.stdin.readline()
try:
    folder.claim(sys.argv[2] == "True")
    print("in", flush=True)
except CollectError as error:
    print(error, flush=True)
sys.stdin.readline()
"""
    if overwrite:
        (tmp_path / ".rank-00000.claim").write_text('{"host": "gone", "process_id": 1}')
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, tmp_path, str(overwrite)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(6)
    ]  # fmt: skip
    pipes = [(run.stdin, run.stdout) for run in runs if run.stdin and run.stdout]
    assert all(each.readline() == "ready\n" for _, each in pipes)
    for each, _ in pipes:
        each.write("\n")
        each.flush()
    answers = [each.readline().rstrip() for _, each in pipes]
    for run in runs:
        run.communicate("\n")
    assert answers.count("in") == 1
    assert sum("another run records into it now (process" in each for each in answers) == 5


def test_the_claim_of_a_run_that_was_killed(tmp_path: Path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    claim = tmp_path / ".rank-00000.claim"
    for said in (json.dumps({"host": socket.gethostname(), "process_id": gone.pid}), "", '{"host": "b"}'):
        claim.write_text(said)
        with pytest.raises(CollectError, match=r"\.rank-00000\.claim says .* pass another --out, or --overwrite"):
            Folder(tmp_path, 0, 1, None).claim(overwrite=False)
        folder = Folder(tmp_path, 0, 1, None)
        folder.claim(overwrite=True)
        assert names(tmp_path) == [claim.name]
        folder.release()
        assert names(tmp_path) == []


def test_a_run_that_is_at_work_is_not_overwritten(tmp_path: Path):
    (tmp_path / ".rank-00001.claim").write_text(json.dumps({"host": socket.gethostname(), "process_id": os.getppid()}))
    for rank, world_size in ((1, 2), (0, 1)):
        with pytest.raises(CollectError, match="another run records into it now"):
            Folder(tmp_path, rank, world_size, None).claim(overwrite=True)
    Folder(tmp_path, 0, 2, None).claim(overwrite=False)  # its own run's rank 1, as far as it can tell


def test_a_run_that_is_refused_leaves_the_other_one_alone(tmp_path: Path):
    record_as(0, tmp_path)
    before = names(tmp_path)
    with pytest.raises(CollectError, match="holds another run"):
        Folder(tmp_path, 0, 1, None).claim(overwrite=False)
    assert names(tmp_path) == before


def test_what_is_no_trace_of_ours_is_left_alone(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "trace.json").write_text("{}")
    folder = Folder(tmp_path, 0, 1, None)
    folder.claim(overwrite=True)
    folder.release()
    assert names(tmp_path) == ["notes.txt", "trace.json"]


def test_a_folder_below_a_file(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CollectError, match="Not a directory; pass a folder that can be written to"):
        Folder(tmp_path / "file" / "traces", 0, 1, None).claim(overwrite=False)


def test_a_folder_that_can_be_read_only(tmp_path: Path):
    """As a user who may not write; root may write everywhere, so it becomes nobody first."""
    (tmp_path / "traces").mkdir(mode=0o555)
    code = f"""
import os
from pathlib import Path
from collectors.folder import Folder
if os.geteuid() == 0:
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
os.chdir("traces")
Folder(Path("."), 0, 1, None).claim(False)
"""
    for each in [tmp_path, *list(tmp_path.parents)[:2]]:
        each.chmod(each.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False,
        env=environment(PYTHONPATH=str(Path(__file__).resolve().parents[2])),
    )  # fmt: skip
    assert done.stderr.rstrip().endswith("Permission denied; pass a folder that can be written to"), done.stderr
    assert names(tmp_path / "traces") == []


def test_a_trace_of_any_length_keeps_its_end(tmp_path: Path):
    """The last brace may lie anywhere against the chunks in which a file is packed."""
    folder = Folder(tmp_path, 0, 1, None)
    for length in (0, 1, 50, (1 << 20) - 40, (1 << 20) - 20, (1 << 20) + 30, (2 << 20) + 5):
        for ending in ("}", "}\n", "\n}   \n"):
            text = '{"filler": "' + "x" * length + '", "traceEvents": []' + ending
            path = folder.write_trace(trace(folder, text), Pass.TIMING, {"complete": True})
            with gzip.open(path) as file:
                assert json.load(file) == {
                    "filler": "x" * length, "traceEvents": [], MEASURED_KEY: {"complete": True}
                }  # fmt: skip
    assert names(tmp_path) == ["rank-00000.trace.json.gz"]


def test_a_trace_that_was_cut_is_packed_as_it_is(tmp_path: Path):
    folder = Folder(tmp_path, 0, 1, None)
    path = folder.write_trace(trace(folder, '{"traceEvents": [{"ph": "X"'), Pass.STRUCTURE, {"complete": True})
    with gzip.open(path, "rt") as file:
        assert file.read() == '{"traceEvents": [{"ph": "X"'
    assert path.name == "rank-00000.structure.trace.json.gz"


def test_a_write_that_fails_leaves_nothing(tmp_path: Path):
    folder = Folder(tmp_path, 0, 1, None)
    missing = folder.unpacked(Pass.TIMING)
    with pytest.raises(OSError, match="No such file"):
        folder.write_trace(missing, Pass.TIMING, {})
    assert names(tmp_path) == []
    (tmp_path / "rank-00000.trace.json.gz").mkdir()
    with pytest.raises(OSError, match="directory"):
        folder.write_trace(trace(folder), Pass.TIMING, {})
    assert names(tmp_path) == ["rank-00000.trace.json.gz"]


def test_kinetos_own_temporary_is_removed(tmp_path: Path):
    folder = Folder(tmp_path, 0, 1, None)
    path = trace(folder)
    path.with_name(path.name + ".tmp").write_text("half")
    folder.discard(path)
    assert os.listdir(tmp_path) == []
