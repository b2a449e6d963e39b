"""What was launched below each node of a forest. In: parents, GPU work by node. Out: sums and unions per node or group.

Nodes are numbered depth first. A node and all below it are then one range of positions, and the work launched in its
subtree is one slice of the work sorted by position; nobody climbs from work to roots, however deep they lie.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracetools.intervals import grouped_union_length, lies_alone
from tracetools.table import BoolArray, IntArray

# Pairs of node and work laid out at once; bounds the memory, not the result.
_PAIRS_AT_ONCE = 1 << 21


@dataclass(frozen=True, slots=True)
class Subtrees:
    """low: position of each node, depth first. high: position after the last node of its subtree."""

    low: IntArray
    high: IntArray

    @classmethod
    def of_depth_first(cls, parent: IntArray) -> Subtrees:
        """Of nodes that are given depth first; parent: position of each node's parent, -1 for a root.

        >>> Subtrees.of_depth_first(np.array([-1, 0, 1, 0, -1])).high
        array([4, 3, 3, 4, 5])
        """
        position = np.arange(len(parent))
        last = position.copy()
        below = np.flatnonzero(parent >= 0)
        # Of several children the last assignment stays, which is the last child.
        last[parent[below]] = below
        while len(below := np.flatnonzero(last[last] != last)):
            last[below] = last[last[below]]
        return cls(position, last + 1)

    @classmethod
    def of_forest(cls, parent: IntArray) -> Subtrees:
        """Of nodes in any order that has parents before children; siblings keep their order.

        >>> Subtrees.of_forest(np.array([-1, 0, 0, 1])).low
        array([0, 1, 3, 2])
        """
        above = parent.tolist()
        size = [1] * len(above)
        for node in range(len(above) - 1, -1, -1):
            if above[node] >= 0:
                size[above[node]] += size[node]
        low, free, next_root = [0] * len(above), [0] * len(above), 0
        for node, holder in enumerate(above):
            if holder >= 0:
                low[node] = free[holder]
                free[holder] += size[node]
            else:
                low[node] = next_root
                next_root += size[node]
            free[node] = low[node] + 1
        at = np.array(low, np.int64)
        return cls(at, at + np.array(size, np.int64))

    def outermost(self, key: npt.NDArray[np.integer]) -> BoolArray:
        """Nodes that lie in no subtree of another node with the same key.

        >>> Subtrees.of_depth_first(np.array([-1, 0, 1, 0])).outermost(np.array([7, 8, 7, 8]))
        array([ True,  True, False,  True])
        """
        order = np.lexsort((self.low, key))
        first = np.ones(len(order), bool)
        first[1:] = key[order][1:] != key[order][:-1]
        # Each key gets a stretch of the axis for itself, so that the reach of one does not touch the next.
        origin = (np.cumsum(first) - 1) * (len(order) + 1)
        reach = np.maximum.accumulate(self.high[order] + origin)
        result = np.ones(len(order), bool)
        result[order[1:]] = (self.low[order] + origin)[1:] >= reach[:-1]
        return result

    def sums(self, node: IntArray, values: IntArray | int = 1) -> IntArray:
        """Sum of values, one given per entry of `node`, over each node's subtree."""
        own = np.zeros(len(self.low), np.int64)
        np.add.at(own, self.low[node], values)
        total = np.concatenate([[0], np.cumsum(own)])
        result: IntArray = total[self.high] - total[self.low]
        return result


@dataclass(frozen=True, slots=True)
class SubtreeWork:
    """GPU work by the node that launched it, sorted by position.

    node: per piece of work. position: that of the node. alone: work that overlaps no other, so that it adds its length
    to every union which holds it; only the rest need be laid out.
    """

    subtrees: Subtrees
    node: IntArray
    position: IntArray
    start_ns: IntArray
    end_ns: IntArray
    alone: BoolArray

    @classmethod
    def of(cls, subtrees: Subtrees, node: IntArray, start_ns: IntArray, end_ns: IntArray) -> SubtreeWork:
        """From one node, start and end per piece of work, in any order."""
        position = subtrees.low[node]
        order = np.argsort(position, kind="stable")
        alone = lies_alone(start_ns, end_ns)
        return cls(subtrees, node[order], position[order], start_ns[order], end_ns[order], alone[order])

    def total(self, group: IntArray, nodes: IntArray, groups: int) -> IntArray:
        """Sum of the lengths of all work below the `nodes` of each group, ns; as `union` otherwise."""
        return self._sum_below(np.ones(len(self.node), bool), group, nodes, groups)

    def union(self, group: IntArray, nodes: IntArray, groups: int) -> IntArray:
        """Length of the union of all work below the `nodes` of each group, ns; shape (groups,).

        group: per node of the forest, below `groups`. `nodes` of one group must not lie in each other.
        """
        return self._sum_below(self.alone, group, nodes, groups) + self._shared_below(group, nodes, groups, None)

    def union_of_inner(self, group: IntArray, nodes: IntArray, groups: int) -> IntArray:
        """As `union`, without the work that nodes of the group itself launched; all of them must lie below `nodes`."""
        own = group[self.node]
        total = self._sum_below(self.alone, group, nodes, groups)
        np.subtract.at(total, own[self.alone], (self.end_ns - self.start_ns)[self.alone])
        return total + self._shared_below(group, nodes, groups, own)

    def _sum_below(self, counted: BoolArray, group: IntArray, nodes: IntArray, groups: int) -> IntArray:
        position = self.position[counted]
        summed = np.concatenate([[0], np.cumsum((self.end_ns - self.start_ns)[counted])])
        low, high = self.subtrees.low[nodes], self.subtrees.high[nodes]
        total = np.zeros(groups, np.int64)
        np.add.at(total, group[nodes], summed[np.searchsorted(position, high)] - summed[np.searchsorted(position, low)])
        return total

    def _shared_below(self, group: IntArray, nodes: IntArray, groups: int, left_out: IntArray | None) -> IntArray:
        """Union of the work that overlaps other work; a piece does not count for the group left out for it."""
        nodes = nodes[np.argsort(group[nodes], kind="stable")]
        shared = np.flatnonzero(~self.alone)
        position = self.position[shared]
        first = np.searchsorted(position, self.subtrees.low[nodes])
        count = np.searchsorted(position, self.subtrees.high[nodes]) - first
        total = np.zeros(groups, np.int64)
        for part in _parts(group[nodes], count):
            pairs = count[part]
            offset = first[part] - (np.cumsum(pairs) - pairs)
            piece = shared[np.repeat(offset, pairs) + np.arange(int(pairs.sum()))]
            of_group = np.repeat(group[nodes[part]], pairs)
            if left_out is not None:
                of_group = np.where(left_out[piece] == of_group, -1, of_group)
            total += grouped_union_length(of_group, self.start_ns[piece], self.end_ns[piece], groups)
        return total


def _parts(group: IntArray, count: IntArray) -> list[slice]:
    """Slices of sorted nodes with about as many pairs as may be laid out at once; a group is never cut."""
    starts = np.flatnonzero(np.append(-1, group[:-1]) != group)
    part = (np.cumsum(count) - count)[starts] // _PAIRS_AT_ONCE
    borders = [*starts[np.append(-1, part[:-1]) != part].tolist(), len(group)]
    return [slice(*pair) for pair in itertools.pairwise(borders)]
