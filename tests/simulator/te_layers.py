"""Layers of Transformer Engine: products without an op of their own, below an autograd function. In: a recorder.

Shapes as in Transformer Engine 2.x's source; no public trace shows them.
"""

from __future__ import annotations

from tests.simulator.communication import accumulate_gradient, enter_tensor_parallel, leave_tensor_parallel
from tests.simulator.layers import elementwise
from tests.simulator.recorder import EXC, Part, Recorder
from tests.simulator.tape import Phase

_TE = "transformer_engine.pytorch"


def te_linear(rec: Recorder, name: str, inputs: int, outputs: int, *, normed: bool = False) -> None:
    """te.Linear or te.LayerNormLinear; the autograd function lists weight first, as 2.x does."""
    tokens = rec.sizes.tokens
    function = "_LayerNormLinear" if normed else "_Linear"
    module = f"{_TE}.module.{'layernorm_linear.LayerNormLinear' if normed else 'linear.Linear'}"
    launches = (2 if normed else 1) + (1 if rec.style.fp8 else 0)
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
                rec.elementwise(name_of_norm, tokens * inputs, EXC)
            rec.te_product(tokens, inputs, outputs)
    uses = rec.reference(slot)
    trained = place.path not in rec.style.frozen

    def node(rec: Recorder, part: str) -> None:
        if part == Part.WEIGHT and not trained:
            return
        with rec.tape.node(f"{function}Backward", place, Phase.BACKWARD, 30_000, uses):
            if part != Part.WEIGHT:
                rec.te_product(tokens, outputs, inputs, "dgrad")
            if part != Part.INPUT and trained:
                rec.te_product(outputs, tokens, inputs, "wgrad")
            if normed and part != Part.WEIGHT:
                name_of_norm = "void transformer_engine::normalization::ln_bwd_tuned_kernel<Kernel_traits>"
                rec.elementwise(name_of_norm, tokens * inputs, EXC)
        if part != Part.INPUT and trained:
            accumulate_gradient(rec, place, inputs * outputs)

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
            rec.elementwise(norm, tokens * hidden, EXC)
            rec.te_product(tokens, hidden, wide)
            rec.elementwise("void transformer_engine::unary_kernel<gelu>", tokens * wide, EXC)
            rec.te_product(tokens, wide, hidden)
    uses = rec.reference(slot)

    def node(rec: Recorder, part: str) -> None:
        with rec.tape.node("_LayerNormMLPBackward", place, Phase.BACKWARD, 50_000, uses):
            for inputs, outputs in ((wide, hidden), (hidden, wide)):
                if part != Part.WEIGHT:
                    rec.te_product(tokens, outputs, inputs, "dgrad")
                if part != Part.INPUT:
                    rec.te_product(outputs, tokens, inputs, "wgrad")
            if part != Part.WEIGHT:
                rec.elementwise("void transformer_engine::dgelu_kernel", tokens * wide, EXC)
        if part != Part.INPUT:
            accumulate_gradient(rec, place, hidden * wide)
            accumulate_gradient(rec, place, hidden * wide)

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
