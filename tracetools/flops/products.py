"""FLOPs of matrix products: 2·m·k·n for [m, k] times [k, n], a multiply and an add for each of m·k·n pairs.

Counts are those of the products alone: bias, scale and activation that are fused into one are left out.
"""

from __future__ import annotations

from dataclasses import replace

from tracetools.flops.call import OpCall, Shape, Uncountable, elements
from tracetools.flops.formulas import Flops, built_in


def product(a: Shape, b: Shape, operand: int = 0) -> Flops:
    """FLOPs of [m, k] times [k, n].

    >>> product((4, 64), (64, 10)).count
    5120

    Raises: Uncountable where the sizes do not fit.
    """
    if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
        raise Uncountable("the operands do not fit")
    return Flops(2 * a[0] * a[1] * b[1], operand=operand, factors=(a, b))


def batched_product(a: Shape, b: Shape, operand: int = 0) -> Flops:
    """FLOPs of [batch, m, k] times [batch, k, n]. Raises: Uncountable where the sizes do not fit."""
    if len(a) != 3 or len(b) != 3 or a[0] != b[0] or a[2] != b[1]:
        raise Uncountable("the operands do not fit")
    return Flops(2 * a[0] * a[1] * a[2] * b[2], operand=operand, factors=(a, b))


@built_in("aten::mm", "aten::_int_mm", "aten::_scaled_mm", "aten::_scaled_mm_v2")
def mm(call: OpCall) -> Flops:
    """Inputs are (self, mat2), and its scaled forms with further inputs behind."""
    return product(call.shape(0), call.shape(1))


@built_in("aten::addmm", "aten::_addmm_activation", "aten::addmm_")
def addmm(call: OpCall) -> Flops:
    """Inputs are (self, mat1, mat2, beta, alpha): the addition of self is left out."""
    return product(call.shape(1), call.shape(2), operand=1)


@built_in("aten::bmm")
def bmm(call: OpCall) -> Flops:
    """Inputs are (self, mat2)."""
    return batched_product(call.shape(0), call.shape(1))


@built_in("aten::baddbmm", "aten::baddbmm_", "aten::addbmm", "aten::addbmm_")
def baddbmm(call: OpCall) -> Flops:
    """Inputs are (self, batch1, batch2, beta, alpha); addbmm has the same products, summed over the batch."""
    return batched_product(call.shape(1), call.shape(2), operand=1)


@built_in("aten::mv")
def mv(call: OpCall) -> Flops:
    """Inputs are (self, vec)."""
    return _matrix_vector(call, 0)


@built_in("aten::addmv", "aten::addmv_")
def addmv(call: OpCall) -> Flops:
    """Inputs are (self, mat, vec, beta, alpha)."""
    return _matrix_vector(call, 1)


@built_in("aten::dot", "aten::vdot")
def dot(call: OpCall) -> Flops:
    """Inputs are (self, tensor)."""
    return Flops(2 * call.shape(0, 1)[0])


@built_in("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2")
def grouped_mm(call: OpCall) -> Flops:
    """Products of groups, each of its own rows or of its own part of the summed dimension.

    [rows, k] times [groups, k, n], [groups, m, k] times [k, columns], or [m, rows] times [rows, n]: whatever the split
    is, every row (column, summed element) belongs to one group. Rows behind the last offset count too.
    """
    a, b = call.shape(0, 2, 3), call.shape(1, 2, 3)
    if len(a) == 3 and len(b) == 3:
        return batched_product(a, b)
    return replace(product(a[-2:], b[-2:]), factors=(a, b))


@built_in("mkldnn::_linear_pointwise", "aten::mkldnn_linear", "aten::_mkldnn_linear")
def linear(call: OpCall) -> Flops:
    """[…, in] times a weight [out, in], for backends whose linear is no mm inside."""
    x, weight = call.shape(0), call.shape(1, 2)
    if not x:
        raise Uncountable("the operands do not fit")
    return product((elements(x[:-1]), x[-1]), weight[::-1])


@built_in("aten::_weight_int8pack_mm", "aten::_weight_int4pack_mm", "aten::_weight_int4pack_mm_for_cpu")
def packed_weight_mm(call: OpCall) -> Flops:
    """[m, k] times a packed weight whose first dimension is n; of int4 weights on the GPU n / 8."""
    x, weight = call.shape(0, 2), call.shape(1, 2, 4)
    return product(x, (x[1], weight[0] * 8 if len(weight) == 4 else weight[0]))


@built_in("tex_ts::te_gemm_ts")
def te_gemm(call: OpCall) -> Flops:
    """Transformer Engine 1.x: te_gemm_ts(A, …, transa at 4, B at 5, …, transb at 9, D at 10).

    A is [k, m] or, transposed, [m, k]; B is [n, k] or, transposed, [k, n]; D is [n, m].
    """
    a, b = call.shape(0, 2), call.shape(5, 2)
    # The flags are written as True or as 1.
    return product(b[::-1] if call.value(9) else b, a[::-1] if call.value(4) else a)


def _matrix_vector(call: OpCall, matrix: int) -> Flops:
    (length,) = call.shape(matrix + 1, 1)
    return product(call.shape(matrix, 2), (length, 1), operand=matrix)
