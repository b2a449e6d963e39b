"""FLOPs of convolutions: 2·N·∏out·|weight|, where the weight [Cout, Cin / groups, …kernel] already knows the groups.

A transposed convolution spreads each input element instead: 2·N·∏in·|weight|. Counts are those of the direct method; a
Winograd or FFT kernel multiplies less. Kineto does not record outputs, so their sizes are worked out from stride,
padding and dilation (D. Dumoulin and F. Visin, "A guide to convolution arithmetic for deep learning", 2016).
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from tracetools.flops.call import OpCall, Shape, Uncountable, elements
from tracetools.flops.formulas import Flops, built_in


class _Places(NamedTuple):
    """Where an op lists what its output size depends on; input and weight come first in all of them."""

    padding: int
    stride: int
    dilation: int


_FORWARD: Final = {
    "aten::cudnn_convolution": _Places(2, 3, 4),
    "aten::cudnn_convolution_relu": _Places(padding=4, stride=3, dilation=5),
    "aten::miopen_convolution": _Places(3, 4, 5),
    "aten::miopen_depthwise_convolution": _Places(3, 4, 5),
    "aten::mkldnn_convolution": _Places(3, 4, 5),
    "mkldnn::_convolution_pointwise": _Places(3, 4, 5),
}
_TRANSPOSED: Final = ("aten::cudnn_convolution_transpose", "aten::miopen_convolution_transpose")


def output_sizes(sizes: Shape, kernel: Shape, padding: Shape, stride: Shape, dilation: Shape) -> Shape:
    """Sizes of the output of a convolution that is not transposed, batch and channels left out.

    >>> output_sizes((224, 224), (7, 7), (3, 3), (2, 2), (1, 1))
    (112, 112)

    Raises: Uncountable where the kernel does not fit.
    """
    spread = zip(sizes, kernel, padding, stride, dilation, strict=True)
    found = tuple((size + 2 * pad - dil * (each - 1) - 1) // max(step, 1) + 1 for size, each, pad, step, dil in spread)
    if any(size < 1 for size in found):
        raise Uncountable("the kernel is larger than the input")
    return found


def _direct(call: OpCall, places: _Places) -> Flops:
    x, weight = call.shape(0, 3, 4, 5), call.shape(1, 3, 4, 5)
    if len(x) != len(weight):
        raise Uncountable("input and weight do not fit")
    settings = [call.integers(place, len(x) - 2) for place in places]
    return Flops(_count(x[0], output_sizes(x[2:], weight[2:], *settings), weight))


def _transposed(call: OpCall) -> Flops:
    x, weight = call.shape(0, 3, 4, 5), call.shape(1, 3, 4, 5)
    if len(x) != len(weight):
        raise Uncountable("input and weight do not fit")
    return Flops(_count(x[0], x[2:], weight))


def _count(batch: int, sizes: Shape, weight: Shape) -> int:
    """FLOPs of a weight that is laid once on each of the positions that sizes span."""
    return 2 * batch * elements(sizes) * elements(weight)


for _name, _places in _FORWARD.items():
    built_in(_name)(partial(_direct, places=_places))
built_in(*_TRANSPOSED)(_transposed)


@built_in("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")
def convolution(call: OpCall) -> Flops:
    """Inputs are (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    return _transposed(call) if call.flag(6) else _direct(call, _Places(padding=4, stride=3, dilation=5))


@built_in("aten::convolution_backward", "aten::convolution_backward_overrideable")
def convolution_backward(call: OpCall) -> Flops:
    """Inputs are (grad_output, input, weight, bias_sizes, stride, …, transposed at 7, …, output_mask at 10).

    The gradients of input and weight take as many FLOPs as forward, each where output_mask asks for it.
    """
    # The overrideable form has no bias_sizes.
    transposed = 6 if call.name.endswith("overrideable") else 7
    mask = call.value(transposed + 3)
    if not isinstance(mask, list) or len(mask) < 2:
        raise Uncountable("output_mask is not recorded")
    gradient, x, weight = (call.shape(place, 3, 4, 5) for place in range(3))
    spread = x if call.flag(transposed) else gradient
    each = _count(spread[0], spread[2:], weight)
    return Flops(each * (bool(mask[0]) + bool(mask[1])), weight=each * bool(mask[1]))


@built_in("aten::cudnn_convolution_backward_input", "aten::miopen_convolution_backward_input")
def gradient_of_input(call: OpCall) -> Flops:
    """Before torch 1.11: cudnn_convolution_backward_input(self_size, grad_output, weight, …)."""
    gradient, weight = call.shape(1, 3, 4, 5), call.shape(2, 3, 4, 5)
    return Flops(_count(gradient[0], gradient[2:], weight), weight=0, operand=1)


@built_in("aten::cudnn_convolution_backward_weight", "aten::miopen_convolution_backward_weight")
def gradient_of_weight(call: OpCall) -> Flops:
    """Before torch 1.11: cudnn_convolution_backward_weight(weight_size, grad_output, self, …)."""
    weight, gradient = call.integers(0, len(call.shape(1, 3, 4, 5))), call.shape(1)
    count = _count(gradient[0], gradient[2:], weight)
    return Flops(count, weight=count, operand=1)
