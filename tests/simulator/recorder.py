"""Records what a model's CPU does onto a tape. In: sizes, costs, layout. Out: `Recorder`, the words that layers use.

Each layer records its forward and hands back how its nodes will be evaluated, so that backward is forward played from
the end. The same layer recorded in phase RECOMPUTE is a checkpoint's second forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.simulator.machine import Machine
from tests.simulator.tape import COMPUTE, Meeting, Phase, Place, Tape, Work

NCCL_TENSOR, NCCL_DATA, RECEIVE_FORWARD, RECEIVE_BACKWARD, SEND_FORWARD, SEND_BACKWARD = 20, 24, 28, 32, 36, 40
OP_NS = 4_000
EXC = "cudaLaunchKernelExC"
BYTES = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shape of the model: batch and sequence of one micro-batch, hidden size, heads, vocabulary, all per replica.

    experts: of a mixture layer in place of the MLP, 0 for none.
    """

    batch: int = 1
    sequence: int = 2048
    hidden: int = 2048
    heads: int = 16
    vocabulary: int = 32_000
    experts: int = 0

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence


@dataclass(frozen=True, slots=True)
class Style:
    """How a model is written and run.

    library: "torch" or "te". checkpoint: "none", "non_reentrant" or "reentrant". sequence_parallel: with tensor
    parallelism, activations are split between the products. module_ns: CPU time of a te module's forward in all, 0 for
    what its parts add up to. frozen: paths whose weights want no gradient. fp8: te's products run in fp8, their inputs
    are cast first. overlap_ns: te's products begin so much before the kernel ahead of them ends (dependent launch).
    """

    library: str = "torch"
    checkpoint: str = "none"
    sequence_parallel: bool = False
    module_ns: int = 0
    frozen: tuple[str, ...] = ()
    fp8: bool = False
    overlap_ns: int = 0


@dataclass(frozen=True, slots=True)
class Groups:
    """Communicators of one rank: tensor and data parallel members, global numbers."""

    tensor: tuple[int, ...] = (0,)
    data: tuple[int, ...] = (0,)
    experts: tuple[int, ...] = (0,)


class Part:
    """Which half of a backward is played: both, the input gradients or the weight gradients."""

    BOTH, INPUT, WEIGHT = "B", "I", "W"


Node = Callable[["Recorder", str], None]


@dataclass(slots=True)
class Recorder:
    """Records layers onto a tape.

    after: streams that the next compute kernel has to wait for. reduces: this backward sums gradients over replicas,
    a bucket at a time. bucket: elements that wait for that.
    """

    tape: Tape
    machine: Machine
    sizes: Sizes
    style: Style
    groups: Groups
    places: dict[tuple[str, Place | None], Place]
    phase: Phase = Phase.FORWARD
    grad: bool = True
    after: tuple[int, ...] = ()
    place: Place | None = None
    reduces: bool = False
    bucket: int = 0
    nodes: list[Node] = field(default_factory=list)

    # Small words

    def slot(self) -> int | None:
        """A slot for the node that the next op makes; None where no gradient is wanted."""
        return self.tape.slot() if self.grad else None

    def reference(self, slot: int | None) -> int | None:
        """How a backward refers to that node: recomputed ops live on the backward's own tape."""
        if slot is None or self.phase is Phase.FORWARD:
            return slot
        return ~slot

    def kernel(self, name: str, length_ns: int, flops: int = 0, operand: str = "forward", call: str = "") -> None:
        """A compute kernel; waits for communication that the code before it asked for."""
        after, self.after = self.after, ()
        call = call or "cudaLaunchKernel"
        self.tape.launch(Work(name, length_ns, COMPUTE, call=call, after=after, flops=flops, operand=operand))

    def product(self, name: str, m: int, k: int, n: int, operand: str = "forward", call: str = "") -> None:
        flops = 2 * m * k * n
        self.kernel(name, self.machine.product_ns(flops), flops, operand, call)

    def te_product(self, m: int, k: int, n: int, operand: str = "forward") -> None:
        """A product out of Transformer Engine: no op of its own; in fp8 a cast goes ahead."""
        flops, length = 2 * m * k * n, self.machine.product_ns(2 * m * k * n)
        name = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT"
        if self.style.fp8:
            cast = "void transformer_engine::detail::cast_transpose_fused_kernel<float, __nv_fp8_e4m3>"
            self.elementwise(cast, m * k, EXC)
            name = "nvjet_qqtst_128x256_128x4_1x2_h_bz_coopA_TNT"
            length = round(length * self.machine.fp8_share)
        after, self.after = self.after, ()
        work = Work(name, length, call="cuLaunchKernelEx", after=after, flops=flops, operand=operand)
        work.overlap_ns = self.style.overlap_ns
        self.tape.launch(work)

    def elementwise(self, name: str, elements: int, call: str = "") -> None:
        self.kernel(name, self.machine.elementwise_ns(elements * BYTES * 2), call=call)

    @contextmanager
    def module(self, name: str, class_name: str, python_ns: int = 8_000, after_ns: int = 1_000) -> Iterator[Place]:
        """A child of the current module."""
        outer = self.place
        place = outer.child(name, class_name) if outer else Place("(root)", class_name)
        # One object per path and parent, so that forward, backward and recompute agree.
        self.place = self.places.setdefault((place.path, outer), place)
        with self.tape.module(self.place, self.phase, python_ns, after_ns):
            yield self.place
        self.place = outer

    def collective(
        self,
        kind: str,
        name: str,
        op: str,
        ranks: tuple[int, ...],
        elements: int,
        out: int,
        stream: int,
        phase: Phase | None = None,
    ) -> None:
        """A collective on a stream of its own; the next compute kernel waits for it where `wait` is called."""
        if len(ranks) < 2:
            return
        tag = f"{kind}:{stream}"
        meeting = Meeting(kind, ranks, tag, str(stream), describe(stream), elements, out)
        tape = self.tape
        with tape.op(op, 3_000, phase=phase), tape.op("record_param_comms", 4_000, meeting=meeting):
            tape.call("cudaEventRecordWithFlags", 800)
            tape.call("cudaStreamWaitEvent", 700)
            tape.launch(Work(name, 0, stream, call="cudaLaunchKernelExC", after=(COMPUTE,), meeting=meeting))

    def wait(self, stream: int) -> None:
        """The compute stream waits for what was put on another."""
        self.tape.call("cudaStreamWaitEvent", 700)
        self.after = (*self.after, stream)

    # Backward

    def backward(self, nodes: list[Node], part: str) -> None:
        for node in reversed(nodes):
            node(self, part)


def describe(stream: int) -> str:
    return {NCCL_TENSOR: "TENSOR_MODEL_PARALLEL_GROUP", NCCL_DATA: "DATA_PARALLEL_GROUP"}.get(stream, "undefined")
