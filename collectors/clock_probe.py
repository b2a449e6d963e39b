"""How far the clocks of two hosts are apart. In: the store of the job's process group. Out: `Offset` of this host.

    host b, its first rank                        host a, rank 0
    t0, sets ping  ────────────────────────────▶  waits for ping, sets pong to its time
    t1, has pong   ◀────────────────────────────

offset = pong − (t0 + t1) / 2, wrong by at most (t1 − t0) / 2; of several rounds the quickest counts (F. Cristian,
"Probabilistic clock synchronization", 1989). The store is used and not a send and receive: a peer that never answers
then costs a time limit and a warning, while a receive that is given up could take a message of the training later.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

_ROUNDS: Final = 8
_PREFIX: Final = "tracetools/clock"

# What a store raises for a peer that does not answer, or is gone.
_NO_ANSWER: Final = (RuntimeError, ValueError, OSError)


@dataclass(frozen=True, slots=True)
class Offset:
    """What to add to this host's clock to have rank 0's, and how wrong that may be. rounds: how many were made."""

    offset_ns: int
    error_bound_ns: int
    rounds: int


class NoProbe(Exception):
    """No offset could be measured; the message says why."""


def measure_offset(moment: str, host: str, limit_s: float = 5.0) -> Offset | None:
    """Offset of this host's clock to that of rank 0, measured now; zero on rank 0's own host.

    Only the first rank of each host measures; None on the others. All ranks of the job have to call this at the same
    point of their training, within the time limit. moment: a word that tells one call from the next.

    Raises: NoProbe where there is no process group, or a peer does not answer in time.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise NoProbe("no process group is initialized")
    store = _store()
    deadline = time.monotonic() + limit_s
    rank, world_size = dist.get_rank(), dist.get_world_size()
    try:
        hosts = _hosts(store, moment, host, rank, world_size, deadline)
        firsts = sorted(hosts.index(each) for each in set(hosts))
        if rank == 0:
            for first in firsts[1:]:
                _answer(store, f"{_PREFIX}/{moment}/{first}", deadline)
        if hosts[rank] == hosts[0]:
            return Offset(0, 0, 0) if rank == 0 else None
        return _ask(store, f"{_PREFIX}/{moment}/{rank}", deadline) if rank in firsts else None
    except _NO_ANSWER as error:
        # What the store says names its keys, and nothing that a reader knows.
        raise NoProbe(
            f"no answer within {limit_s:g} s; every rank has to record, and to reach the same step"
        ) from error


def _store() -> Any:
    get = getattr(dist.distributed_c10d, "_get_default_store", None)
    if get is None:
        raise NoProbe("this torch has no store to ask")
    return get()


def _hosts(store: Any, moment: str, host: str, rank: int, world_size: int, deadline: float) -> list[str]:
    """Host of each rank."""
    store.set(f"{_PREFIX}/{moment}/host/{rank}", host)
    keys = [f"{_PREFIX}/{moment}/host/{each}" for each in range(world_size)]
    _wait(store, keys, deadline)
    return [store.get(key).decode() for key in keys]


def _ask(store: Any, prefix: str, deadline: float) -> Offset:
    rounds = []
    for each in range(_ROUNDS):
        before = time.time_ns()
        store.set(f"{prefix}/ping/{each}", b"")
        _wait(store, [f"{prefix}/pong/{each}"], deadline)
        there = int(store.get(f"{prefix}/pong/{each}"))
        after = time.time_ns()
        rounds.append((after - before, there - (before + after) // 2))
    trip, offset = min(rounds)
    return Offset(offset, (trip + 1) // 2, len(rounds))


def _answer(store: Any, prefix: str, deadline: float) -> None:
    for each in range(_ROUNDS):
        _wait(store, [f"{prefix}/ping/{each}"], deadline)
        store.set(f"{prefix}/pong/{each}", str(time.time_ns()))


def _wait(store: Any, keys: list[str], deadline: float) -> None:
    store.wait(keys, timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
