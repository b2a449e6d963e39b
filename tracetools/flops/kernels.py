"""What a kernel's name says about its arithmetic. In: names. Out: whether it multiplies matrices, and in what.

Names are a library's own business, so they only check and complete what shapes say: nothing is counted by a name.
"""

from __future__ import annotations

import enum
import re
from typing import Final

_PRODUCT: Final = re.compile(
    r"gemm|gemv|nvjet|xmma|cutlass|cijk|conv|winograd|wgrad|dgrad|sdpa|flash|fmha|attention|attn|mma_|wmma|dot_kernel"
    r"|matmul|_mm_|bmm_|scudnn|grouped_mm|triton_tem|rnn|lstm|hipblas|rocblas|splitk(?!_?reduce)"
)
_HELPER: Final = re.compile(
    r"splitk_?reduce|reduce_?splitk|reduce_wgrad|_convert_|convert_dq|typeconvert|dot_do_o|im2col|col2im|norm|routing"
    r"|finalize|reshape_and_cache|offsets|precompute|quantize"
)
"""What goes with a product, or only bears the name of one."""
_NO_PRODUCT: Final = re.compile(
    r"at::native|at_cuda_detail|at::cuda|elementwise|reduce|softmax|norm|embedding|dropout|adam|multi_tensor|memset"
    r"|memcpy|copy|fill|transpose|permute|index|scatter|gather|cast|quantize|scan|sort|triton_(poi|red|per)_|histogram"
    r"|random|pool|activation|gelu|silu|relu|swiglu|bias|topk|rope|rotary|cross_entropy|::bn_|nllcriterion"
    r"|nchwtonhwc|nhwctonchw|subtensorop|scalepackedtensor"
)


class Precision(enum.StrEnum):
    """What the factors of a product are made of, in the names of the peak table."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP4 = "fp4"
    INT8 = "int8"


OF_TYPE: Final[dict[str, Precision]] = {
    "double": Precision.FP64,
    "c10::BFloat16": Precision.BF16,
    "c10::Half": Precision.FP16,
    "c10::Float8_e4m3fn": Precision.FP8,
    "c10::Float8_e5m2": Precision.FP8,
    "c10::Float8_e4m3fnuz": Precision.FP8,
    "c10::Float8_e5m2fnuz": Precision.FP8,
    "c10::Float4_e2m1fn_x2": Precision.FP4,
    "signed char": Precision.INT8,
    "unsigned char": Precision.INT8,
}
"""By the recorded element type; `float` is not among them: on a GPU it may be multiplied as TF32."""

_OF_NAME: Final = (
    (Precision.FP8, re.compile(r"nvjet_[a-z0-9]*qq|e4m3|e5m2|_f8f8|fp8")),
    (Precision.TF32, re.compile(r"tf32|s1688|tensorop_s\d*gemm|xf32|_s_mx_")),
    (Precision.FP32, re.compile(r"sgemm|simt|ffma|f32f32_f32f32|_s_?b_|_scudnn|gemv|winograd|fft")),
)


def is_product(name: str) -> bool:
    """Whether a kernel seems to multiply matrices, convolve or attend.

    >>> is_product("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT"), is_product("void at::native::softmax_warp_forward")
    (True, False)
    """
    name = name.lower()
    return _PRODUCT.search(name) is not None and _HELPER.search(name) is None


def is_without_product(name: str) -> bool:
    """Whether a kernel is known to do nothing of the kind, whoever launched it."""
    name = name.lower()
    helps = _HELPER.search(name) is not None
    return helps or (_NO_PRODUCT.search(name) is not None and _PRODUCT.search(name) is None)


def precision_of_kernel(name: str) -> Precision | None:
    """Element type that a kernel's name tells, None where it tells none that types do not.

    >>> precision_of_kernel("ampere_sgemm_128x64_nn"), precision_of_kernel("cutlass_80_tensorop_s1688gemm_128x64")
    (<Precision.FP32: 'fp32'>, <Precision.TF32: 'tf32'>)
    """
    name = name.lower()
    return next((precision for precision, pattern in _OF_NAME if pattern.search(name)), None)
