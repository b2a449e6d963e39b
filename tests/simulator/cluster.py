"""All ranks of a job, until they are done. In: players. Out: nothing but what they wrote and logged.

Ranks meet in collectives and in sends and receives; between meetings none knows of another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.simulator.gpu import Gpu, Running
from tests.simulator.player import Player
from tests.simulator.tape import Meeting


@dataclass(frozen=True, slots=True)
class Held:
    """A meeting that took place. waits_ns: by rank, until the last was there. seq: its number in its group, from 1."""

    meeting: Meeting
    seq: int
    waits_ns: dict[int, int]
    transfer_ns: int
    last: int


class Cluster:
    """The meeting places of a job. transfer_ns: how long a meeting's data takes to move once all are there."""

    def __init__(self, transfer_ns: Callable[[Meeting], int]) -> None:
        self.held: list[Held] = []
        self._transfer_ns = transfer_ns
        self._present: dict[tuple[tuple[int, ...], str, int], list[tuple[Gpu, Running]]] = {}
        self._touched: deque[Gpu] = deque()

    def meet(self, number: int, meeting: Meeting, running: Running, gpu: Gpu) -> None:
        """One member is there; the last one sets all others free."""
        key = meeting.ranks, meeting.tag, number
        present = self._present.setdefault(key, [])
        present.append((gpu, running))
        if len(present) < len(meeting.ranks):
            return
        del self._present[key]
        last, decisive = max(present, key=lambda each: (each[1].ready, each[0].rank))
        met, length, path = decisive.ready, self._transfer_ns(meeting), decisive.path
        if all(waiting.launch.recorded for _, waiting in present):
            assert {waiting.seq for _, waiting in present} == {decisive.seq}
            waits = {member.rank: met - waiting.ready for member, waiting in present}
            self.held.append(Held(meeting, decisive.seq, waits, length, last.rank))
        for member, waiting in present:
            member.finish(waiting, met, length, path)
            if member is not gpu:
                self._touched.append(member)

    def run(self, players: Sequence[Player]) -> None:
        """Until every rank is done.

        Raises: RuntimeError where ranks wait for each other for ever.
        """
        runnable = deque(players)
        blocked: list[Player] = []
        while runnable:
            player = runnable.popleft()
            player.advance()
            if not player.finished:
                blocked.append(player)
            while self._touched:
                self._touched.popleft().settle()
            free = [each for each in blocked if each.blocked_by is not None and each.blocked_by.is_known]
            blocked = [each for each in blocked if each not in free]
            runnable.extend(free)
        if blocked:
            waiting = {each.rank: each.blocked_by.work.name for each in blocked if each.blocked_by}
            raise RuntimeError(f"ranks wait for ever: {waiting}")
