"""Time of each module, forward, backward and recompute. In: `Structure`. Out: `ModuleTime` rows.

Each instant of a CPU thread belongs to one module and one phase, those of its innermost span; each piece of GPU work to
those of the span that launched it. CPU time of a module is the sum over its subtree, so parents hold their children
exactly; GPU busy time is the union over the subtree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracetools.attribution.phases import Code
from tracetools.attribution.structure import Structure
from tracetools.intervals import grouped_union_length
from tracetools.results import OPTIMIZER, UNATTRIBUTED, ModuleTime, PhaseTime
from tracetools.table import BoolArray, IntArray
from tracetools.timeline.gpu_work import Work

_PHASES = (Code.FORWARD, Code.BACKWARD, Code.RECOMPUTE, Code.OTHER)
_SYNC = len(Code)


@dataclass(frozen=True, slots=True)
class _Forest:
    """The module tree and two bracketed places behind it. ancestor[d, p]: the place above p at depth d, or -1."""

    parent: IntArray
    depth: IntArray
    ancestor: IntArray
    unattributed: int
    optimizer: int

    def __len__(self) -> int:
        return len(self.parent)

    def with_subtree(self, own: IntArray) -> IntArray:
        """Sum of a figure over each place and all below it; children come after their parents."""
        total = own.copy()
        for place in range(len(self) - 1, -1, -1):
            if self.parent[place] >= 0:
                total[self.parent[place]] += total[place]
        return total


@dataclass(frozen=True, slots=True)
class _Figures:
    """Figures of one phase, one value per place. GPU figures are None without GPU records."""

    calls: IntArray
    cpu: IntArray
    self_cpu: IntArray
    busy: IntArray | None
    self_busy: IntArray | None
    kernel_ns: IntArray | None
    kernels: IntArray | None

    def at(self, place: int) -> PhaseTime:
        """The row part for one place."""
        return PhaseTime(
            calls=int(self.calls[place]),
            cpu_ns=int(self.cpu[place]),
            self_cpu_ns=int(self.self_cpu[place]),
            gpu_busy_ns=_value(self.busy, place),
            self_gpu_busy_ns=_value(self.self_busy, place),
            kernel_ns=_value(self.kernel_ns, place),
            kernels=_value(self.kernels, place),
        )


def measure(structure: Structure, rank: int | None, stage: int | None) -> tuple[ModuleTime, ...]:
    """One row per place of the module tree in order of first call, then `(unattributed)` and `(optimizer)`."""
    forest = _build_forest(structure)
    place, code = _place_and_code(structure, forest)
    work_place, work_code = _work_place_and_code(structure, forest)
    by_phase = {
        phase: _measure_phase(structure, forest, place, work_place, code == phase, work_code == phase, phase)
        for phase in _PHASES
    }
    everything = np.ones(len(code), bool), np.ones(len(work_code), bool)
    total = _measure_phase(structure, forest, place, work_place, *everything, None)
    accumulate = _measure_phase(
        structure, forest, place, work_place, code == Code.ACCUMULATE, work_code == Code.ACCUMULATE, None
    )
    sync = _busy(structure, forest, work_place, work_code == _SYNC)[0]
    source = "fqn" if structure.modules.qualified else "python_frames"
    rows = []
    for at in _reading_order(structure, forest):
        rows.append(
            ModuleTime(
                rank=rank,
                stage=stage,
                path=_path(structure, forest, at),
                parent=_parent_path(structure, forest, at),
                class_=structure.modules.class_name[at] if at < len(structure.modules) else None,
                source=source if at < len(structure.modules) else None,
                calls=int(by_phase[Code.FORWARD].calls[at]),
                depth=int(forest.depth[at]),
                forward=by_phase[Code.FORWARD].at(at),
                backward=by_phase[Code.BACKWARD].at(at),
                recompute=by_phase[Code.RECOMPUTE].at(at),
                other=by_phase[Code.OTHER].at(at),
                total=total.at(at),
                grad_accumulation_ns=_value(accumulate.busy, at),
                grad_accumulation_cpu_ns=int(accumulate.cpu[at]),
                grad_sync_ns=_value(sync, at),
            )
        )
    return tuple(rows)


def _value(values: IntArray | None, place: int) -> int | None:
    return None if values is None else int(values[place])


def _build_forest(structure: Structure) -> _Forest:
    places = len(structure.modules)
    parent = np.concatenate([structure.modules.parent, [-1, -1]]).astype(np.int64)
    depth = np.zeros(places + 2, np.int64)
    for place in range(places):
        depth[place] = depth[parent[place]] + 1 if parent[place] >= 0 else 0
    ancestor = np.full((int(depth.max()) + 1, places + 2), -1, np.int64)
    for place in range(places + 2):
        if parent[place] >= 0:
            ancestor[:, place] = ancestor[:, parent[place]]
        ancestor[depth[place], place] = place
    return _Forest(parent, depth, ancestor, unattributed=places, optimizer=places + 1)


def _place_and_code(structure: Structure, forest: _Forest) -> tuple[IntArray, npt.NDArray[np.uint8]]:
    """Place and phase of each row; what no module holds goes to the bracketed places."""
    place, code = structure.modules.place.copy(), structure.phase.copy()
    return _bracketed(forest, place, code), _folded(code)


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
    place: IntArray,
    work_place: IntArray,
    of_phase: BoolArray,
    work_of_phase: BoolArray,
    phase: Code | None,
) -> _Figures:
    rows = structure.tree.order
    rows = rows[of_phase[rows] & structure.chosen[rows]]
    self_cpu = _sum_by_place(forest, place[rows], structure.tree.self_ns[rows])
    busy, self_busy = _busy(structure, forest, work_place, work_of_phase)
    kernel_ns = kernels = None
    if busy is not None:
        mine = np.flatnonzero(work_of_phase & structure.work_chosen)
        length = structure.work.end_ns[mine] - structure.work.start_ns[mine]
        kernel_ns = forest.with_subtree(_sum_by_place(forest, work_place[mine], length))
        kernels = forest.with_subtree(_sum_by_place(forest, work_place[mine], np.ones(len(mine), np.int64)))
    return _Figures(
        calls=_calls(structure, forest, place, rows, phase),
        cpu=forest.with_subtree(self_cpu),
        self_cpu=self_cpu,
        busy=busy,
        self_busy=self_busy,
        kernel_ns=kernel_ns,
        kernels=kernels,
    )


def _sum_by_place(forest: _Forest, place: IntArray, values: IntArray) -> IntArray:
    total = np.zeros(len(forest), np.int64)
    np.add.at(total, place, values)
    return total


def _calls(structure: Structure, forest: _Forest, place: IntArray, rows: IntArray, phase: Code | None) -> IntArray:
    """Module entries of a phase; for backward the autograd nodes of the subtree."""
    if phase is Code.BACKWARD:
        nodes = rows[structure.autograd.is_node[rows]]
        return forest.with_subtree(_sum_by_place(forest, place[nodes], np.ones(len(nodes), np.int64)))
    entries = rows[structure.modules.outermost[rows]]
    return _sum_by_place(forest, place[entries], np.ones(len(entries), np.int64))


def _busy(
    structure: Structure, forest: _Forest, work_place: IntArray, of_phase: BoolArray
) -> tuple[IntArray | None, IntArray | None]:
    """Union of GPU work over each subtree, and the same less the union over the places below."""
    work = structure.work
    if not len(work):
        return None, None
    mine = np.flatnonzero(of_phase & structure.work_chosen)
    place, start, end = work_place[mine], work.start_ns[mine], work.end_ns[mine]
    busy, below = np.zeros(len(forest), np.int64), np.zeros(len(forest), np.int64)
    for depth, above in enumerate(forest.ancestor):
        group = above[place]
        here = forest.depth == depth
        busy[here] = grouped_union_length(group, start, end, len(forest))[here]
        deeper = forest.depth[place] > depth
        below[here] = grouped_union_length(group[deeper], start[deeper], end[deeper], len(forest))[here]
    return busy, busy - below


def _reading_order(structure: Structure, forest: _Forest) -> list[int]:
    """Places depth first, siblings by first call, then label; the bracketed ones last."""
    modules = structure.modules
    first = np.full(len(forest), np.iinfo(np.int64).max)
    calls = np.flatnonzero(modules.is_call)
    np.minimum.at(first, modules.place[calls], structure.trace.events.ts_ns[calls])
    children: dict[int, list[int]] = {}
    for place in sorted(range(len(modules)), key=lambda at: (int(first[at]), modules.label[at])):
        children.setdefault(int(modules.parent[place]), []).append(place)
    order: list[int] = []
    waiting = children.get(-1, [])[::-1]
    while waiting:
        place = waiting.pop()
        order.append(place)
        waiting.extend(children.get(place, [])[::-1])
    return [*order, forest.unattributed, forest.optimizer]


def _path(structure: Structure, forest: _Forest, place: int) -> str:
    if place == forest.unattributed:
        return UNATTRIBUTED
    return OPTIMIZER if place == forest.optimizer else structure.modules.path(place)


def _parent_path(structure: Structure, forest: _Forest, place: int) -> str | None:
    parent = int(forest.parent[place])
    return structure.modules.path(parent) if parent >= 0 else None
