"""All ranks of a job, until they are done. In: players. Out: nothing but what they wrote and logged.

Ranks meet in collectives and in sends and receives; between meetings none knows of another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.simulator.player import Player, Running
from tests.simulator.tape import Meeting


@dataclass(frozen=True, slots=True)
class Held:
    """A meeting that took place. waits_ns: by rank, until the last was there. seq: its number in its group, from 1."""

    meeting: Meeting
    seq: int
    waits_ns: dict[int, int]
    transfer_ns: int
    last: int


@dataclass(slots=True)
class _Gathering:
    """Who is there already, and since when."""

    present: list[tuple[Player, Running, int]] = field(default_factory=list)


class Cluster:
    """The meeting places of a job. transfer_ns: how long a meeting's data takes to move once all are there."""

    def __init__(self, transfer_ns: Callable[[Meeting], int]) -> None:
        self.held: list[Held] = []
        self._transfer_ns = transfer_ns
        self._gatherings: dict[tuple[tuple[int, ...], str, int], _Gathering] = {}
        self._touched: deque[Player] = deque()

    def meet(self, number: int, meeting: Meeting, ready: int, running: Running, player: Player) -> None:
        """One member is there; the last one sets all others free."""
        key = meeting.ranks, meeting.tag, number
        gathering = self._gatherings.setdefault(key, _Gathering())
        gathering.present.append((player, running, ready))
        if len(gathering.present) < len(meeting.ranks):
            return
        del self._gatherings[key]
        last, decisive, met = max(gathering.present, key=lambda each: (each[2], each[0].rank))
        length, path = self._transfer_ns(meeting), decisive.path
        if all(waiting.recorded for _, waiting, _ in gathering.present):
            assert {waiting.seq for _, waiting, _ in gathering.present} == {decisive.seq}
            waits = {member.rank: met - since for member, _, since in gathering.present}
            self.held.append(Held(meeting, decisive.seq, waits, length, last.rank))
        for member, waiting, _ in gathering.present:
            member.finish(waiting, met, length, path)
            if member is not player:
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
            free = [each for each in blocked if each.blocked_by is not None and each.blocked_by.end >= 0]
            blocked = [each for each in blocked if each not in free]
            runnable.extend(free)
        if blocked:
            waiting = {each.rank: each.blocked_by.work.name for each in blocked if each.blocked_by}
            raise RuntimeError(f"ranks wait for ever: {waiting}")
