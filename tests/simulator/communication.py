"""What ranks say to each other inside a model: tensor parallel sums, tokens for experts, gradients. In: recorder."""

from __future__ import annotations

from tests.simulator.recorder import NCCL_DATA, NCCL_TENSOR, Part, Recorder
from tests.simulator.tape import Phase, Place

_BUCKET = 12_500_000
"""Elements of a gradient bucket: 25 MB, as DDP has by default."""


def enter_tensor_parallel(rec: Recorder) -> None:
    """Ahead of a column-parallel product: activations are gathered, or backward is summed up."""
    _tensor_parallel(rec, forward="_allgather_base" if rec.style.sequence_parallel else None)


def leave_tensor_parallel(rec: Recorder) -> None:
    """Behind a row-parallel product: its sum is taken, split again or not."""
    _tensor_parallel(rec, forward="_reduce_scatter_base" if rec.style.sequence_parallel else "allreduce", leaves=True)


_OPPOSITE = {"_allgather_base": "_reduce_scatter_base", "_reduce_scatter_base": "_allgather_base", None: "allreduce"}
KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_allv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
OPS = {
    "allreduce": "c10d::allreduce_",
    "_allgather_base": "c10d::_allgather_base_",
    "_reduce_scatter_base": "c10d::_reduce_scatter_base_",
    "all_to_allv": "c10d::alltoall_base_",
}


def _tensor_parallel(rec: Recorder, forward: str | None, *, leaves: bool = False) -> None:
    ranks, place = rec.groups.tensor, rec.place
    assert place is not None
    if len(ranks) < 2:
        return
    backward = None if leaves and forward == "allreduce" else _OPPOSITE[forward]
    slot = rec.slot()
    name = "_LeaveTensorParallel" if leaves else "_EnterTensorParallel"
    with rec.tape.op(name, 6_000, creates=slot):
        if forward:
            exchange(rec, forward, ranks, NCCL_TENSOR)
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        if part == Part.WEIGHT:
            return
        with rec.tape.node(f"{name}Backward", place, Phase.BACKWARD, 5_000, uses):
            if backward:
                exchange(rec, backward, ranks, NCCL_TENSOR)

    rec.nodes.append(node)


def exchange(rec: Recorder, kind: str, ranks: tuple[int, ...], stream: int) -> None:
    whole = rec.sizes.tokens * rec.sizes.hidden
    share = whole // len(ranks)
    before = share if kind == "_allgather_base" else whole
    after = share if kind == "_reduce_scatter_base" else whole
    rec.collective(kind, KERNELS[kind], OPS[kind], ranks, before, after, stream)
    rec.wait(stream)


def dispatch(rec: Recorder) -> None:
    """All-to-all of the tokens, there and in backward back."""
    ranks, place, slot = rec.groups.experts, rec.place, rec.slot()
    assert place is not None
    with rec.tape.op("_AllToAll", 6_000, creates=slot):
        exchange(rec, "all_to_allv", ranks, NCCL_TENSOR)
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        if part != Part.WEIGHT:
            with rec.tape.node("_AllToAllBackward", place, Phase.BACKWARD, 5_000, uses):
                exchange(rec, "all_to_allv", ranks, NCCL_TENSOR)

    rec.nodes.append(node)


def accumulate_gradient(rec: Recorder, place: Place, elements: int) -> None:
    with rec.tape.node("torch::autograd::AccumulateGrad", place, Phase.ACCUMULATE, 3_000):
        with rec.tape.op("aten::add_", 2_500, dims=((elements,), (elements,), ()), concrete=("", "", "1")):
            rec.elementwise("void at::native::vectorized_elementwise_kernel<4, add>", elements)
        rec.bucket += elements
        if rec.reduces and rec.bucket >= _BUCKET:
            reduce_gradients(rec, Phase.GRAD_SYNC)


def reduce_gradients(rec: Recorder, phase: Phase | None = None) -> None:
    """Start the all-reduce of what is in the bucket; phase: None for that of what is around."""
    kernel = KERNELS["allreduce"]
    rec.collective("allreduce", kernel, OPS["allreduce"], rec.groups.data, rec.bucket, rec.bucket, NCCL_DATA, phase)
    rec.bucket = 0
