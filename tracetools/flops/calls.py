"""Which ops of a trace have a formula, and what it gives. In: `Structure`. Out: `Calls`.

Shapes are interned texts, so that each distinct call is read and worked out once, however often it was made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracetools.attribution.structure import Structure
from tracetools.flops.call import OpCall, Uncountable, read_call
from tracetools.flops.formulas import Flops, formula_of
from tracetools.table import ABSENT, IntArray, Kind

_INPUTS = ("input_dims", "input_types", "concrete_inputs")
_MOST = 1 << 55
"""FLOPs of one call, a quarter of a minute of the fastest GPU; a count above it is a fault of the trace."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of ops that have a formula.

    row: their rows, in tree order. which: per row, its distinct call. call: the distinct calls. flops: what the formula
    gives for each of them; None where the trace does not hold what it needs.
    """

    row: IntArray
    which: IntArray
    call: tuple[OpCall, ...]
    flops: tuple[Flops | None, ...]


def read_calls(structure: Structure) -> Calls:
    """All calls of ops with a formula, nested ones too."""
    trace = structure.trace
    events = trace.events
    has_formula = trace.named(lambda name: formula_of(name) is not None) & np.equal(events.kind, Kind.CPU_OP)
    rows = structure.tree.order[has_formula[structure.tree.order]]
    columns = [events.name[rows].astype(np.int64), *(_text(structure, name, rows) for name in _INPUTS)]
    key = columns[0]
    for column in columns[1:]:
        _, key = np.unique(key, return_inverse=True)
        key = key * (len(trace.strings) + 1) + column
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    texts = np.stack(columns, axis=1)[first].tolist()
    calls = tuple(
        read_call(trace.strings[name], *(trace.strings[text - 1] if text else None for text in given))
        for name, *given in texts
    )
    return Calls(rows, which, calls, tuple(_work_out(call) for call in calls))


def _text(structure: Structure, column: str, rows: IntArray) -> IntArray:
    """Ids of an argument's texts, counted from 1; 0 where there is none."""
    found = structure.trace.events.argument(column)[rows]
    return np.where(found == ABSENT, 0, found + 1)


def _work_out(call: OpCall) -> Flops | None:
    formula = formula_of(call.name)
    if formula is None:
        return None
    try:
        found = formula(call)
    except Uncountable:
        return None
    return found if 0 <= found.count <= _MOST else None
