"""Plays the tapes of one rank on its CPU. In: plays, a machine. Out: events and a log; launches go to the GPU.

The CPU runs ahead of the GPU until it has to wait: for a slot in the launch queue, or in a synchronising call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.simulator.clock import Clock
from tests.simulator.gpu import Gpu, Launch, Meet, Running
from tests.simulator.kineto import Origin, Writer
from tests.simulator.log import NO_PATH, PHASES, Log, Path, longer
from tests.simulator.machine import Machine
from tests.simulator.tape import (
    AUTOGRAD,
    MAIN,
    UNATTRIBUTED,
    Instruction,
    Kind,
    Phase,
    Place,
    Span,
    Tape,
    Work,
)


@dataclass(frozen=True, slots=True)
class Play:
    """One playing of a tape. writes, reads: keys of the nodes it makes and evaluates. chunk: its pipeline action."""

    tape: Tape
    writes: object = None
    reads: object = None
    frees: bool = True
    chunk: tuple[str, int, int] | None = None


@dataclass(frozen=True, slots=True)
class StepBegins:
    """Opens `ProfilerStep#number`; the one before is closed. recorded: whether the profiler runs on this rank."""

    number: int
    recorded: bool = True


@dataclass(slots=True)
class _Thread:
    tid: int
    sequence: int = 1
    stack: list[tuple[Span, int, int, int | None, Place, Phase]] = field(default_factory=list)


class Player:
    """One rank. `advance` runs until it must wait for `blocked_by` or has finished."""

    def __init__(
        self,
        rank: int,
        plays: Iterator[Play | StepBegins],
        machine: Machine,
        clock: Clock,
        writer: Writer,
        meet: Meet,
        seed: int,
    ) -> None:
        self.rank, self.machine, self.writer = rank, machine, writer
        self.log = Log()
        self.finished = False
        self.blocked_by: Running | None = None
        self.now = 0
        self._at = clock.at
        self._plays = plays
        self.gpu = Gpu(rank, machine, clock, writer, meet)
        self._threads = {MAIN: _Thread(writer.pid), AUTOGRAD: _Thread(writer.pid + 77)}
        self._thread = self._threads[MAIN]
        self._saved: dict[object, list[tuple[int, int, int]]] = {}
        self._own: list[tuple[int, int, int]] = []
        self._reads: list[tuple[int, int, int]] = []
        self._correlation = 0
        self._step = -1
        self._step_began = 0
        self._chunk = -1
        self._chance = random.Random(seed * 1_000_003 + rank)
        self._counted = 0
        self._since = 0
        self._holder = -1
        self._instructions: Iterator[Instruction] = iter(())
        self._resume: Callable[[], None] | None = None
        self._recorded = False
        self._path, self._path_until = NO_PATH, 0
        writer.muted = True
        self._handlers: list[Callable[[Any], None]] = [
            self._begin,
            self._end,
            self._spend,
            self._launch,
            self._call,
            self._synchronize,
            self._switch_thread,
        ]

    def advance(self) -> None:
        """Run until there is something to wait for, or to the end."""
        if self._resume:
            resume, self._resume, self.blocked_by = self._resume, None, None
            resume()
        while self.blocked_by is None:
            for kind, what in self._instructions:
                self._handlers[kind](what)
                if self.blocked_by is not None:
                    return
            if not self._next_play():
                return

    def _next_play(self) -> bool:
        play = next(self._plays, None)
        if play is None:
            self._end_step()
            self.finished = True
            return False
        if isinstance(play, StepBegins):
            self._end_step()
            if play.recorded and not self._recorded:
                self._start_recording()
            self._step, self._step_began = play.number, self._at(self.now)
            return True
        self._own = [(0, 0, 0)] * play.tape.slots
        if play.writes is not None:
            self._saved[play.writes] = self._own
        if play.reads is not None:
            self._reads = self._saved.pop(play.reads) if play.frees else self._saved[play.reads]
        self._chunk = -1
        if play.chunk:
            self._chunk = len(self.log.chunks)
            self.log.chunks.append((*play.chunk, self._step))
        self._instructions = iter(play.tape.instructions)
        return True

    def _start_recording(self) -> None:
        """What came before is forgotten; numbers go on."""
        self.log = Log()
        self._recorded = True
        self.writer.muted = False

    def _end_step(self) -> None:
        if self._step < 0 or not self._recorded:
            return
        begin, end = self._step_began, self._at(self.now)
        self.log.steps.append((self._step, begin, end))
        span = Span(Kind.ANNOTATION, f"ProfilerStep#{self._step}")
        self.writer.span(span, self._threads[MAIN].tid, begin, end, self.writer.external(), None)

    def _switch_thread(self, name: str) -> None:
        self._thread = self._threads[name]

    # The CPU

    def _spend(self, ns: int) -> None:
        machine = self.machine
        ns = round(ns * machine.cpu_share)
        if machine.noise and ns:
            ns = max(round(ns * (1 + machine.noise * self._chance.gauss(0, 1))), ns // 4)
        self.now += ns
        if machine.pause_every:
            self._counted += 1
            if self._counted % machine.pause_every == 0:
                self.now += machine.pause_ns

    def _begin(self, span: Span) -> None:
        thread = self._thread
        local = self._at(self.now)
        sequence: int | None = None
        if span.uses is not None:
            sequence, tid, began = self._own[~span.uses] if span.uses < 0 else self._reads[span.uses]
            if not span.is_node:
                self.writer.forward_backward((tid, began), (thread.tid, local))
        elif span.numbered:
            sequence = thread.sequence
            if span.creates is not None:
                self._own[span.creates] = (sequence, thread.tid, local)
                thread.sequence += 1
        external = self.writer.external()
        place, phase = span.place, span.phase
        if thread.stack:
            outer = thread.stack[-1]
            place, phase = place or outer[4], phase or outer[5]
        if span.holds_time:
            self._switch(local, place or UNATTRIBUTED, phase or Phase.OTHER)
            key = self.log.number(place or UNATTRIBUTED), PHASES.index(phase or Phase.OTHER)
            if span.enters:
                self.log.entries[key] += 1
            if span.is_node:
                self.log.nodes[key] += 1
        thread.stack.append((span, local, external, sequence, place or UNATTRIBUTED, phase or Phase.OTHER))

    def _end(self, _: Span) -> None:
        thread = self._thread
        span, began, external, sequence = thread.stack.pop()[:4]
        local = self._at(self.now)
        seq = self.gpu.seqs[span.meeting.group_name, span.meeting.ranks] if span.meeting else 0
        self.writer.span(span, thread.tid, began, local, external, sequence, seq)
        if not span.holds_time:
            return
        for around in reversed(thread.stack):
            if around[0].holds_time:
                self._switch(local, around[4], around[5])
                return
        self._leave(local)

    def _switch(self, local: int, place: Place, phase: Phase) -> None:
        """From now on CPU time belongs to another place or phase."""
        holder = self.log.number(place) * len(PHASES) + PHASES.index(phase)
        if holder == self._holder:
            return
        self._settle_cpu(local)
        self._holder = holder
        self.log.moments.append(local)
        self.log.holders.append(holder)

    def _settle_cpu(self, local: int) -> None:
        if self._holder >= 0:
            place, phase = divmod(self._holder, len(PHASES))
            self.log.cpu_ns[self._step, place, phase] += local - self._since
        self._since = local

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Time in a call outside every op and module is nobody's."""
        lone = not any(each[0].holds_time for each in self._thread.stack)
        if lone:
            self._switch(self._at(self.now), UNATTRIBUTED, Phase.OTHER)
        yield
        if lone:
            self._leave(self._at(self.now))

    def _leave(self, local: int) -> None:
        self._settle_cpu(local)
        self._holder = -1
        self.log.moments.append(local)
        self.log.holders.append(-1)

    def _external(self) -> int | None:
        """Id of the op around a call, if there is one."""
        for span, _, external, *_ in reversed(self._thread.stack):
            if span.kind in (Kind.OP, Kind.MODULE, Kind.ANNOTATION):
                return external
        return None

    def _call(self, call: tuple[str, int]) -> None:
        name, ns = call
        begin = self._at(self.now)
        with self._calling():
            self._spend(ns)
        self._correlation += 1
        self.writer.call(name, self._thread.tid, begin, self._at(self.now), self._external(), self._correlation)

    # Launches

    def _launch(self, works: tuple[Work, ...]) -> None:
        stream = self.gpu.stream(works[0].stream)
        while stream.queued and stream.queued[0].is_known and stream.queued[0].end <= self.now:
            stream.queued.popleft()
        self._buffer()
        begun = self.now
        if len(stream.queued) + len(works) > self.machine.queue_depth and stream.queued:
            self._wait_for(stream.queued[0], lambda: self._enter_queue(works, begun))
            return
        self._enqueue(works, begun)

    def _buffer(self) -> None:
        """Now and then the profiler needs a new buffer before the launch can be recorded."""
        machine = self.machine
        if machine.buffer_every and (self.log.launches + 1) % machine.buffer_every == 0:
            begin = self._at(self.now)
            self.now += machine.buffer_ns
            self.writer.overhead(begin, self._at(self.now))
            self.log.overheads.extend((begin, self._at(self.now)))

    def _enter_queue(self, works: tuple[Work, ...], begun: int) -> None:
        """A slot is free: the launch call that waited for it goes on."""
        stream = self.gpu.stream(works[0].stream)
        free = stream.queued.popleft()
        if free.end > self.now:
            self.log.waits.extend((self._at(self.now), self._at(free.end)))
            self.now = self._path_until = free.end
            self._path = free.path
        self._enqueue(works, begun)

    def _path_now(self) -> Path:
        """The path to this moment of the CPU."""
        self._path = longer(self._path, "cpu", self.now - self._path_until)
        self._path_until = self.now
        return self._path

    def _enqueue(self, works: tuple[Work, ...], begun: int) -> None:
        entered, path = self.now, self._path_now()
        self.now += self.machine.launch_ns
        self._path, self._path_until = longer(path, "launch", self.machine.launch_ns), self.now
        self._correlation += 1
        self.log.launches += 1
        tid, external = self._thread.tid, self._external()
        origin = Origin(tid, self._at(begun), external, self._correlation, 0)
        self.writer.launch(works[0].call, self._at(self.now), origin)
        stack = [each for each in self._thread.stack if each[0].kind is not Kind.ANNOTATION]
        place, phase = (stack[-1][4], stack[-1][5]) if stack else (UNATTRIBUTED, Phase.OTHER)
        launch = Launch(
            begun=begun,
            called=self.now,
            arrives=entered + self.machine.latency_ns,
            external=external,
            correlation=self._correlation,
            tid=tid,
            place=self.log.number(place),
            phase=PHASES.index(phase),
            step=self._step,
            chunk=self._chunk,
            path=longer(path, "launch", self.machine.latency_ns),
            log=self.log,
            recorded=self._recorded,
        )
        self.gpu.enqueue(works, launch)

    def _synchronize(self, call: tuple[str, tuple[int, ...] | None]) -> None:
        name, streams = call
        chosen = self.gpu.streams if streams is None else [each for each in streams if each in self.gpu.streams]
        pending = [last for each in chosen if (last := self.gpu.streams[each].last) is not None]
        self._synchronize_with(name, self.now, pending)

    def _synchronize_with(self, name: str, begun: int, pending: list[Running]) -> None:
        open_work = next((each for each in pending if not each.is_known), None)
        if open_work is not None:
            self._wait_for(open_work, lambda: self._synchronize_with(name, begun, pending))
            return
        path = self._path_now()
        last = max(pending, key=lambda each: each.end, default=None)
        until = begun
        if last is not None and last.end > begun:
            self.log.waits.extend((self._at(begun), self._at(last.end)))
            until, path = last.end, last.path
        self.now = self._path_until = until + self.machine.sync_ns
        self._path = longer(path, "wait", self.machine.sync_ns)
        self._correlation += 1
        self.writer.call(
            name, self._thread.tid, self._at(begun), self._at(self.now), self._external(), self._correlation
        )

    def _wait_for(self, running: Running, resume: Callable[[], None]) -> None:
        if running.is_known:
            resume()
            return
        self.blocked_by, self._resume = running, resume
