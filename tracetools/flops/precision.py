"""In which element type each product was made. In: calls and the kernels they launched. Out: index into `PRECISIONS`.

The recorded type of a factor says it, but for two: `float` on a GPU is multiplied as TF32 or as FP32, and Transformer
Engine's functions list what they are given, not the FP8 that they cast it to. There the longest kernel's name says it,
or nothing does.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tracetools.attribution.structure import Structure
from tracetools.flops.call import OpCall
from tracetools.flops.calls import Calls
from tracetools.flops.functions import ATTENTION, LAYERS
from tracetools.flops.kernels import OF_TYPE, Precision, precision_of_kernel
from tracetools.table import ABSENT, IntArray
from tracetools.timeline.gpu_work import Work

PRECISIONS: Final = tuple(Precision)
_ASK, _UNKNOWN = -2, -1


def find_precisions(structure: Structure, calls: Calls, which: IntArray, launched_by: IntArray) -> npt.NDArray[np.int8]:
    """Precision of each counted op; -1 where it is not known.

    which: per op its distinct call (of a function's backward, that of its forward). launched_by: per piece of GPU work
    the position of the op that launched it, or -1.
    """
    operands = [0 if flops is None else flops.operand for flops in calls.flops]
    on_gpu = len(structure.work) > 0
    of_call = np.array(
        [_of_call(call, operand, on_gpu) for call, operand in zip(calls.call, operands, strict=True)] or [_UNKNOWN]
    )
    is_function = np.array([call.name in LAYERS or call.name.startswith("tex_ts::") for call in calls.call] or [False])
    found = of_call[which]
    if on_gpu:
        of_kernel = _of_kernels(structure, launched_by, len(which))
        fp8 = PRECISIONS.index(Precision.FP8)
        found = np.where(found == _ASK, of_kernel, found)
        found = np.where(is_function[which] & (of_kernel == fp8), fp8, found)
    known: npt.NDArray[np.int8] = np.maximum(found, _UNKNOWN).astype(np.int8)
    return known


def _of_call(call: OpCall, operand: int, on_gpu: bool) -> int:
    if call.name in LAYERS or call.name in ATTENTION:
        return _of_types(call.types, on_gpu)
    return _of_types(call.types[operand : operand + 1], on_gpu)


def _of_types(types: tuple[str, ...], on_gpu: bool) -> int:
    for each in types:
        if each == "float":
            return _ASK if on_gpu else PRECISIONS.index(Precision.FP32)
        if each in OF_TYPE:
            return PRECISIONS.index(OF_TYPE[each])
    return _UNKNOWN


def _of_kernels(structure: Structure, launched_by: IntArray, ops: int) -> IntArray:
    """What the name of each op's longest kernel tells, -1 for nothing."""
    work = structure.work
    mine = np.flatnonzero((launched_by >= 0) & (work.work == Work.COMPUTE))
    mine = mine[np.argsort(work.end_ns[mine] - work.start_ns[mine], kind="stable")]
    main = np.full(ops, ABSENT, np.int64)
    # Of several kernels of one op the last assignment stays, which is the longest.
    main[launched_by[mine]] = structure.trace.events.name[work.row[mine]]
    found = np.full(ops, _UNKNOWN, np.int64)
    for name in np.unique(main[main != ABSENT]).tolist():
        if (precision := precision_of_kernel(structure.trace.strings[name])) is not None:
            found[main == name] = PRECISIONS.index(precision)
    return found
