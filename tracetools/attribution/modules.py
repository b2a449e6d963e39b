"""Which module each CPU span belongs to. In: table, tree, backward links. Out: `Modules`, a place per row.

A module call is a range that our collectors wrote, with the fully qualified name; where a trace has none, it is
Kineto's Python frame, whose label counts the objects of a class:

    {"cat": "cpu_op", "name": "tracetools.module blocks.0.attn torch.nn.modules.linear.Linear", …}
    {"cat": "python_function", "name": "nn.Module: Linear_0", "args": {"Python module id": 0, …}, …}

Forward calls nest by time. A backward node belongs to the module of the op that made it. A module called inside a
backward node is a recompute: it is the same place of the tree as its forward call. What is recomputed outside any
module call belongs to the module that called the checkpoint: the one around the first module recomputed in that node. A
re-entrant checkpoint is a node itself and says it directly; else the node is just the first whose saved tensors were
asked for, and says nothing about the module.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tracetools import trace_file
from tracetools.attribution.phases import Code, PhaseArray
from tracetools.table import BoolArray, IntArray, Kind, Trace
from tracetools.timeline.autograd import AutogradLinks
from tracetools.timeline.tree import Tree, module_range_rows, nearest_ancestor, nearest_self_or_ancestor

UNPLACED = -1
_CHECKPOINT = "Checkpoint"


@dataclass(slots=True)
class _Places:
    """The module tree while it grows: one entry per (parent, label)."""

    parent: list[int] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    class_name: list[str] = field(default_factory=list)
    by_label: dict[tuple[int, str], int] = field(default_factory=dict)
    known: dict[str, list[int]] = field(default_factory=dict)

    def child(self, parent: int, label: str, class_name: str) -> int:
        """The place of a label under a parent, made on first sight."""
        if (found := self.by_label.get((parent, label))) is not None:
            return found
        place = len(self.parent)
        self.parent.append(parent)
        self.label.append(label)
        self.class_name.append(class_name)
        self.by_label[parent, label] = place
        self.known.setdefault(label, []).append(place)
        return place

    def again(self, near: int, label: str) -> int | None:
        """The place at which a label is called again inside the backward of place `near`.

        Looked for from `near` outwards: the place itself, then a child of it; else anywhere if there is just one.
        """
        at = near
        while at != UNPLACED:
            if self.label[at] == label:
                return at
            if (found := self.by_label.get((at, label))) is not None:
                return found
            at = self.parent[at]
        everywhere = self.known.get(label, [])
        return everywhere[0] if len(everywhere) == 1 else None


@dataclass(frozen=True, slots=True)
class Modules:
    """The module tree of one trace, and where each row belongs.

    parent: place of the enclosing module, -1 for a root; parents come before children. label: path segment or fully
    qualified name (qualified). class_name: class of the module. is_call: rows that are module calls.
    outermost: module calls that do not re-enter the module around them. place: per row, -1 where no module holds it.
    unplaced_recompute: recomputed module calls whose forward place was not found.
    """

    parent: IntArray
    label: tuple[str, ...]
    class_name: tuple[str, ...]
    qualified: bool
    is_call: BoolArray
    outermost: BoolArray
    place: IntArray
    unplaced_recompute: int

    def __len__(self) -> int:
        return len(self.label)

    def path(self, place: int) -> str:
        """Fully qualified name, or the labels from the root joined by "/"."""
        if self.qualified:
            return self.label[place]
        names = []
        while place != UNPLACED:
            names.append(self.label[place])
            place = int(self.parent[place])
        return "/".join(reversed(names))


def find_module_calls(trace: Trace) -> tuple[BoolArray, bool]:
    """Rows that are module calls, and whether they carry fully qualified names (then Python frames are not used)."""
    ranges = module_range_rows(trace)
    if ranges.any():
        return ranges, True
    frames = np.equal(trace.events.kind, Kind.PYTHON)
    return frames & trace.named(lambda name: name.startswith(trace_file.KINETO_MODULE)), False


def attribute_modules(
    trace: Trace, tree: Tree, autograd: AutogradLinks, phase: PhaseArray, is_call: BoolArray, qualified: bool
) -> Modules:
    """Place every module call and backward node in one module tree, and with them every row inside."""
    holder_mark = is_call | autograd.is_node
    around = nearest_ancestor(tree.parent, holder_mark)
    walk = _Walk(trace, tree, autograd, is_call, qualified, around, nearest_self_or_ancestor(tree.parent, holder_mark))
    holders = tree.order[holder_mark[tree.order]]
    for row in holders[np.argsort(tree.start_ns[holders], kind="stable")].tolist():
        walk.visit(row)
    holder = np.maximum(walk.holder, 0)
    place = np.where(walk.holder >= 0, walk.place[holder], UNPLACED)
    recomputed_by_node = np.equal(phase, Code.RECOMPUTE) & (walk.holder >= 0) & ~is_call[holder]
    checkpoint = trace.named(lambda name: _CHECKPOINT in name)
    place[recomputed_by_node & ~checkpoint[holder]] = UNPLACED
    region = np.full(len(place), UNPLACED, np.int64)
    region[list(walk.region)] = list(walk.region.values())
    in_region = recomputed_by_node & (region[holder] != UNPLACED)
    place[in_region] = region[holder[in_region]]
    return Modules(
        parent=np.array(walk.places.parent, np.int64),
        label=tuple(walk.places.label),
        class_name=tuple(walk.places.class_name),
        qualified=qualified,
        is_call=is_call,
        outermost=walk.outermost,
        place=place,
        unplaced_recompute=walk.unplaced_recompute,
    )


class _Walk:
    """One pass over module calls and backward nodes in the order of their start, so that makers come before nodes."""

    def __init__(
        self,
        trace: Trace,
        tree: Tree,
        autograd: AutogradLinks,
        is_call: BoolArray,
        qualified: bool,
        around: IntArray,
        holder: IntArray,
    ) -> None:
        self.names = trace.strings
        self.name = trace.events.name
        self.lane = trace.events.lane
        self.is_call = is_call
        self.qualified = qualified
        self.around = around
        self.holder = holder
        self.places = _Places()
        self.place = np.full(len(trace.events), UNPLACED, np.int64)
        self.outermost = np.zeros(len(trace.events), bool)
        self.unplaced_recompute = 0
        self.maker = dict(zip(autograd.node.tolist(), autograd.maker.tolist(), strict=True))
        self.accumulates = set(autograd.node[autograd.accumulates].tolist())
        self.last_node: dict[int, int] = {}
        # Backward node → module that called the checkpoint whose recompute runs in it.
        self.region: dict[int, int] = {}

    def visit(self, row: int) -> None:
        """Place one module call or backward node."""
        self.place[row] = self._place_of_call(row) if self.is_call[row] else self._place_of_node(row)

    def _place_of_call(self, row: int) -> int:
        label, class_name = self._label(self.names[self.name[row]])
        outer = int(self.around[row])
        near = int(self.place[outer]) if outer >= 0 else UNPLACED
        if outer >= 0 and not self.is_call[outer]:
            self.outermost[row] = True
            place = self._place_again(near, label, class_name)
            self.region.setdefault(outer, self.places.parent[place])
            return place
        if near != UNPLACED and self.places.label[near] == label:
            return near
        self.outermost[row] = True
        return self.places.child(near, label, class_name)

    def _place_again(self, near: int, label: str, class_name: str) -> int:
        found = self.places.again(near, label)
        if found is None:
            self.unplaced_recompute += 1
            return self.places.child(UNPLACED, label, class_name)
        return found

    def _label(self, name: str) -> tuple[str, str]:
        if self.qualified and (parsed := trace_file.parse_module_range(name)) is not None:
            return parsed
        label = name[len(trace_file.KINETO_MODULE) :]
        return label, label.rpartition("_")[0] or label

    def _place_of_node(self, row: int) -> int:
        """Place of the maker; AccumulateGrad has none and follows the node before it on its thread."""
        lane = int(self.lane[row])
        if row in self.accumulates:
            return int(self.place[self.last_node[lane]]) if lane in self.last_node else UNPLACED
        self.last_node[lane] = row
        maker = self.maker[row]
        holder = int(self.holder[maker]) if maker >= 0 else -1
        if holder < 0:
            return UNPLACED
        if self.is_call[holder] or _CHECKPOINT in self.names[self.name[holder]]:
            return int(self.place[holder])
        return self.region.get(holder, UNPLACED)
