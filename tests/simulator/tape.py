"""What a rank's CPU does, as a list of instructions to be played again and again. In: calls. Out: `Tape`.

A tape is recorded once per kind of work (the forward of a pipeline stage, its backward, the optimizer) and played for
every micro-batch and step; what differs between plays, like sequence numbers and times, is filled in by the player.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

COMPUTE, COPY = 7, 14
MAIN, AUTOGRAD = "main", "autograd"


class Phase(enum.StrEnum):
    """What a moment of CPU time is spent for."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    OTHER = "other"
    ACCUMULATE = "accumulate"
    GRAD_SYNC = "grad_sync"
    OPTIMIZER = "optimizer"


class Place:
    """A module of the tree, or a bracketed row. around: itself, then all modules around it."""

    __slots__ = ("around", "class_name", "parent", "path")

    def __init__(self, path: str, class_name: str | None = None, parent: Place | None = None) -> None:
        self.path = path
        self.class_name = class_name
        self.parent = parent
        self.around: tuple[Place, ...] = (self, *(parent.around if parent else ()))

    def child(self, name: str, class_name: str) -> Place:
        return Place(name if self.path == "(root)" else f"{self.path}.{name}", class_name, self)


UNATTRIBUTED = Place("(unattributed)")
OPTIMIZER = Place("(optimizer)")


class Kind(enum.Enum):
    """Category of a CPU span in the trace."""

    OP = "cpu_op"
    MODULE = "module"
    CALL = "cuda_runtime"
    DRIVER = "cuda_driver"
    ANNOTATION = "user_annotation"


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective or a pair of send and receive: all members have to be there before anything moves.

    ranks: members, global numbers. tag: tells meetings of one group apart. group_name, description: as c10d names them.
    """

    kind: str
    ranks: tuple[int, ...]
    tag: str
    group_name: str
    description: str
    elements_in: int
    elements_out: int
    dtype: str = "BFloat16"
    peer: tuple[int, int] | None = None


@dataclass(slots=True, eq=False)
class Span:
    """A range on a CPU thread.

    creates: slot of the autograd node that this op makes. uses: slot whose node this span evaluates (with its inner
    op). is_node: it is the engine's evaluation of a node. enters: it is a module call. meeting: what it announces.
    holds_time: it is at a place of its own, or at that of the span around it; most annotations are at none.
    """

    kind: Kind
    name: str
    place: Place | None = None
    phase: Phase | None = None
    numbered: bool = False
    creates: int | None = None
    uses: int | None = None
    is_node: bool = False
    enters: bool = False
    detail: str = ""
    meeting: Meeting | None = None

    @property
    def holds_time(self) -> bool:
        return self.kind is not Kind.ANNOTATION or self.place is not None


@dataclass(slots=True, eq=False)
class Work:
    """A kernel, copy or set to launch.

    length_ns: how long it runs once all is there. after: streams whose last work has to end first. flops, operand:
    count of a product and what it makes ("forward", "dgrad", "wgrad"). overlap_ns: how much earlier than its
    predecessor's end it may begin (programmatic dependent launch).
    """

    name: str
    length_ns: int
    stream: int = COMPUTE
    category: str = "kernel"
    call: str = "cudaLaunchKernel"
    after: tuple[int, ...] = ()
    meeting: Meeting | None = None
    flops: int = 0
    operand: str = "forward"
    bytes: int = 0
    overlap_ns: int = 0
    graph: tuple[int, int] = (0, 0)


class Step(enum.IntEnum):
    """Kinds of instructions."""

    BEGIN = 0
    END = 1
    CPU = 2
    LAUNCH = 3
    CALL = 4
    SYNC = 5
    THREAD = 6


Instruction = tuple[int, Any]


@dataclass(slots=True)
class Tape:
    """Instructions in order.

    slots: how many autograd nodes one play makes. inside_next_node: records what the next node runs ahead of its work.
    """

    instructions: list[Instruction] = field(default_factory=list)
    slots: int = 0
    inside_next_node: Callable[[], None] | None = None

    def cpu(self, ns: int) -> None:
        """Plain Python or C++ time."""
        if ns:
            self.instructions.append((Step.CPU, ns))

    @contextmanager
    def span(self, span: Span) -> Iterator[None]:
        self.instructions.append((Step.BEGIN, span))
        yield
        self.instructions.append((Step.END, span))

    @contextmanager
    def op(
        self,
        name: str,
        ns: int,
        *,
        numbered: bool = False,
        creates: int | None = None,
        place: Place | None = None,
        phase: Phase | None = None,
        dims: tuple[tuple[int, ...], ...] = (),
        dtype: str = "c10::BFloat16",
        concrete: tuple[str, ...] | None = None,
        transposed: tuple[int, ...] = (),
        meeting: Meeting | None = None,
    ) -> Iterator[None]:
        """A dispatcher call that takes `ns` besides what it holds; half of it before, half after."""
        detail = shapes(dims, dtype, concrete, transposed) if dims else ""
        numbered = numbered or creates is not None
        with self.span(Span(Kind.OP, name, place, phase, numbered, creates, detail=detail, meeting=meeting)):
            self.cpu(ns // 2)
            yield
            self.cpu(ns - ns // 2)

    def leaf(self, name: str, ns: int, **how: Any) -> None:
        """An op that holds nothing."""
        with self.op(name, ns, **how):
            pass

    @contextmanager
    def module(self, place: Place, phase: Phase, before: int, after: int = 0) -> Iterator[None]:
        """A module call; before, after: Python's share ahead of and behind what it holds."""
        with self.span(Span(Kind.MODULE, place.path, place, phase, enters=True)):
            self.cpu(before)
            yield
            self.cpu(after)

    @contextmanager
    def node(self, name: str, place: Place, phase: Phase, ns: int, uses: int | None = None) -> Iterator[None]:
        """The engine evaluates one autograd node."""
        outer = Span(Kind.OP, f"autograd::engine::evaluate_function: {name}", place, phase, uses=uses, is_node=True)
        with self.span(outer):
            self.cpu(ns // 3)
            with self.span(Span(Kind.OP, name, uses=uses)):
                self.cpu(ns // 3)
                if (run := self.inside_next_node) is not None:
                    self.inside_next_node = None
                    run()
                yield
            self.cpu(ns - 2 * (ns // 3))

    @contextmanager
    def annotation(self, name: str, place: Place | None = None, phase: Phase | None = None) -> Iterator[None]:
        """A range that the user named; only with a place has it time of its own."""
        with self.span(Span(Kind.ANNOTATION, name, place, phase)):
            yield

    def launch(self, *works: Work) -> None:
        """One launch call; several works are one CUDA graph."""
        self.instructions.append((Step.LAUNCH, works))

    def call(self, name: str, ns: int) -> None:
        """A runtime call that starts no work."""
        self.instructions.append((Step.CALL, (name, ns)))

    def synchronize(self, name: str, streams: tuple[int, ...] | None = None) -> None:
        """Wait until the streams (None: all) have nothing left to do."""
        self.instructions.append((Step.SYNC, (name, streams)))

    def thread(self, name: str) -> None:
        self.instructions.append((Step.THREAD, name))

    def slot(self) -> int:
        self.slots += 1
        return self.slots - 1


def shapes(
    dims: tuple[tuple[int, ...], ...],
    dtype: str,
    concrete: tuple[str, ...] | None = None,
    transposed: tuple[int, ...] = (),
) -> str:
    """Arguments of an op as Kineto writes them with record_shapes; transposed: inputs that are views of a matrix."""
    strides = []
    for at, each in enumerate(dims):
        stride, one = [], 1
        for size in reversed(each):
            stride.append(one)
            one *= size
        strides.append([1, each[0]] if at in transposed else stride[::-1])
    values = {
        "Concrete Inputs": list(concrete or ("",) * len(dims)),
        "Input type": [dtype if each else "Scalar" for each in dims],
        "Input Strides": strides,
        "Input Dims": [list(each) for each in dims],
    }
    return ", " + json.dumps(values)[1:-1]
