"""A transformer as the CPU sees it: ops, launches, autograd nodes. In: sizes, costs, layout. Out: tapes of its chunks.

Each layer records its forward and hands back how its nodes will be evaluated, so that backward is forward played from
the end. The same layer recorded in phase RECOMPUTE is a checkpoint's second forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.simulator.machine import Machine
from tests.simulator.tape import COMPUTE, UNATTRIBUTED, Meeting, Phase, Place, Tape, Work

NCCL_TENSOR, NCCL_DATA, RECEIVE_FORWARD, RECEIVE_BACKWARD, SEND_FORWARD, SEND_BACKWARD = 20, 24, 28, 32, 36, 40
_OP = 4_000
_BYTES = 2
_BUCKET = 12_500_000
"""Elements of a gradient bucket: 25 MB, as DDP has by default."""


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
    what its parts add up to. frozen: paths whose weights want no gradient.
    """

    library: str = "torch"
    checkpoint: str = "none"
    sequence_parallel: bool = False
    module_ns: int = 0
    frozen: tuple[str, ...] = ()


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

    def elementwise(self, name: str, elements: int, call: str = "") -> None:
        self.kernel(name, self.machine.elementwise_ns(elements * _BYTES * 2), call=call)

    @contextmanager
    def module(self, name: str, class_name: str, python_ns: int = 8_000, after_ns: int = 1_000) -> Iterator[Place]:
        """A child of the current module."""
        outer = self.place
        self.place = outer.child(name, class_name) if outer else Place("(root)", class_name)
        self.place = _same(self.place)
        with self.tape.module(self.place, self.phase, python_ns, after_ns):
            yield self.place
        self.place = outer

    def collective(
        self, kind: str, name: str, op: str, ranks: tuple[int, ...], elements: int, out: int, stream: int
    ) -> None:
        """A collective on a stream of its own; the next compute kernel waits for it where `wait` is called."""
        if len(ranks) < 2:
            return
        tag = f"{kind}:{stream}"
        meeting = Meeting(kind, ranks, tag, str(stream), _description(stream), elements, out)
        tape = self.tape
        with tape.op(op, 3_000), tape.op("record_param_comms", 4_000, meeting=meeting):
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


_PLACES: dict[tuple[str, str | None], Place] = {}


def _same(place: Place) -> Place:
    """One object per path and parent, so that forward, backward and recompute agree."""
    key = place.path, place.parent.path if place.parent else None
    return _PLACES.setdefault(key, place)


def _description(stream: int) -> str:
    return {NCCL_TENSOR: "TENSOR_MODEL_PARALLEL_GROUP", NCCL_DATA: "DATA_PARALLEL_GROUP"}.get(stream, "undefined")


# Layers: each records its forward and appends its nodes


def linear(
    rec: Recorder, name: str, inputs: int, outputs: int, tokens: int | None = None, *, input_grad: bool = True
) -> None:
    """torch.nn.Linear with bias."""
    tokens = tokens or rec.sizes.tokens
    inside = 5_000 + 2_500 + 1_500 + 600 + _OP + rec.machine.launch_ns
    python = max(rec.style.module_ns - inside, 0) or 9_000
    with rec.module(name, "torch.nn.modules.linear.Linear", python - 1_000) as place:
        transpose, product = rec.slot(), rec.slot()
        with rec.tape.op(
            "aten::linear", 5_000, numbered=rec.grad, dims=((tokens, inputs), (outputs, inputs), (outputs,))
        ):
            with rec.tape.op("aten::t", 2_500, creates=transpose, dims=((outputs, inputs),)):
                _view(rec)
            dims = (outputs,), (tokens, inputs), (inputs, outputs), (), ()
            with rec.tape.op("aten::addmm", _OP, creates=product, dims=dims, concrete=("", "", "", "1", "1")):
                rec.product("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", tokens, inputs, outputs)
    uses_product, uses_transpose = rec.reference(product), rec.reference(transpose)
    trained = place.path not in rec.style.frozen

    def node(rec: Recorder, part: str) -> None:
        if part == Part.WEIGHT and not trained:
            return
        with rec.tape.node("AddmmBackward0", place, Phase.BACKWARD, 6_000, uses_product):
            if part != Part.WEIGHT and input_grad:
                _matrix_product(rec, tokens, outputs, inputs, "dgrad")
            if part != Part.INPUT and trained:
                _matrix_product(rec, outputs, tokens, inputs, "wgrad")
                with rec.tape.op("aten::sum", _OP, dims=((tokens, outputs), (), ()), concrete=("", "[0]", "True")):
                    rec.elementwise("void at::native::reduce_kernel<128, 4>", tokens * outputs)
        if part != Part.INPUT and trained:
            _accumulate(rec, place, outputs)
            with rec.tape.node("TBackward0", place, Phase.BACKWARD, 3_000, uses_transpose):
                with rec.tape.op("aten::t", 2_500, dims=((inputs, outputs),)):
                    _view(rec)
            _accumulate(rec, place, inputs * outputs)

    rec.nodes.append(node)


def _view(rec: Recorder) -> None:
    with rec.tape.op("aten::transpose", 1_500):
        rec.tape.leaf("aten::as_strided", 600)


def _matrix_product(rec: Recorder, m: int, k: int, n: int, operand: str) -> None:
    with rec.tape.op("aten::t", 2_500, dims=((k, n),)):
        _view(rec)
    with rec.tape.op("aten::mm", _OP, dims=((m, k), (k, n))):
        rec.product("sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64", m, k, n, operand)


def _accumulate(rec: Recorder, place: Place, elements: int) -> None:
    with rec.tape.node("torch::autograd::AccumulateGrad", place, Phase.ACCUMULATE, 3_000):
        with rec.tape.op("aten::add_", 2_500, dims=((elements,), (elements,), ()), concrete=("", "", "1")):
            rec.elementwise("void at::native::vectorized_elementwise_kernel<4, add>", elements)
        rec.bucket += elements
        if rec.reduces and rec.bucket >= _BUCKET:
            reduce_gradients(rec)


def reduce_gradients(rec: Recorder) -> None:
    """Start the all-reduce of what is in the bucket."""
    kernel = _KERNEL["allreduce"]
    rec.collective("allreduce", kernel, _C10D["allreduce"], rec.groups.data, rec.bucket, rec.bucket, NCCL_DATA)
    rec.bucket = 0


def layer_norm(rec: Recorder, name: str) -> None:
    tokens, hidden = rec.sizes.tokens, rec.sizes.hidden
    with rec.module(name, "torch.nn.modules.normalization.LayerNorm") as place:
        slot = rec.slot()
        with rec.tape.op("aten::layer_norm", 3_000, numbered=rec.grad):
            dims = (tokens, hidden), (), (hidden,), (hidden,), ()
            with rec.tape.op("aten::native_layer_norm", _OP, creates=slot, dims=dims):
                rec.elementwise("void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>", tokens * hidden)
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        if part == Part.WEIGHT:
            return
        with rec.tape.node("NativeLayerNormBackward0", place, Phase.BACKWARD, 5_000, uses):
            with rec.tape.op("aten::native_layer_norm_backward", _OP, dims=((tokens, hidden), (tokens, hidden))):
                rec.elementwise("void at::native::layer_norm_grad_input_kernel<c10::BFloat16>", tokens * hidden)
                rec.elementwise("void at::native::GammaBetaBackwardCUDAKernel<c10::BFloat16>", tokens * hidden)
        _accumulate(rec, place, hidden)
        _accumulate(rec, place, hidden)

    rec.nodes.append(node)


def elementwise(rec: Recorder, op: str, node_name: str, elements: int, *, backward_kernel: bool) -> None:
    """An op of one kernel, outside or inside a module; its node has a kernel or just passes on."""
    place, slot = rec.place, rec.slot()
    assert place is not None
    with rec.tape.op(op, _OP, creates=slot, phase=rec.phase, dims=((elements,),)):
        rec.elementwise(f"void at::native::vectorized_elementwise_kernel<4, {op.removeprefix('aten::')}>", elements)
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        if part == Part.WEIGHT:
            return
        with rec.tape.node(node_name, place, Phase.BACKWARD, 3_500, uses):
            if backward_kernel:
                with rec.tape.op(f"{op}_backward", _OP, dims=((elements,), (elements,))):
                    rec.elementwise("void at::native::vectorized_elementwise_kernel<4, backward>", elements)

    rec.nodes.append(node)


def attention(rec: Recorder, heads: int) -> None:
    """Flash attention, causal; FLOPs by the full convention."""
    sizes, place, slot = rec.sizes, rec.place, rec.slot()
    assert place is not None
    dims = ((sizes.batch, heads, sizes.sequence, sizes.hidden // sizes.heads),) * 3
    flops = 4 * sizes.batch * heads * sizes.sequence**2 * (sizes.hidden // sizes.heads)
    concrete = "", "", "", "0.", "True"
    with rec.tape.op(
        "aten::scaled_dot_product_attention", _OP, numbered=rec.grad, dims=(*dims, (), ()), concrete=concrete
    ):
        name = "aten::_scaled_dot_product_flash_attention"
        with rec.tape.op(name, _OP, creates=slot, dims=(*dims, (), ()), concrete=concrete):
            rec.kernel(
                "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>",
                rec.machine.product_ns(flops),
                flops,
            )
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        if part == Part.WEIGHT:
            return
        back = flops * 5 // 2
        with rec.tape.node("ScaledDotProductFlashAttentionBackward0", place, Phase.BACKWARD, 6_000, uses):
            with rec.tape.op(f"{name}_backward", _OP, dims=(dims[0], *dims), concrete=("",) * 4):
                length = rec.machine.product_ns(back)
                kernel = (
                    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>"
                )
                rec.kernel(kernel, length, back, "dgrad")

    rec.nodes.append(node)


def enter_tensor_parallel(rec: Recorder) -> None:
    """Ahead of a column-parallel product: activations are gathered, or backward is summed up."""
    _tensor_parallel(rec, forward="_allgather_base" if rec.style.sequence_parallel else None)


def leave_tensor_parallel(rec: Recorder) -> None:
    """Behind a row-parallel product: its sum is taken, split again or not."""
    _tensor_parallel(rec, forward="_reduce_scatter_base" if rec.style.sequence_parallel else "allreduce", leaves=True)


_OPPOSITE = {"_allgather_base": "_reduce_scatter_base", "_reduce_scatter_base": "_allgather_base", None: "allreduce"}
_KERNEL = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_allv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
_C10D = {
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
            _exchange(rec, forward, ranks, NCCL_TENSOR)
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        if part == Part.WEIGHT:
            return
        with rec.tape.node(f"{name}Backward", place, Phase.BACKWARD, 5_000, uses):
            if backward:
                _exchange(rec, backward, ranks, NCCL_TENSOR)

    rec.nodes.append(node)


def _exchange(rec: Recorder, kind: str, ranks: tuple[int, ...], stream: int) -> None:
    whole = rec.sizes.tokens * rec.sizes.hidden
    share = whole // len(ranks)
    before = share if kind == "_allgather_base" else whole
    after = share if kind == "_reduce_scatter_base" else whole
    rec.collective(kind, _KERNEL[kind], _C10D[kind], ranks, before, after, stream)
    rec.wait(stream)


def torch_block(rec: Recorder, number: int) -> None:
    """A pre-norm transformer block of plain torch modules."""
    sizes, share = rec.sizes, len(rec.groups.tensor)
    elements = sizes.tokens * sizes.hidden
    with rec.module(f"blocks.{number}", "model.Block", 6_000):
        layer_norm(rec, "norm1")
        with rec.module("attn", "model.Attention", 5_000):
            enter_tensor_parallel(rec)
            linear(rec, "qkv", sizes.hidden, 3 * sizes.hidden // share)
            attention(rec, sizes.heads // share)
            linear(rec, "proj", sizes.hidden // share, sizes.hidden)
            leave_tensor_parallel(rec)
        elementwise(rec, "aten::add", "AddBackward0", elements, backward_kernel=False)
        layer_norm(rec, "norm2")
        mixture(rec) if sizes.experts else mlp(rec)
        elementwise(rec, "aten::add", "AddBackward0", elements, backward_kernel=False)


def mlp(rec: Recorder) -> None:
    sizes, share = rec.sizes, len(rec.groups.tensor)
    wide = 4 * sizes.hidden // share
    with rec.module("mlp", "model.MLP", 4_000):
        enter_tensor_parallel(rec)
        linear(rec, "fc1", sizes.hidden, wide)
        with rec.module("act", "torch.nn.modules.activation.GELU"):
            elementwise(rec, "aten::gelu", "GeluBackward0", sizes.tokens * wide, backward_kernel=True)
        linear(rec, "fc2", wide, sizes.hidden)
        leave_tensor_parallel(rec)


def mixture(rec: Recorder) -> None:
    """Mixture of experts: router, exchange of tokens, two grouped products, exchange back."""
    sizes = rec.sizes
    with rec.module("moe", "model.MoE", 6_000):
        linear(rec, "router", sizes.hidden, sizes.experts)
        dispatch(rec)
        with rec.module("experts", "model.GroupedExperts", 5_000):
            grouped_product(rec, sizes.tokens, sizes.hidden, 4 * sizes.hidden)
            elementwise(rec, "aten::gelu", "GeluBackward0", sizes.tokens * 4 * sizes.hidden, backward_kernel=True)
            grouped_product(rec, sizes.tokens, 4 * sizes.hidden, sizes.hidden)
        dispatch(rec)


def dispatch(rec: Recorder) -> None:
    """All-to-all of the tokens, there and in backward back."""
    ranks, place, slot = rec.groups.experts, rec.place, rec.slot()
    assert place is not None
    with rec.tape.op("_AllToAll", 6_000, creates=slot):
        _exchange(rec, "all_to_allv", ranks, NCCL_TENSOR)
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        if part != Part.WEIGHT:
            with rec.tape.node("_AllToAllBackward", place, Phase.BACKWARD, 5_000, uses):
                _exchange(rec, "all_to_allv", ranks, NCCL_TENSOR)

    rec.nodes.append(node)


def grouped_product(rec: Recorder, tokens: int, inputs: int, outputs: int) -> None:
    place, slot, experts = rec.place, rec.slot(), rec.sizes.experts
    assert place is not None
    kernel = "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<GroupProblemShape>>"
    dims = (tokens, inputs), (experts, inputs, outputs), (experts,)
    with rec.tape.op("aten::_grouped_mm", 5_000, creates=slot, dims=dims):
        rec.product(kernel, tokens, inputs, outputs)
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        with rec.tape.node("GroupedMmBackward0", place, Phase.BACKWARD, 6_000, uses):
            if part != Part.WEIGHT:
                back = (tokens, outputs), (experts, outputs, inputs), (experts,)
                with rec.tape.op("aten::_grouped_mm", 5_000, dims=back):
                    rec.product(kernel, tokens, outputs, inputs, "dgrad")
            if part != Part.INPUT:
                with rec.tape.op("aten::_grouped_mm", 5_000, dims=((inputs, tokens), (tokens, outputs), (experts,))):
                    rec.product(kernel, inputs, tokens, outputs, "wgrad")
        if part != Part.INPUT:
            _accumulate(rec, place, inputs * outputs * experts)

    rec.nodes.append(node)


# Transformer Engine: products without an op of their own, below an autograd function

_TE = "transformer_engine.pytorch"
_NVJET = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT"


def te_linear(rec: Recorder, name: str, inputs: int, outputs: int, *, normed: bool = False) -> None:
    """te.Linear or te.LayerNormLinear; the autograd function lists weight first, as 2.x does."""
    tokens = rec.sizes.tokens
    function = "_LayerNormLinear" if normed else "_Linear"
    module = f"{_TE}.module.{'layernorm_linear.LayerNormLinear' if normed else 'linear.Linear'}"
    launches = 2 if normed else 1
    inside = 9_000
    spent = inside + launches * rec.machine.launch_ns
    python = max(rec.style.module_ns - spent, 0) or 60_000
    with rec.module(name, module, python - python // 4, python // 4) as place:
        slot = rec.slot()
        dims: tuple[tuple[int, ...], ...] = (outputs, inputs), (tokens, inputs), (outputs,), ()
        if normed:
            dims = (tokens, inputs), (inputs,), (inputs,), (outputs, inputs), (), (outputs,), ()
        with rec.tape.op(function, inside, creates=slot, dims=dims):
            if normed:
                name_of_norm = "void transformer_engine::normalization::ln_fwd_tuned_kernel<Kernel_traits>"
                rec.elementwise(name_of_norm, tokens * inputs, "cudaLaunchKernelExC")
            rec.product(_NVJET, tokens, inputs, outputs, call="cuLaunchKernelEx")
    uses = rec.reference(slot)
    trained = place.path not in rec.style.frozen

    def node(rec: Recorder, part: str) -> None:
        if part == Part.WEIGHT and not trained:
            return
        with rec.tape.node(f"{function}Backward", place, Phase.BACKWARD, 30_000, uses):
            if part != Part.WEIGHT:
                rec.product(_NVJET, tokens, outputs, inputs, "dgrad", "cuLaunchKernelEx")
            if part != Part.INPUT and trained:
                rec.product(_NVJET, outputs, tokens, inputs, "wgrad", "cuLaunchKernelEx")
            if normed and part != Part.WEIGHT:
                name_of_norm = "void transformer_engine::normalization::ln_bwd_tuned_kernel<Kernel_traits>"
                rec.elementwise(name_of_norm, tokens * inputs, "cudaLaunchKernelExC")
        if part != Part.INPUT and trained:
            _accumulate(rec, place, inputs * outputs)

    rec.nodes.append(node)


def te_attention(rec: Recorder, heads: int) -> None:
    sizes = rec.sizes
    width = sizes.hidden // sizes.heads
    flops = 4 * sizes.batch * heads * sizes.sequence**2 * width
    with rec.module("core_attention", f"{_TE}.attention.DotProductAttention", 60_000, 10_000) as place:
        slot = rec.slot()
        dims = ((sizes.sequence, sizes.batch, heads, width),) * 3
        with rec.tape.op("FusedAttnFunc", 12_000, creates=slot, dims=dims):
            kernel = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"
            rec.kernel(kernel, rec.machine.product_ns(flops), flops, call="cuLaunchKernelEx")
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        if part == Part.WEIGHT:
            return
        back = flops * 5 // 2
        with rec.tape.node("FusedAttnFuncBackward", place, Phase.BACKWARD, 20_000, uses):
            kernel = "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"
            rec.kernel(kernel, rec.machine.product_ns(back), back, "dgrad", "cuLaunchKernelEx")

    rec.nodes.append(node)


def te_mlp(rec: Recorder, name: str, hidden: int, wide: int) -> None:
    """te.LayerNormMLP: norm, product, activation, product in one autograd function."""
    tokens = rec.sizes.tokens
    with rec.module(name, f"{_TE}.module.layernorm_mlp.LayerNormMLP", 80_000, 20_000) as place:
        slot = rec.slot()
        dims = (tokens, hidden), (hidden,), (hidden,), (wide, hidden), (wide,), (hidden, wide), (hidden,), ()
        with rec.tape.op("_LayerNormMLP", 16_000, creates=slot, dims=dims):
            norm = "void transformer_engine::normalization::ln_fwd_tuned_kernel<Kernel_traits>"
            rec.elementwise(norm, tokens * hidden, "cudaLaunchKernelExC")
            rec.product(_NVJET, tokens, hidden, wide, call="cuLaunchKernelEx")
            rec.elementwise("void transformer_engine::unary_kernel<gelu>", tokens * wide, "cudaLaunchKernelExC")
            rec.product(_NVJET, tokens, wide, hidden, call="cuLaunchKernelEx")
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        with rec.tape.node("_LayerNormMLPBackward", place, Phase.BACKWARD, 50_000, uses):
            for inputs, outputs in ((wide, hidden), (hidden, wide)):
                if part != Part.WEIGHT:
                    rec.product(_NVJET, tokens, outputs, inputs, "dgrad", "cuLaunchKernelEx")
                if part != Part.INPUT:
                    rec.product(_NVJET, outputs, tokens, inputs, "wgrad", "cuLaunchKernelEx")
            if part != Part.WEIGHT:
                rec.elementwise("void transformer_engine::dgelu_kernel", tokens * wide, "cudaLaunchKernelExC")
        if part != Part.INPUT:
            _accumulate(rec, place, hidden * wide)
            _accumulate(rec, place, hidden * wide)

    rec.nodes.append(node)


def te_block(rec: Recorder, number: int) -> None:
    """te.TransformerLayer."""
    sizes, share = rec.sizes, len(rec.groups.tensor)
    elements = sizes.tokens * sizes.hidden
    with rec.module(f"blocks.{number}", f"{_TE}.transformer.TransformerLayer", 25_000, 4_000):
        with rec.module("self_attention", f"{_TE}.attention.MultiheadAttention", 20_000, 3_000):
            enter_tensor_parallel(rec)
            te_linear(rec, "layernorm_qkv", sizes.hidden, 3 * sizes.hidden // share, normed=True)
            te_attention(rec, sizes.heads // share)
            te_linear(rec, "proj", sizes.hidden // share, sizes.hidden)
            leave_tensor_parallel(rec)
        elementwise(rec, "aten::add", "AddBackward0", elements, backward_kernel=False)
        enter_tensor_parallel(rec)
        te_mlp(rec, "layernorm_mlp", sizes.hidden, 4 * sizes.hidden // share)
        leave_tensor_parallel(rec)
        elementwise(rec, "aten::add", "AddBackward0", elements, backward_kernel=False)


# Chunks


def embedding(rec: Recorder) -> None:
    sizes, slot = rec.sizes, rec.slot()
    elements = sizes.tokens * sizes.hidden
    with rec.module("embed", "torch.nn.modules.sparse.Embedding") as place:
        dims = (sizes.vocabulary, sizes.hidden), (sizes.batch, sizes.sequence)
        with rec.tape.op("aten::embedding", 5_000, creates=slot, dims=dims):
            rec.elementwise("void at::native::vectorized_gather_kernel<16, long>", elements)
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        if part == Part.INPUT:
            return
        with rec.tape.node("EmbeddingBackward0", place, Phase.BACKWARD, 6_000, uses):
            with rec.tape.op("aten::embedding_dense_backward", 6_000, dims=((sizes.tokens, sizes.hidden),)):
                rec.elementwise("void at::native::embedding_backward_feature_kernel<c10::BFloat16>", elements)
        _accumulate(rec, place, sizes.vocabulary * sizes.hidden)

    rec.nodes.append(node)


def loss(rec: Recorder) -> None:
    """Outside every module."""
    sizes, slot = rec.sizes, rec.slot()
    elements = sizes.tokens * sizes.vocabulary
    dims = ((sizes.tokens, sizes.vocabulary),)
    with (
        rec.tape.op(
            "aten::cross_entropy_loss", 5_000, numbered=True, dims=dims, place=UNATTRIBUTED, phase=Phase.FORWARD
        ),
        rec.tape.op("aten::log_softmax", 4_000, creates=slot),
    ):
        rec.elementwise("void at::native::cunn_SoftMaxForward<8, c10::BFloat16, float>", elements)
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        if part == Part.WEIGHT:
            return
        with rec.tape.node("LogSoftmaxBackward0", UNATTRIBUTED, Phase.BACKWARD, 5_000, uses):
            with rec.tape.op("aten::_log_softmax_backward_data", 4_000, dims=((sizes.tokens, sizes.vocabulary),)):
                rec.elementwise("void at::native::cunn_SoftMaxBackward<8, c10::BFloat16, float>", elements)

    rec.nodes.append(node)


def checkpointed(rec: Recorder, layer: Callable[[Recorder], None]) -> None:
    """A layer whose activations are thrown away and computed again in backward."""
    if rec.style.checkpoint == "none":
        layer(rec)
    elif rec.style.checkpoint == "non_reentrant":
        _non_reentrant(rec, layer)
    else:
        _reentrant(rec, layer)


def _non_reentrant(rec: Recorder, layer: Callable[[Recorder], None]) -> None:
    """The first node that asks for a saved tensor runs the layer again; its nodes are those of the first forward."""
    around, outside = rec.place, rec.nodes
    rec.nodes = []
    layer(rec)
    nodes, rec.nodes = rec.nodes, outside

    def node(rec: Recorder, part: str) -> None:
        adds_up, *others = reversed(nodes)
        adds_up(rec, part)

        def run() -> None:
            again = _recorder_of_recompute(rec, around)
            layer(again)
            rec.after = again.after

        if part != Part.WEIGHT:
            rec.tape.inside_next_node = run
        for each in others:
            each(rec, part)

    rec.nodes.append(node)


def _reentrant(rec: Recorder, layer: Callable[[Recorder], None]) -> None:
    """`CheckpointFunction`: forward without gradient; in backward forward again, then backward of that."""
    around, slot = rec.place, rec.slot()
    assert around is not None
    first = _copy(rec, grad=False)
    with rec.tape.op("CheckpointFunction", 9_000, creates=slot):
        layer(first)
    rec.after = first.after
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        with rec.tape.node("CheckpointFunctionBackward", around, Phase.BACKWARD, 12_000, uses):
            again = _recorder_of_recompute(rec, around)
            layer(again)
            again.backward(again.nodes, part)
            rec.after = again.after

    rec.nodes.append(node)


def _recorder_of_recompute(rec: Recorder, place: Place | None) -> Recorder:
    again = _copy(rec, grad=True)
    again.phase, again.place = Phase.RECOMPUTE, place
    return again


def _copy(rec: Recorder, *, grad: bool) -> Recorder:
    return Recorder(
        rec.tape, rec.machine, rec.sizes, rec.style, rec.groups, rec.phase, grad, rec.after, rec.place, nodes=[]
    )
