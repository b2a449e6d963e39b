"""Layers of plain torch modules. In: a recorder. Out: forward on its tape, nodes in its list."""

from __future__ import annotations

from tests.simulator.communication import accumulate_gradient, dispatch, enter_tensor_parallel, leave_tensor_parallel
from tests.simulator.recorder import OP_NS, Part, Recorder
from tests.simulator.tape import COPY, UNATTRIBUTED, Phase, Work


def linear(
    rec: Recorder, name: str, inputs: int, outputs: int, tokens: int | None = None, *, input_grad: bool = True
) -> None:
    """torch.nn.Linear with bias."""
    tokens = tokens or rec.sizes.tokens
    inside = 5_000 + 2_500 + 1_500 + 600 + OP_NS + rec.machine.launch_ns
    python = max(rec.style.module_ns - inside, 0) or 9_000
    with rec.module(name, "torch.nn.modules.linear.Linear", python - 1_000) as place:
        transpose, product = rec.slot(), rec.slot()
        with rec.tape.op(
            "aten::linear", 5_000, numbered=rec.grad, dims=((tokens, inputs), (outputs, inputs), (outputs,))
        ):
            with rec.tape.op("aten::t", 2_500, creates=transpose, dims=((outputs, inputs),)):
                _view(rec)
            dims = (outputs,), (tokens, inputs), (inputs, outputs), (), ()
            beta_alpha = "", "", "", "1", "1"
            with rec.tape.op("aten::addmm", OP_NS, creates=product, dims=dims, concrete=beta_alpha, transposed=(2,)):
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
                with rec.tape.op("aten::sum", OP_NS, dims=((tokens, outputs), (), ()), concrete=("", "[0]", "True")):
                    rec.elementwise("void at::native::reduce_kernel<128, 4>", tokens * outputs)
        if part != Part.INPUT and trained:
            accumulate_gradient(rec, place, outputs)
            with rec.tape.node("TBackward0", place, Phase.BACKWARD, 3_000, uses_transpose):
                with rec.tape.op("aten::t", 2_500, dims=((inputs, outputs),)):
                    _view(rec)
            accumulate_gradient(rec, place, inputs * outputs)

    rec.nodes.append(node)


def _view(rec: Recorder) -> None:
    with rec.tape.op("aten::transpose", 1_500):
        rec.tape.leaf("aten::as_strided", 600)


def _matrix_product(rec: Recorder, m: int, k: int, n: int, operand: str) -> None:
    with rec.tape.op("aten::t", 2_500, dims=((k, n),)):
        _view(rec)
    transposed = (0,) if operand == "wgrad" else ()
    with rec.tape.op("aten::mm", OP_NS, dims=((m, k), (k, n)), transposed=transposed):
        rec.product("sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64", m, k, n, operand)


def layer_norm(rec: Recorder, name: str) -> None:
    tokens, hidden = rec.sizes.tokens, rec.sizes.hidden
    with rec.module(name, "torch.nn.modules.normalization.LayerNorm") as place:
        slot = rec.slot()
        with rec.tape.op("aten::layer_norm", 3_000, numbered=rec.grad):
            dims = (tokens, hidden), (), (hidden,), (hidden,), ()
            with rec.tape.op("aten::native_layer_norm", OP_NS, creates=slot, dims=dims):
                rec.elementwise("void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>", tokens * hidden)
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        if part == Part.WEIGHT:
            return
        with rec.tape.node("NativeLayerNormBackward0", place, Phase.BACKWARD, 5_000, uses):
            with rec.tape.op("aten::native_layer_norm_backward", OP_NS, dims=((tokens, hidden), (tokens, hidden))):
                rec.elementwise("void at::native::layer_norm_grad_input_kernel<c10::BFloat16>", tokens * hidden)
                rec.elementwise("void at::native::GammaBetaBackwardCUDAKernel<c10::BFloat16>", tokens * hidden)
        accumulate_gradient(rec, place, hidden)
        accumulate_gradient(rec, place, hidden)

    rec.nodes.append(node)


def elementwise(rec: Recorder, op: str, node_name: str, elements: int, *, backward_kernel: bool) -> None:
    """An op of one kernel, outside or inside a module; its node has a kernel or just passes on."""
    place, slot = rec.place, rec.slot()
    assert place is not None
    with rec.tape.op(op, OP_NS, creates=slot, phase=rec.phase, dims=((elements,),)):
        rec.elementwise(f"void at::native::vectorized_elementwise_kernel<4, {op.removeprefix('aten::')}>", elements)
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        if part == Part.WEIGHT:
            return
        with rec.tape.node(node_name, place, Phase.BACKWARD, 3_500, uses):
            if backward_kernel:
                with rec.tape.op(f"{op}_backward", OP_NS, dims=((elements,), (elements,))):
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
        "aten::scaled_dot_product_attention", OP_NS, numbered=rec.grad, dims=(*dims, (), ()), concrete=concrete
    ):
        name = "aten::_scaled_dot_product_flash_attention"
        with rec.tape.op(name, OP_NS, creates=slot, dims=(*dims, (), ()), concrete=concrete):
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
            inputs = (dims[0], *dims, dims[0], dims[0][:3], *((),) * 8)
            values = (*("",) * 8, str(sizes.sequence), str(sizes.sequence), "0.", "True", "", "")
            with rec.tape.op(f"{name}_backward", OP_NS, dims=inputs, concrete=values):
                length = rec.machine.product_ns(back)
                kernel = (
                    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>"
                )
                rec.kernel(kernel, length, back, "dgrad")

    rec.nodes.append(node)


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
            accumulate_gradient(rec, place, inputs * outputs * experts)

    rec.nodes.append(node)


def load_batch(rec: Recorder) -> None:
    """The micro-batch goes to the GPU on a stream of its own."""
    size = rec.sizes.tokens * 8
    length = 1_500 + size * 1_000_000_000 // 25_000_000_000
    with rec.tape.op("aten::to", 3_000), rec.tape.op("aten::copy_", 4_000):
        name = "Memcpy HtoD (Pinned -> Device)"
        rec.tape.launch(Work(name, length, COPY, "gpu_memcpy", "cudaMemcpyAsync", bytes=size))
    rec.wait(COPY)


def embedding(rec: Recorder) -> None:
    sizes, slot = rec.sizes, rec.slot()
    elements = sizes.tokens * sizes.hidden
    load_batch(rec)
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
        accumulate_gradient(rec, place, sizes.vocabulary * sizes.hidden)

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
