"""A job: which ranks there are, what each works on, in which order. In: `Job`. Out: one rank's plays, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulator import communication, layers, recorder, te_layers
from tests.simulator.checkpoint import checkpointed
from tests.simulator.clock import Clock
from tests.simulator.faults import Fault
from tests.simulator.kineto import BASE_NS
from tests.simulator.machine import Machine
from tests.simulator.player import Play, StepBegins
from tests.simulator.recorder import Groups, Recorder, Sizes, Style
from tests.simulator.schedules import SCHEDULES
from tests.simulator.tape import AUTOGRAD, COMPUTE, MAIN, OPTIMIZER, UNATTRIBUTED, Meeting, Phase, Place, Tape, Work


@dataclass(frozen=True, slots=True)
class Job:
    """One training job.

    hosts: ranks are dealt out to them in equal stretches. tensor, data, pipeline: degrees of parallelism; the tensor
    index runs fastest, the pipeline index slowest. chunks: virtual stages a rank holds. clocks: one per host. slow:
    factor on GPU times by rank. opens: number of the first recorded step by rank, if not the first of all. shape:
    "transformer", "linears" (a chain of products) or "graphs" (one CUDA graph a step). frames: modules as Python frames
    instead of ranges. faults: what is spoilt afterwards, by rank; the truth is that of what happened.
    """

    name: str
    sizes: Sizes = field(default_factory=Sizes)
    style: Style = field(default_factory=Style)
    machine: Machine = field(default_factory=Machine)
    layers: int = 4
    steps: int = 2
    first_step: int = 10
    micro_batches: int = 1
    schedule: str = "1f1b"
    hosts: int = 1
    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    chunks: int = 1
    clocks: tuple[Clock, ...] = ()
    slow: dict[int, float] = field(default_factory=dict)
    opens: dict[int, int] = field(default_factory=dict)
    shape: str = "transformer"
    frames: bool = False
    optimizer: bool = True
    faults: dict[int, tuple[Fault, ...]] = field(default_factory=dict)
    seed: int = 1

    @property
    def ranks(self) -> int:
        return self.tensor * self.data * self.pipeline

    def place_of(self, rank: int) -> tuple[int, int, int]:
        """Pipeline, data and tensor index of a rank."""
        rest, tensor = divmod(rank, self.tensor)
        stage, data = divmod(rest, self.data)
        return stage, data, tensor

    def rank_at(self, stage: int, data: int, tensor: int) -> int:
        return (stage * self.data + data) * self.tensor + tensor

    def host_of(self, rank: int) -> int:
        return rank * self.hosts // self.ranks

    def clock_of(self, rank: int) -> Clock:
        return self.clocks[self.host_of(rank)] if self.clocks else Clock()

    def machine_of(self, rank: int) -> Machine:
        return replace(self.machine, gpu_share=self.machine.gpu_share * self.slow.get(rank, 1.0))

    def groups_of(self, rank: int) -> Groups:
        stage, data, tensor = self.place_of(rank)
        return Groups(
            tensor=tuple(self.rank_at(stage, data, each) for each in range(self.tensor)),
            data=tuple(self.rank_at(stage, each, tensor) for each in range(self.data)),
            experts=tuple(self.rank_at(stage, each, tensor) for each in range(self.data)),
        )

    def layers_of(self, virtual: int) -> range:
        """Blocks of a virtual stage."""
        stages = self.pipeline * self.chunks
        return range(virtual * self.layers // stages, (virtual + 1) * self.layers // stages)


def head_of(job: Job, rank: int) -> dict[str, Any]:
    """What stands before the events. Nothing here was measured: "synthetic" says so."""
    groups = job.groups_of(rank)
    listed = [("0", "default_pg", tuple(range(job.ranks)))]
    listed += [
        (str(stream), recorder.describe(stream), ranks)
        for stream, ranks in ((recorder.NCCL_TENSOR, groups.tensor), (recorder.NCCL_DATA, groups.data))
        if len(ranks) > 1
    ]
    stage, data, tensor = job.place_of(rank)
    config = [
        {"pg_name": name, "pg_desc": what, "backend_config": "cuda:nccl", "pg_size": len(ranks), "ranks": list(ranks)}
        for name, what, ranks in listed
    ]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}],
        "synthetic": f"tests.simulator {job.name}",
        "record_shapes": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": job.ranks,
            "pg_count": len(config),
            "pg_config": config,
        },
        "tracetools": {
            "rank": rank,
            "host": f"node-{job.host_of(rank)}",
            "stage": stage,
            "coordinates": {"dp": data, "tp": tensor, "pp": stage},
        },
        "host_name": f"node-{job.host_of(rank)}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }


def plays_of(job: Job, rank: int) -> Iterator[Play | StepBegins]:
    """What one rank does, from the first step to the last."""
    tapes = Tapes(job, rank)
    stage = job.place_of(rank)[0]
    actions = SCHEDULES[job.schedule](stage, job.pipeline, job.micro_batches, job.chunks)
    for step in range(job.first_step, job.first_step + job.steps):
        yield StepBegins(step, step >= job.opens.get(rank, job.first_step))
        if job.shape == "graphs":
            yield Play(tapes.replay(), chunk=("forward", stage, 0))
        else:
            yield from _step(job, tapes, actions, stage)
        yield Play(tapes.ending())


_KIND = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}


def _step(job: Job, tapes: Tapes, actions: list[tuple[str, int, int]], stage: int) -> Iterator[Play]:
    for kind, chunk, batch in actions:
        virtual = chunk * job.pipeline + stage
        last = batch == job.micro_batches - 1
        if kind == "F":
            if received := tapes.receive(virtual, forward=True):
                yield Play(received)
            yield Play(tapes.forward(chunk), writes=(chunk, batch), chunk=(_KIND[kind], virtual, batch))
            if sent := tapes.send(virtual, forward=True):
                yield Play(sent)
            continue
        if kind != "W" and (received := tapes.receive(virtual, forward=False)):
            yield Play(received)
        tape = tapes.backward(chunk, kind, reduces=last and kind != "I")
        yield Play(tape, reads=(chunk, batch), frees=kind != "I", chunk=(_KIND[kind], virtual, batch))
        if kind != "W" and (sent := tapes.send(virtual, forward=False)):
            yield Play(sent)


_STREAMS = {
    True: (recorder.SEND_FORWARD, recorder.RECEIVE_FORWARD),
    False: (recorder.SEND_BACKWARD, recorder.RECEIVE_BACKWARD),
}


class Tapes:
    """The tapes of one rank, each recorded when first asked for."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.stage, self.data, self.tensor = job.place_of(rank)
        self._made: dict[object, Tape] = {}
        self._nodes: dict[int, list[recorder.Node]] = {}
        self._left: dict[int, int] = {}
        self._places: dict[tuple[str, Place | None], Place] = {}

    def _recorder(self, tape: Tape) -> Recorder:
        job = self.job
        return Recorder(tape, job.machine_of(self.rank), job.sizes, job.style, job.groups_of(self.rank), self._places)

    def forward(self, chunk: int) -> Tape:
        """The forward of one chunk; its nodes are kept for the backward."""
        if (found := self._made.get(("F", chunk))) is not None:
            return found
        tape = self._made["F", chunk] = Tape()
        rec = self._recorder(tape)
        virtual = chunk * self.job.pipeline + self.stage
        if virtual > 0:
            rec.after = (recorder.RECEIVE_FORWARD + chunk,)
        tape.cpu(15_000)
        self._record_forward(rec, virtual)
        self._nodes[chunk] = rec.nodes
        return tape

    def _record_forward(self, rec: Recorder, virtual: int) -> None:
        job, sizes = self.job, self.job.sizes
        last = virtual == job.pipeline * job.chunks - 1
        with rec.module("(root)", "model.Model", 5_000):
            if virtual == 0 and job.shape == "transformer":
                layers.embedding(rec)
            for number in job.layers_of(virtual):
                self._record_layer(rec, number)
            if last and job.shape == "transformer":
                layers.layer_norm(rec, "norm")
                layers.linear(rec, "head", sizes.hidden, sizes.vocabulary)
        if last and job.shape == "transformer":
            layers.loss(rec)

    def _record_layer(self, rec: Recorder, number: int) -> None:
        hidden, te = self.job.sizes.hidden, self.job.style.library == "te"
        if self.job.shape == "linears":
            (te_layers.te_linear if te else layers.linear)(rec, f"layers.{number}", hidden, hidden)
            return
        block = te_layers.te_block if te else layers.torch_block
        checkpointed(rec, lambda each: block(each, number))

    def backward(self, chunk: int, kind: str, *, reduces: bool) -> Tape:
        """The backward of one chunk, on the engine's thread."""
        key = kind, chunk, reduces
        if (found := self._made.get(key)) is not None:
            return found
        tape = self._made[key] = Tape()
        rec = self._recorder(tape)
        rec.reduces = reduces
        if chunk * self.job.pipeline + self.stage < self.job.pipeline * self.job.chunks - 1:
            rec.after = (recorder.RECEIVE_BACKWARD + chunk,)
        tape.cpu(20_000)
        tape.thread(AUTOGRAD)
        tape.cpu(10_000)
        rec.backward(self._nodes[chunk], kind)
        tape.thread(MAIN)
        self._left[chunk] = rec.bucket if reduces else 0
        return tape

    def receive(self, virtual: int, *, forward: bool) -> Tape | None:
        """The receive ahead of an action, None where the chunk has no neighbour on that side."""
        source = virtual - 1 if forward else virtual + 1
        return self._transfer(source, virtual, virtual, forward=forward)

    def send(self, virtual: int, *, forward: bool) -> Tape | None:
        """The send behind an action."""
        target = virtual + 1 if forward else virtual - 1
        return self._transfer(virtual, target, virtual, forward=forward)

    def _transfer(self, source: int, target: int, own: int, *, forward: bool) -> Tape | None:
        job = self.job
        if not 0 <= min(source, target) <= max(source, target) < job.pipeline * job.chunks or job.pipeline < 2:
            return None
        sends = source == own
        key = "P", source, target, sends
        if (found := self._made.get(key)) is not None:
            return found
        tape = self._made[key] = Tape()
        ranks = self._neighbour(source), self._neighbour(target)
        elements = job.sizes.tokens * job.sizes.hidden
        meeting = Meeting(
            "send" if sends else "recv", ranks, f"{source}>{target}", "0", "default_pg", elements, elements, peer=ranks
        )
        streams = _STREAMS[forward]
        stream = streams[0 if sends else 1] + own // job.pipeline
        name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        work = Work(name, 0, stream, call="cudaLaunchKernelExC", after=(COMPUTE,) if sends else (), meeting=meeting)
        tape.cpu(8_000)
        with tape.op("c10d::send" if sends else "c10d::recv_", 4_000, place=UNATTRIBUTED, phase=Phase.OTHER):
            with tape.op("record_param_comms", 4_000, meeting=meeting):
                tape.launch(work)
        tape.call("cudaStreamWaitEvent", 700)
        return tape

    def _neighbour(self, virtual: int) -> int:
        return self.job.rank_at(virtual % self.job.pipeline, self.data, self.tensor)

    def ending(self) -> Tape:
        """What comes after the last backward: the optimizer, and the loss read back."""
        if (found := self._made.get("end")) is not None:
            return found
        tape = self._made["end"] = Tape()
        rec = self._recorder(tape)
        if self.job.optimizer:
            self._record_optimizer(rec)
        with tape.op("aten::item", 3_000, place=UNATTRIBUTED, phase=Phase.OTHER):
            with tape.op("aten::_local_scalar_dense", 4_000):
                name = "Memcpy DtoH (Device -> Pageable)"
                tape.launch(Work(name, 1_500, COMPUTE, "gpu_memcpy", "cudaMemcpyAsync", bytes=4))
                tape.synchronize("cudaStreamSynchronize", (COMPUTE,))
        tape.cpu(30_000)
        return tape

    def _record_optimizer(self, rec: Recorder) -> None:
        tape, job = rec.tape, self.job
        rec.bucket = sum(self._left.values())
        if rec.bucket and job.data > 1:
            with tape.op("c10d::barrier", 2_000, place=UNATTRIBUTED, phase=Phase.OTHER):
                communication.reduce_gradients(rec)
        if job.data > 1:
            rec.wait(recorder.NCCL_DATA)
        with tape.annotation("Optimizer.step#AdamW.step", OPTIMIZER, Phase.OPTIMIZER):
            tape.cpu(12_000)
            with tape.op("aten::_fused_adamw_", 20_000):
                name = "void at::native::multi_tensor_apply_kernel<TensorListMetadata, FusedAdamMathFunctor>"
                for _ in range(max(len(job.layers_of(self.stage)), 1)):
                    rec.elementwise(name, 12 * job.sizes.hidden**2)

    def replay(self) -> Tape:
        """One CUDA graph of 50 kernels, launched inside the model."""
        if (found := self._made.get("graph")) is not None:
            return found
        tape = self._made["graph"] = Tape()
        rec = self._recorder(tape)
        flops = 2 * self.job.sizes.tokens * self.job.sizes.hidden**2
        length, call = rec.machine.product_ns(flops), "cudaGraphLaunch"
        works = [
            Work("nvjet_tst_graph", length, COMPUTE, call=call, flops=flops, graph=(1, 2 + node)) for node in range(50)
        ]
        with rec.module("(root)", "model.Model", 30_000):
            tape.launch(*works)
        return tape
