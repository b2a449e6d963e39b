"""Which process of the job this is, as its launcher says. In: environment variables. Out: `Process`.

    torchrun, deepspeed    RANK=3 LOCAL_RANK=1 WORLD_SIZE=8
    mpirun (Open MPI)      OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_SIZE=8
    mpiexec (MPICH, PMI)   PMI_RANK=3 MPI_LOCALRANKID=1 PMI_SIZE=8
    srun                   SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NTASKS=8

Only these names are read; nothing else of the environment is looked at or kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from collectors.errors import CollectError


class _Names(NamedTuple):
    """Variables of one launcher. needs: one that must be there as well."""

    launcher: str
    rank: str
    local_rank: str
    world_size: str
    needs: str | None = None


# The innermost launcher first: torchrun may itself have been started by srun or mpirun, once a node.
_LAUNCHERS: Final = (
    _Names("torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
    _Names("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    _Names("pmi", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    # A batch script that was not started by srun has a SLURM_PROCID of 0 as well, but no step.
    _Names("slurm", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_ID"),
)
READ: Final = frozenset(name for each in _LAUNCHERS for name in each[1:] if name)
"""All names that are ever read."""


class BadLauncher(CollectError):
    """The variables of a launcher contradict themselves; the message names them."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a job. launcher: who said so, None for a process alone. local_rank: among those of its host."""

    rank: int
    world_size: int
    local_rank: int | None
    launcher: str | None


def find_process(environment: Mapping[str, str]) -> Process:
    """Place of this process in its job; rank 0 of 1 where no launcher says otherwise.

    Raises: BadLauncher where a number is none, or the rank lies outside the world.

    >>> find_process({"PMI_RANK": "3", "PMI_SIZE": "8"})
    Process(rank=3, world_size=8, local_rank=None, launcher='pmi')
    >>> find_process({})
    Process(rank=0, world_size=1, local_rank=None, launcher=None)
    """
    for names in _LAUNCHERS:
        wanted = [names.rank, names.world_size, *([names.needs] if names.needs else [])]
        if all(environment.get(name) for name in wanted):
            return _process_of(names, environment)
    return Process(0, 1, None, None)


def _process_of(names: _Names, environment: Mapping[str, str]) -> Process:
    rank, size = _number(environment, names.rank), _number(environment, names.world_size)
    if not 0 <= rank < size:
        raise BadLauncher(
            f"{names.rank}={rank} lies outside {names.world_size}={size}; start the job with one launcher, "
            "or unset the variables of the other"
        )
    local = _number(environment, names.local_rank) if environment.get(names.local_rank) else None
    return Process(rank, size, local, names.launcher)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise BadLauncher(f"{name}={text[:40]!r} is no rank or size; start the job with its launcher, or unset it")
    return int(text)
