"""The FLOPs of one trace, op by op. In: `Structure`. Out: `FlopCount`, a row per op that counts.

Of ops inside each other the innermost with a count is the one that counts, so that neither composites nor a dispatch
mode that shows each op twice count again. Everything else is a question of one op each:

    never_ran             did it run at all?
    gradients             whose gradient did it make?
    function_gradients    what did functions do whose products are no ops?
    precision             in which element type?
    coverage              what else ran that may count?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracetools.attribution.phases import Code
from tracetools.attribution.structure import Structure
from tracetools.flops.calls import Calls, read_calls
from tracetools.flops.coverage import Coverage, measure_coverage
from tracetools.flops.formulas import Flops
from tracetools.flops.function_gradients import FunctionGradients, count_function_gradients
from tracetools.flops.functions import LAYERS
from tracetools.flops.gathered import find_gathered
from tracetools.flops.gradients import Gradient, split_gradients
from tracetools.flops.never_ran import find_never_ran
from tracetools.flops.precision import find_precisions
from tracetools.table import BoolArray, IntArray
from tracetools.timeline.tree import nearest_ancestor, nearest_self_or_ancestor

_SIZES: Final = 4
"""Columns of a count that grow with its sizes."""


@dataclass(frozen=True, slots=True)
class FlopCount:
    """FLOPs per counted op; every array has one value per op.

    row: its event row. total: as if no mask left anything out. masked: of these, what a causal mask leaves out. again:
    what an attention backward spends on working the scores out once more. weight: what makes gradients of weights.
    split: whether that is known. bound: see `Bound`. precision: index into `PRECISIONS`, -1 where it is not known.
    never_ran: ops that were entered and did nothing. uncountable: calls of ops with a formula whose shapes are not
    recorded or do not fit, by name. coverage: None without GPU work. launched_by: per piece of GPU work, position of
    the counted op that launched it, or -1.
    """

    row: IntArray
    total: IntArray
    masked: IntArray
    again: IntArray
    weight: IntArray
    split: BoolArray
    bound: npt.NDArray[np.uint8]
    precision: npt.NDArray[np.int8]
    never_ran: int
    uncountable: dict[str, int]
    coverage: Coverage | None
    launched_by: IntArray

    @property
    def known(self) -> bool:
        """Whether a sum of these means anything: something counts, or nothing that may count was missed."""
        missed = self.uncountable or (self.coverage is not None and self.coverage.uncounted)
        return len(self.row) > 0 or self.never_ran > 0 or not missed


def count_flops(structure: Structure) -> FlopCount:
    """Count every op of the trace, whatever its step."""
    calls = read_calls(structure)
    kept = _innermost(structure, calls)
    stopped = find_never_ran(structure, calls.row[kept])
    ran = kept[~stopped]
    functions = count_function_gradients(structure, calls, ran)
    row = np.concatenate([calls.row[ran], functions.row])
    # A function's gradients are in the sizes and types of its forward.
    which = calls.which[ran][np.concatenate([np.arange(len(ran)), functions.forward])]
    table = np.concatenate([_table(calls.flops)[calls.which[ran]], _table(functions.flops)])
    table[:, :_SIZES] *= _gathered(structure, calls, row, which, functions)[:, None]
    total, masked, again, weight, bound = table.T
    split = _split_backward(structure, calls, ran, row, total, weight)
    launched_by = _launched_by(structure, row)
    return FlopCount(
        row=row,
        total=total,
        masked=masked,
        again=again,
        weight=weight,
        split=split,
        bound=bound.astype(np.uint8),
        precision=find_precisions(structure, calls, which, launched_by),
        never_ran=int(np.count_nonzero(stopped)),
        uncountable=_uncountable(structure, calls),
        coverage=measure_coverage(structure, launched_by) if len(structure.work) else None,
        launched_by=launched_by,
    )


def _innermost(structure: Structure, calls: Calls) -> IntArray:
    """Positions of calls that have a count and hold no other that has."""
    has_count = np.array([flops is not None for flops in calls.flops] or [False])
    counting = np.flatnonzero(has_count[calls.which])
    marked = np.zeros(len(structure.trace.events), bool)
    marked[calls.row[counting]] = True
    outer = nearest_ancestor(structure.tree.parent, marked)[calls.row[counting]]
    marked[outer[outer >= 0]] = False
    return counting[marked[calls.row[counting]]]


def _table(flops: Sequence[Flops | None]) -> IntArray:
    """Columns: total, masked, again, weight (-1: not known), bound; shape (len(flops), 5)."""
    rows = [
        (each.count, each.masked, each.again, -1 if each.weight is None else each.weight, each.bound)
        for each in (one or Flops(0) for one in flops)
    ]
    return np.array(rows, np.int64).reshape(-1, _SIZES + 1)


def _gathered(
    structure: Structure, calls: Calls, row: IntArray, which: IntArray, functions: FunctionGradients
) -> IntArray:
    """Per op, how many times its own rows it multiplies; a function's backward as its forward."""
    factor = np.ones(len(row), np.int64)
    is_layer = np.array([call.name in LAYERS for call in calls.call] or [False])
    forward = len(row) - len(functions.row)
    layers = np.flatnonzero(is_layer[which[:forward]])
    if not len(layers):
        return factor
    found = find_gathered(structure, row[layers], [calls.call[each] for each in which[layers].tolist()])
    factor[layers] = [found.get(each, 1) for each in row[layers].tolist()]
    factor[forward:] = factor[functions.forward]
    return factor


def _split_backward(
    structure: Structure, calls: Calls, ran: IntArray, row: IntArray, total: IntArray, weight: IntArray
) -> BoolArray:
    """Fill in what makes gradients of weights, and tell where that is known."""
    backward = structure.phase[row] == Code.BACKWARD
    unknown = backward & (weight < 0)
    np.maximum(weight, 0, out=weight)
    split = np.ones(len(row), bool)
    split[len(ran) :] = ~unknown[len(ran) :]
    products = np.flatnonzero(unknown[: len(ran)])
    if len(products):
        gradient = split_gradients(structure, calls, ran, ran[products])
        weight[products] = np.where(gradient == Gradient.WEIGHT, total[products], 0)
        split[products] = gradient != Gradient.UNKNOWN
    return split


def _launched_by(structure: Structure, row: IntArray) -> IntArray:
    """Per piece of GPU work the position of the counted op around its launch, -1 for none."""
    position = np.full(len(structure.trace.events), -1, np.int64)
    position[row] = np.arange(len(row))
    owner = structure.launches.owner
    if not len(owner):
        return np.zeros(0, np.int64)
    holder = np.where(owner >= 0, nearest_self_or_ancestor(structure.tree.parent, position >= 0)[owner], -1)
    return np.where(holder >= 0, position[holder], -1)


def _uncountable(structure: Structure, calls: Calls) -> dict[str, int]:
    """Calls of ops with a formula that no count covers, neither theirs nor that of an op inside or around, by name."""
    without = np.array([flops is None for flops in calls.flops] or [False])[calls.which]
    if not without.any():
        return {}
    parent = structure.tree.parent
    counting, missed = np.zeros((2, len(structure.trace.events)), bool)
    counting[calls.row[~without]] = True
    missed[calls.row[without]] = True
    missed[nearest_self_or_ancestor(parent, counting) >= 0] = False
    outer = nearest_ancestor(parent, missed)[calls.row]
    while (outer >= 0).any():
        # Whatever lies inside it, the outer call is no further one.
        missed[outer[outer >= 0]] = False
        outer = nearest_ancestor(parent, missed)[calls.row]
    names, count = np.unique(structure.trace.events.name[missed], return_counts=True)
    return {structure.trace.strings[name]: number for name, number in zip(names.tolist(), count.tolist(), strict=True)}
