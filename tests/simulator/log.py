"""What really happened on one rank, noted while it happens. Out: plain arrays, for `truth` to add up.

All times are in the clock of the rank's host, because that is what its trace shows.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulator.tape import Phase, Place

PHASES = tuple(Phase)
COMPUTE, COMMUNICATION, COPY = range(3)
OPERANDS = ("forward", "dgrad", "wgrad")

Path = tuple[int, int, int, int, int]
"""How long the longest chain of causes that leads to a moment was in each of `PATH_KINDS`, ns."""
PATH_KINDS = ("cpu", "launch", "kernel", "communication", "wait")
NO_PATH: Path = (0, 0, 0, 0, 0)


def longer(path: Path, kind: str, ns: int) -> Path:
    """The path with one more link."""
    links = list(path)
    links[PATH_KINDS.index(kind)] += ns
    cpu, launch, kernel, communication, wait = links
    return cpu, launch, kernel, communication, wait


class Done(NamedTuple):
    """One piece of GPU work that ran. place, phase: of the CPU span that launched it.

    arrived_ns: when the launch had reached the GPU. true_start_ns, true_met_ns, true_end_ns: by a clock that all hosts
    share; met: when the last member of its collective was there (its start, if it has none).
    """

    start_ns: int
    end_ns: int
    kind: int
    place: int
    phase: int
    step: int
    call_ns: int
    called_ns: int
    arrived_ns: int
    true_called_ns: int
    true_start_ns: int
    true_met_ns: int
    true_end_ns: int
    flops: int
    operand: int
    chunk: int
    receives: int


@dataclass(slots=True)
class Log:
    """cpu_ns: by (step, place, phase). entries, nodes: module calls and autograd nodes by (place, phase).

    moments, holders: from each moment on the CPU was at a place. waits: begin and end of each blocking call's wait.
    overheads: the same of each stop for the profiler.
    chunks: what each pipeline action was: (kind, stage, micro-batch, step). steps: number, begin and end. critical: the
    path to the last end of GPU work, which was at critical_end_ns of true time.
    """

    places: list[Place] = field(default_factory=list)
    cpu_ns: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    entries: Counter[tuple[int, int]] = field(default_factory=Counter)
    nodes: Counter[tuple[int, int]] = field(default_factory=Counter)
    moments: array[int] = field(default_factory=lambda: array("q"))
    holders: array[int] = field(default_factory=lambda: array("q"))
    waits: array[int] = field(default_factory=lambda: array("q"))
    overheads: array[int] = field(default_factory=lambda: array("q"))
    chunks: list[tuple[str, int, int, int]] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    launches: int = 0
    critical: Path = NO_PATH
    critical_end_ns: int = 0
    _works: array[int] = field(default_factory=lambda: array("q"))
    _sorted: list[Done] = field(default_factory=list)
    _numbers: dict[Place, int] = field(default_factory=dict)

    def number(self, place: Place) -> int:
        """Number of a place in this log."""
        if (found := self._numbers.get(place)) is None:
            found = self._numbers[place] = len(self.places)
            self.places.append(place)
        return found

    def add(self, done: Done) -> None:
        self._works.extend(done)

    def works(self) -> list[Done]:
        """All work by start, then end; the list is made once all is noted."""
        width = len(Done._fields)
        if len(self._sorted) * width != len(self._works):
            self._sorted = sorted(Done(*self._works[at : at + width]) for at in range(0, len(self._works), width))
        return self._sorted

    def forget(self) -> None:
        """Let the list go; it can be made again."""
        self._sorted = []
