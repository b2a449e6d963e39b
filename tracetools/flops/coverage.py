"""How much of the GPU's compute time the count covers. In: counted rows, kernels. Out: `Coverage`.

A kernel is covered where the op that launched it is counted, and where it does nothing that counts. Not covered are
kernels that may multiply and have no formula: replays of a CUDA graph, Triton, compiled regions, custom ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracetools.attribution.structure import Structure
from tracetools.flops.kernels import is_product, is_without_product
from tracetools.table import BoolArray, IntArray, Kind
from tracetools.timeline.gpu_work import Work
from tracetools.timeline.tree import nearest_self_or_ancestor

_NAMES: Final = {-1: "(no op)", -2: "(graph replay)"}


@dataclass(frozen=True, slots=True)
class Uncounted:
    """Kernels of an op that are not covered. calls: of the op, or of the kernels where there is none."""

    op: str
    calls: int
    kernel_ns: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """compute_ns: sum of all compute kernels. covered_ns: of those that are covered. uncounted: the rest, by op."""

    compute_ns: int
    covered_ns: int
    uncounted: tuple[Uncounted, ...]


def measure_coverage(structure: Structure, counted: IntArray) -> Coverage:
    """Coverage of the chosen steps. counted: per piece of GPU work, the counted row that launched it, or -1."""
    trace, work = structure.trace, structure.work
    kernels = structure.work_chosen & (work.work == Work.COMPUTE)
    length = work.end_ns - work.start_ns
    name = trace.events.name[work.row]
    op = _innermost_op(structure)
    products, harmless = (_named(structure, name, test) for test in (is_product, is_without_product))
    known_op = op >= 0
    known_op[known_op] = trace.named(_has_no_other_product)[op[known_op]]
    covered = (counted >= 0) | harmless | (known_op & ~products)
    missed = np.flatnonzero(kernels & ~covered)
    return Coverage(
        int(length[kernels].sum()),
        int(length[kernels & covered].sum()),
        _by_op(structure, missed, op[missed], length[missed]),
    )


def _has_no_other_product(op: str) -> bool:
    """Whether kernels of an op without a formula are known by their names: torch's own, and Triton's pointwise ones."""
    return op.startswith(("aten::", "autograd::", "triton_poi_", "triton_red_", "triton_per_"))


def _named(structure: Structure, name: npt.NDArray[np.integer], test: Callable[[str], bool]) -> BoolArray:
    found = np.zeros(len(structure.trace.strings), bool)
    for at in np.unique(name).tolist():
        found[at] = test(structure.trace.strings[at])
    result: BoolArray = found[name]
    return result


def _innermost_op(structure: Structure) -> IntArray:
    """Per piece of GPU work the op around its launch, -1 for none."""
    is_op = np.equal(structure.trace.events.kind, Kind.CPU_OP)
    owner = structure.launches.owner
    holder = nearest_self_or_ancestor(structure.tree.parent, is_op)
    return np.where(owner >= 0, holder[owner], -1)


def _by_op(structure: Structure, missed: IntArray, op: IntArray, length: IntArray) -> tuple[Uncounted, ...]:
    trace = structure.trace
    label = np.where(op >= 0, trace.events.name[op], -1)
    label[trace.events.argument("graph_id")[structure.work.row[missed]] > 0] = -2
    found = []
    for key in np.unique(label).tolist():
        mine = label == key
        calls = len(np.unique(op[mine])) if key >= 0 else int(mine.sum())
        found.append(Uncounted(_NAMES.get(key) or trace.strings[key], calls, int(length[mine].sum())))
    return tuple(sorted(found, key=lambda each: (-each.kernel_ns, each.op)))
