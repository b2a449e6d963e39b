"""Which process this is, by launcher; launchers inside each other; nonsense."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.launcher import READ, BadLauncher, Process, find_process

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "6"}
PMI = {"PMI_RANK": "2", "MPI_LOCALRANKID": "0", "PMI_SIZE": "4"}
SRUN = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "7", "SLURM_LOCALID": "3", "SLURM_NTASKS": "16"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, Process(3, 8, 1, "torchrun")),
        (OPEN_MPI, Process(5, 6, 1, "openmpi")),
        (PMI, Process(2, 4, 0, "pmi")),
        (SRUN, Process(7, 16, 3, "slurm")),
        # One srun task a node starts torchrun, which starts the ranks.
        ({**SRUN, **TORCHRUN}, Process(3, 8, 1, "torchrun")),
        ({**SRUN, **OPEN_MPI}, Process(5, 6, 1, "openmpi")),
        # A batch script without srun is a process alone, however many tasks were asked for.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0"}, Process(0, 1, None, None)),
        # A half-set pair says nothing.
        ({"RANK": "3"}, Process(0, 1, None, None)),
        ({"RANK": "", "WORLD_SIZE": "", **PMI}, Process(2, 4, 0, "pmi")),
    ],
)
def test_the_innermost_launcher_says_who_this_is(environment: dict[str, str], expected: Process):
    assert find_process({"HOME": "/", "TOKEN": "secret", **environment}) == expected


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RANK": "8", "WORLD_SIZE": "8"}, r"RANK=8 lies outside WORLD_SIZE=8"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, r"lies outside"),
        ({"RANK": "one", "WORLD_SIZE": "8"}, r"RANK='one' is no rank"),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, r"RANK='-1' is no rank"),
        ({"RANK": "²", "WORLD_SIZE": "8"}, r"is no rank"),
        ({"RANK": "1", "WORLD_SIZE": "9" * 5000}, r"WORLD_SIZE='9{40}' is no rank"),
    ],
)
def test_nonsense_is_named(environment: dict[str, str], words: str):
    with pytest.raises(BadLauncher, match=words):
        find_process(environment)


@given(st.dictionaries(st.sampled_from(sorted(READ)), st.text(max_size=5)))
def test_any_values_give_a_process_or_a_clear_error(environment: dict[str, str]):
    try:
        found = find_process(environment)
    except BadLauncher:
        return
    assert 0 <= found.rank < found.world_size


def test_nothing_else_of_the_environment_is_read():
    class Watched(dict[str, str]):
        asked: set[str] = set()

        def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
            self.asked.add(name)
            return super().get(name, default)

        def __iter__(self):
            raise AssertionError("the environment was looked through")

    find_process(Watched(SRUN))
    assert Watched.asked <= READ


# One write for the whole line: several ranks share the output, and print() may write a line in parts.
SAY = """
import os, sys
from collectors.launcher import find_process
sys.stdout.write(f"process {find_process(os.environ)}\\n")
"""


def say(*command: str | Path) -> list[str]:
    """What the processes that a command starts find themselves to be."""
    clean = {name: value for name, value in os.environ.items() if name not in READ}
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
        env={**clean, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    return sorted(line for line in run.stdout.splitlines() if line.startswith("process"))


def test_a_process_alone():
    lines = say(sys.executable, "-c", SAY)
    assert lines == ["process Process(rank=0, world_size=1, local_rank=None, launcher=None)"]


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun; make system installs Open MPI")
def test_under_a_real_mpirun():
    lines = say("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, "-c", SAY)
    assert lines == [
        f"process Process(rank={rank}, world_size=2, local_rank={rank}, launcher='openmpi')" for rank in (0, 1)
    ]


def test_under_a_real_torchrun(tmp_path: Path):
    script = tmp_path / "say.py"
    script.write_text(SAY, encoding="utf-8")
    lines = say(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", script)
    assert lines == [
        f"process Process(rank={rank}, world_size=2, local_rank={rank}, launcher='torchrun')" for rank in (0, 1)
    ]
