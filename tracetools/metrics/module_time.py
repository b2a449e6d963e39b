"""Time of each module, forward, backward and recompute. In: `Structure`. Out: `ModuleTime` rows.

Each instant of a CPU thread belongs to one module and one phase, those of its innermost span; each piece of GPU work to
those of the span that launched it. CPU time of a module is the sum over its subtree, so parents hold their children
exactly; GPU busy time is the union over the subtree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt

from tracetools.attribution.phases import Code
from tracetools.attribution.structure import Structure
from tracetools.flops.count import FlopCount
from tracetools.metrics.flop_totals import Counts
from tracetools.metrics.module_sources import find_module_sources
from tracetools.results import OPTIMIZER, UNATTRIBUTED, BackwardTime, ModuleTime, PhaseTime
from tracetools.table import BoolArray, IntArray
from tracetools.timeline.autograd import is_communication
from tracetools.timeline.gpu_work import Work
from tracetools.timeline.optimizer import optimizer_ranges
from tracetools.timeline.subtrees import Subtrees, SubtreeWork
from tracetools.timeline.tree import nearest_self_or_ancestor

_PHASES = (Code.FORWARD, Code.BACKWARD, Code.RECOMPUTE, Code.OTHER)
_SYNC = len(Code)


@dataclass(frozen=True, slots=True)
class _Forest:
    """The module tree and two bracketed places behind it.

    row: number of the row that shows a place. A qualified name under one parent has one row, though a module that is
    called from two parents makes two places of each module below it. outermost: places not inside one of the same row.
    first: per row, the place seen first.
    """

    parent: IntArray
    depth: IntArray
    subtrees: Subtrees
    row: IntArray
    outermost: IntArray
    first: IntArray

    @property
    def unattributed(self) -> int:
        """The place of what no module holds."""
        return len(self.parent) - 2

    @property
    def optimizer(self) -> int:
        """The place of the optimizer."""
        return len(self.parent) - 1

    def own(self, place: IntArray, values: IntArray | int = 1) -> IntArray:
        """Sum of a figure per row, of its places alone."""
        total = np.zeros(len(self.first), np.int64)
        np.add.at(total, self.row[place], values)
        return total

    def inclusive(self, place: IntArray, values: IntArray | int = 1) -> IntArray:
        """Sum of a figure per row, of its places and all below them."""
        return self.own(self.outermost, self.subtrees.sums(place, values)[self.outermost])


@dataclass(frozen=True, slots=True)
class _Spans:
    """CPU spans that take time. rows: of them all; self_ns, place, code (phase, or _SYNC): per event row."""

    rows: IntArray
    self_ns: IntArray
    place: IntArray
    code: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Figures:
    """Figures of one phase, one value per row. GPU figures are None without GPU records."""

    calls: IntArray
    cpu: IntArray
    self_cpu: IntArray
    busy: IntArray | None
    self_busy: IntArray | None
    kernel_ns: IntArray | None
    kernels: IntArray | None
    flops: IntArray | None

    def at(self, row: int) -> PhaseTime:
        """The part of one row."""
        return PhaseTime(
            calls=int(self.calls[row]),
            cpu_ns=int(self.cpu[row]),
            self_cpu_ns=int(self.self_cpu[row]),
            gpu_busy_ns=_value(self.busy, row),
            self_gpu_busy_ns=_value(self.self_busy, row),
            kernel_ns=_value(self.kernel_ns, row),
            kernels=_value(self.kernels, row),
            flops=_value(self.flops, row),
        )


def measure(
    structure: Structure, count: FlopCount, counts: Counts, rank: int | None, stage: int | None
) -> tuple[ModuleTime, ...]:
    """One row per module and parent in order of first call, then `(unattributed)` and `(optimizer)`."""
    forest = _build_forest(structure)
    spans = _find_spans(structure, forest)
    work_place, work_code = _work_place_and_code(structure, forest)

    def measured(code: int) -> _Figures:
        phase = Code(code) if code in _PHASES else None
        figures = _measure_phase(structure, forest, spans, work_place, spans.code == code, work_code == code, phase)
        return replace(figures, flops=flops(np.equal(code_of_op, code), counts.flops))

    place_of_op = spans.place[count.row]
    # Products that a hook makes while gradients add up are in none of the three phases.
    code_of_op = np.where(np.isin(spans.code[count.row], [Code.ACCUMULATE, _SYNC]), Code.OTHER, spans.code[count.row])
    chosen_op = structure.chosen[count.row]

    def flops(which: BoolArray, values: IntArray) -> IntArray | None:
        mine = which & chosen_op
        return forest.inclusive(place_of_op[mine], values[mine]) if count.known else None

    in_backward = np.equal(code_of_op, Code.BACKWARD)
    dgrad = flops(in_backward & count.split, counts.flops - count.weight)
    wgrad = flops(in_backward & count.split, count.weight)
    unsplit = flops(in_backward & ~count.split, counts.flops)
    by_phase = {phase: measured(phase) for phase in _PHASES}
    accumulate, sync = measured(Code.ACCUMULATE), measured(_SYNC)
    everything = np.ones(len(spans.code), bool), np.ones(len(work_code), bool)
    total = _measure_phase(structure, forest, spans, work_place, *everything, None)
    total = replace(total, flops=flops(np.ones(len(count.row), bool), counts.flops))
    sources = find_module_sources(structure)
    source = "fqn" if structure.modules.qualified else "python_frames"
    rows = []
    for at in _reading_order(structure, forest):
        place = int(forest.first[at])
        path = _path(structure, forest, place)
        rows.append(
            ModuleTime(
                rank=rank,
                stage=stage,
                path=path,
                parent=_parent_path(structure, forest, place),
                class_=structure.modules.class_name[place] if place < len(structure.modules) else None,
                source=source if place < len(structure.modules) else None,
                calls=int(by_phase[Code.FORWARD].calls[at]),
                depth=int(forest.depth[place]),
                forward=by_phase[Code.FORWARD].at(at),
                backward=BackwardTime(
                    **msgspec.structs.asdict(by_phase[Code.BACKWARD].at(at)),
                    dgrad_flops=_value(dgrad, at),
                    wgrad_flops=_value(wgrad, at),
                    unsplit_flops=_value(unsplit, at),
                    grad_accumulation_ns=_value(accumulate.busy, at),
                    grad_accumulation_cpu_ns=int(accumulate.cpu[at]),
                    grad_sync_ns=_value(sync.busy, at),
                    grad_sync_cpu_ns=int(sync.cpu[at]),
                ),
                recompute=by_phase[Code.RECOMPUTE].at(at),
                other=by_phase[Code.OTHER].at(at),
                total=total.at(at),
                defined_at=sources.get(path) if place < len(structure.modules) else None,
            )
        )
    return tuple(rows)


def _value(values: IntArray | None, row: int) -> int | None:
    return None if values is None else int(values[row])


def _build_forest(structure: Structure) -> _Forest:
    modules = structure.modules
    parent = np.concatenate([modules.parent, [-1, -1]]).astype(np.int64)
    rows: dict[object, int] = {}
    depth, row = np.zeros((2, len(parent)), np.int64)
    for place, above in enumerate(parent.tolist()):
        depth[place] = depth[above] + 1 if above >= 0 else 0
        shared = modules.qualified and place < len(modules)
        name = (modules.label[place], modules.label[above] if above >= 0 else None) if shared else place
        row[place] = rows.setdefault(name, len(rows))
    _, first = np.unique(row, return_index=True)
    subtrees = Subtrees.of_forest(parent)
    return _Forest(parent, depth, subtrees, row, np.flatnonzero(subtrees.outermost(row)), first)


def _find_spans(structure: Structure, forest: _Forest) -> _Spans:
    """Spans of the tree, and optimizer ranges; what no module holds goes to the bracketed places."""
    place, code, self_ns = structure.modules.place.copy(), structure.phase.copy(), structure.tree.self_ns.copy()
    ranges, own_ns = optimizer_ranges(structure.trace, structure.tree)
    code[ranges], self_ns[ranges] = Code.OPTIMIZER, own_ns
    place = _bracketed(forest, place, code)
    sync = (code == Code.ACCUMULATE) & (
        nearest_self_or_ancestor(structure.tree.parent, is_communication(structure.trace)) >= 0
    )
    code = _folded(code)
    code[sync] = _SYNC
    return _Spans(np.concatenate([structure.tree.order, ranges]), self_ns, place, code)


def _work_place_and_code(structure: Structure, forest: _Forest) -> tuple[IntArray, npt.NDArray[np.uint8]]:
    """The same per piece of GPU work; communication out of AccumulateGrad is gradient synchronisation."""
    place, code = structure.work_place.copy(), structure.work_phase.copy()
    place = _bracketed(forest, place, code)
    code = _folded(code)
    code[(code == Code.ACCUMULATE) & (structure.work.work == Work.COMMUNICATION)] = _SYNC
    return place, code


def _bracketed(forest: _Forest, place: IntArray, code: npt.NDArray[np.uint8]) -> IntArray:
    place[place < 0] = forest.unattributed
    place[code == Code.OPTIMIZER] = forest.optimizer
    return place


def _folded(code: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The optimizer has a row of its own, so its phase is one of the others."""
    code[code == Code.OPTIMIZER] = Code.OTHER
    return code


def _measure_phase(
    structure: Structure,
    forest: _Forest,
    spans: _Spans,
    work_place: IntArray,
    of_phase: BoolArray,
    work_of_phase: BoolArray,
    phase: Code | None,
) -> _Figures:
    rows = spans.rows[of_phase[spans.rows] & structure.chosen[spans.rows]]
    busy, self_busy = _busy(structure, forest, work_place, work_of_phase)
    kernel_ns = kernels = None
    if busy is not None:
        mine = np.flatnonzero(work_of_phase & structure.work_chosen)
        length = structure.work.end_ns[mine] - structure.work.start_ns[mine]
        kernel_ns = forest.inclusive(work_place[mine], length)
        kernels = forest.inclusive(work_place[mine])
    return _Figures(
        calls=_calls(structure, forest, spans.place, rows, phase),
        cpu=forest.inclusive(spans.place[rows], spans.self_ns[rows]),
        self_cpu=forest.own(spans.place[rows], spans.self_ns[rows]),
        busy=busy,
        self_busy=self_busy,
        kernel_ns=kernel_ns,
        kernels=kernels,
        flops=None,
    )


def _calls(structure: Structure, forest: _Forest, place: IntArray, rows: IntArray, phase: Code | None) -> IntArray:
    """Module entries of a phase, outermost ones; for backward the autograd nodes of the subtree."""
    if phase is Code.BACKWARD:
        return forest.inclusive(place[rows[structure.autograd.is_node[rows]]])
    entries = place[rows[structure.modules.outermost[rows]]]
    return forest.own(entries[np.isin(entries, forest.outermost)])


def _busy(
    structure: Structure, forest: _Forest, work_place: IntArray, of_phase: BoolArray
) -> tuple[IntArray | None, IntArray | None]:
    """Union of GPU work over each row's subtree, and the same less the union over the rows below."""
    if not len(structure.work):
        return None, None
    mine = np.flatnonzero(of_phase & structure.work_chosen)
    start, end = structure.work.start_ns[mine], structure.work.end_ns[mine]
    work = SubtreeWork.of(forest.subtrees, work_place[mine], start, end)
    busy = work.union(forest.row, forest.outermost, len(forest.first))
    return busy, busy - work.union_of_inner(forest.row, forest.outermost, len(forest.first))


def _reading_order(structure: Structure, forest: _Forest) -> list[int]:
    """Rows depth first, siblings by first call, then label; the bracketed ones last."""
    modules = structure.modules
    first = np.full(len(forest.parent), np.iinfo(np.int64).max)
    calls = np.flatnonzero(modules.is_call)
    np.minimum.at(first, modules.place[calls], structure.trace.events.ts_ns[calls])
    children: dict[int, list[int]] = {}
    for place in sorted(range(len(modules)), key=lambda at: (int(first[at]), modules.label[at])):
        children.setdefault(int(modules.parent[place]), []).append(place)
    order: dict[int, None] = {}
    waiting = children.get(-1, [])[::-1]
    while waiting:
        place = waiting.pop()
        order.setdefault(int(forest.row[place]))
        waiting.extend(children.get(place, [])[::-1])
    return [*order, int(forest.row[forest.unattributed]), int(forest.row[forest.optimizer])]


def _path(structure: Structure, forest: _Forest, place: int) -> str:
    if place == forest.unattributed:
        return UNATTRIBUTED
    return OPTIMIZER if place == forest.optimizer else structure.modules.path(place)


def _parent_path(structure: Structure, forest: _Forest, place: int) -> str | None:
    parent = int(forest.parent[place])
    return structure.modules.path(parent) if parent >= 0 else None
