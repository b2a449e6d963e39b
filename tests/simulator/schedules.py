"""In which order a pipeline rank works on its chunks. In: rank, ranks, micro-batches, chunks. Out: actions.

An action is (kind, chunk, micro-batch): F forward, B backward, I input gradient alone, W weight gradient alone. Chunk k
of rank s is virtual stage k * ranks + s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Action = tuple[str, int, int]


def gpipe(stage: int, stages: int, batches: int, chunks: int = 1) -> list[Action]:
    """All forwards, then all backwards."""
    forward = [("F", chunk, batch) for chunk in range(chunks) for batch in range(batches)]
    backward = [("B", chunk, batch) for chunk in reversed(range(chunks)) for batch in range(batches)]
    return forward + backward


def one_forward_one_backward(stage: int, stages: int, batches: int, chunks: int = 1) -> list[Action]:
    """As many forwards ahead as there are stages behind, then in turns (PipeDream-Flush)."""
    ahead = min(batches, stages - stage - 1)
    actions: list[Action] = [("F", 0, batch) for batch in range(ahead)]
    for batch in range(batches - ahead):
        actions += [("F", 0, ahead + batch), ("B", 0, batch)]
    return actions + [("B", 0, batch) for batch in range(batches - ahead, batches)]


def interleaved(stage: int, stages: int, batches: int, chunks: int = 1) -> list[Action]:
    """1F1B over several chunks a rank; batches have to be a multiple of the stages (Narayanan et al. 2021)."""
    total = batches * chunks

    def at(number: int, kind: str) -> Action:
        group, within = divmod(number, stages * chunks)
        chunk = within // stages
        return kind, chunk if kind == "F" else chunks - 1 - chunk, group * stages + within % stages

    ahead = min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages)
    actions = [at(number, "F") for number in range(ahead)]
    for number in range(total - ahead):
        actions += [at(ahead + number, "F"), at(number, "B")]
    return actions + [at(number, "B") for number in range(total - ahead, total)]


def zero_bubble(stage: int, stages: int, batches: int, chunks: int = 1) -> list[Action]:
    """1F1B with the weight gradients held back to fill what would be a bubble (ZB-H1, Qi et al. 2023)."""
    ahead = min(batches, stages - stage - 1)
    actions: list[Action] = [("F", 0, batch) for batch in range(ahead)]
    waiting = 0
    for batch in range(batches):
        if ahead + batch < batches:
            actions.append(("F", 0, ahead + batch))
        actions.append(("I", 0, batch))
        if batch >= stage:
            actions.append(("W", 0, waiting))
            waiting += 1
    return actions + [("W", 0, batch) for batch in range(waiting, batches)]


SCHEDULES: Final[dict[str, Callable[[int, int, int, int], list[Action]]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zero_bubble": zero_bubble,
}
