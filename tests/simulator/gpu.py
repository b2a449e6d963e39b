"""The GPU of one rank: streams, what waits on them, when it runs. In: launches. Out: times, as soon as they are known.

Work starts when its launch has arrived, the work before it on its stream has ended, and all it waits for has ended; a
collective lasts until all its members are there and the data has moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulator.clock import Clock
from tests.simulator.kineto import Origin, Writer
from tests.simulator.log import COMMUNICATION, COMPUTE, COPY, OPERANDS, Done, Log, Path, longer
from tests.simulator.machine import Machine
from tests.simulator.tape import Meeting, Work

_NEVER = -1


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch call, as far as its work needs to know. Times are true ns. path: what it took to get to `arrives`."""

    begun: int
    called: int
    arrives: int
    external: int | None
    correlation: int
    tid: int
    place: int
    phase: int
    step: int
    chunk: int
    path: Path
    log: Log
    recorded: bool


@dataclass(slots=True, eq=False)
class Running:
    """Work on its way. Times are true ns, `_NEVER` while unknown. path: what it took to get to the last known one."""

    work: Work
    launch: Launch
    after: tuple[Running, ...]
    seq: int
    path: Path
    ready: int = _NEVER
    end: int = _NEVER

    @property
    def is_known(self) -> bool:
        """Whether it is known when the work ends."""
        return self.end != _NEVER


@dataclass(slots=True)
class Stream:
    """Work of one stream: the last launched, that without times yet, and what fills the launch queue."""

    last: Running | None = None
    waiting: deque[Running] = field(default_factory=deque)
    queued: deque[Running] = field(default_factory=deque)


Meet = Callable[[int, Meeting, Running, "Gpu"], None]
"""Tells that a member is there: number of the meeting, what it is, the member's work, its GPU."""


class Gpu:
    """One rank's streams. meet: called when the rank's member of a collective is there."""

    def __init__(self, rank: int, machine: Machine, clock: Clock, writer: Writer, meet: Meet) -> None:
        self.rank = rank
        self.streams: dict[int, Stream] = {}
        self.seqs: dict[tuple[str, tuple[int, ...]], int] = {}
        self._machine, self._writer, self._meet = machine, writer, meet
        self._at = clock.at
        self._meetings: dict[tuple[tuple[int, ...], str], int] = {}

    def enqueue(self, works: tuple[Work, ...], launch: Launch) -> None:
        """Put what one call launches on its streams."""
        for work in works:
            after = [last for each in work.after if (last := self.stream(each).last) is not None]
            stream = self.stream(work.stream)
            if stream.last is not None:
                after.append(stream.last)
            running = Running(work, launch, tuple(after), self._next_seq(work.meeting), launch.path)
            stream.waiting.append(running)
            stream.queued.append(running)
            stream.last = running
        self.settle()

    def stream(self, number: int) -> Stream:
        if (found := self.streams.get(number)) is None:
            found = self.streams[number] = Stream()
        return found

    def _next_seq(self, meeting: Meeting | None) -> int:
        """Number of a collective in its group."""
        if meeting is None:
            return 0
        key = meeting.group_name, meeting.ranks
        self.seqs[key] = self.seqs.get(key, 0) + 1
        return self.seqs[key]

    def settle(self) -> None:
        """Work out the times of all work whose conditions are known."""
        goes_on = True
        while goes_on:
            goes_on = False
            for stream in self.streams.values():
                while stream.waiting and self._start(stream.waiting[0]):
                    stream.waiting.popleft()
                    goes_on = True

    def _start(self, running: Running) -> bool:
        """Whether the end of a piece of work is known now."""
        if running.is_known:
            return True
        if running.ready == _NEVER:
            if any(not each.is_known for each in running.after):
                return False
            running.ready = self._ready(running)
            running.after = ()
            if running.work.meeting is not None:
                self._join(running, running.work.meeting)
                return running.is_known
        elif running.work.meeting is not None:
            return False
        self.finish(running, running.ready, running.work.length_ns, running.path)
        return True

    def _ready(self, running: Running) -> int:
        """When the last of its conditions holds; its path comes from that one."""
        work = running.work
        ready, path = running.launch.arrives, running.path
        for each in running.after:
            gap = self._machine.spacing_ns
            if work.overlap_ns and each.work.stream == work.stream:
                gap = -min(work.overlap_ns, each.end - each.ready)
            if each.end + gap > ready:
                ready, path = each.end + gap, longer(each.path, "wait", gap)
        running.path = path
        return ready

    def _join(self, running: Running, meeting: Meeting) -> None:
        key = meeting.ranks, meeting.tag
        number = self._meetings[key] = self._meetings.get(key, 0) + 1
        self._meet(number, meeting, running, self)

    def finish(self, running: Running, met: int, length: int, path: Path) -> None:
        """All is there: the work runs from `ready` until `length` after `met`; path: to the moment `met`."""
        work, launch = running.work, running.launch
        running.end = met + length
        running.path = longer(path, "communication" if work.meeting else "kernel", length)
        if not launch.recorded:
            return
        begin, end, begun = self._at(running.ready), self._at(running.end), self._at(launch.begun)
        self._writer.work(work, begin, end, Origin(launch.tid, begun, launch.external, launch.correlation, running.seq))
        if running.end > launch.log.critical_end_ns:
            launch.log.critical_end_ns, launch.log.critical = running.end, running.path
        done = Done(
            start_ns=begin,
            end_ns=end,
            kind=COPY if work.category != "kernel" else COMMUNICATION if work.meeting else COMPUTE,
            place=launch.place,
            phase=launch.phase,
            step=launch.step,
            call_ns=begun,
            called_ns=self._at(launch.called),
            arrived_ns=self._at(launch.arrives),
            true_called_ns=launch.called,
            true_start_ns=running.ready,
            true_met_ns=met,
            true_end_ns=running.end,
            flops=work.flops,
            operand=OPERANDS.index(work.operand),
            chunk=launch.chunk,
            receives=work.meeting is not None and work.meeting.kind == "recv",
        )
        launch.log.add(done)
