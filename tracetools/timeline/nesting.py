"""The parent of each span of one lane, and what must be clipped. In: sorted spans. Out: `Nesting`.

Spans come sorted by start, outer before inner. Where they nest, the number of open spans is the depth, and the parent
is the last span before with one depth less: sorted arrays answer both at once. Only stretches in which spans cross are
walked span by span.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracetools.table import IntArray

_NOTHING_OPEN = -1


@dataclass(frozen=True, slots=True)
class Nesting:
    """start_ns, end_ns: after clipping. parent: position of the enclosing span, -1 for none."""

    start_ns: IntArray
    end_ns: IntArray
    parent: IntArray


def nest(start_ns: IntArray, end_ns: IntArray) -> Nesting:
    """Nest the spans of one lane, clipping where they cross.

    A span that ends where another starts is outside it. Where a span sticks out of the innermost open one, the smaller
    part gives way: its end is cut if no more sticks out than lies inside; else the open span is a left neighbour, the
    start is cut to its end, and the next open span is tried. A child never begins before its parent's clipped start.

    >>> nest(np.array([0, 2, 5]), np.array([10, 6, 30])).parent
    array([-1,  0, -1])
    """
    depth = _open_spans(start_ns, end_ns)
    parent = _last_with_depth(depth)
    sticks_out = np.flatnonzero((parent >= 0) & (end_ns > end_ns[parent]))
    if not len(sticks_out):
        return Nesting(start_ns, end_ns, parent)
    start_ns, end_ns, parent = start_ns.copy(), end_ns.copy(), parent.copy()
    for holder, first, last in _stretches(start_ns, end_ns, parent, depth, sticks_out):
        _walk(start_ns, end_ns, parent, holder, first, last)
    return Nesting(start_ns, end_ns, parent)


def _open_spans(start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """How many spans before each one are still open at its start."""
    place = np.arange(len(start_ns))
    closed = np.searchsorted(np.sort(end_ns), start_ns, side="right")
    # Spans of length zero at this very start that come later in the order are closed too, but not before it.
    empty_so_far = np.concatenate([[0], np.cumsum(end_ns == start_ns)])
    last_of_start = np.searchsorted(start_ns, start_ns, side="right")
    open_spans: IntArray = place - (closed - (empty_so_far[last_of_start] - empty_so_far[place]))
    return open_spans


def _last_with_depth(depth: IntArray) -> IntArray:
    """For each position the last one before it that is one less deep, -1 at depth 0."""
    count = len(depth)
    if not count:
        return depth
    # Radix sort needs 16 bits; deeper stacks do not occur outside hostile files.
    small = depth.astype(np.uint16) if int(depth.max()) < 2**16 else depth
    order = np.argsort(small, kind="stable")
    keys = depth[order] * count + order
    at = np.searchsorted(keys, (depth[order] - 1) * count + order) - 1
    parent = np.full(count, -1, np.int64)
    parent[order] = np.where(depth[order] > 0, keys[np.maximum(at, 0)] % count, -1)
    return parent


def _stretches(
    start_ns: IntArray, end_ns: IntArray, parent: IntArray, depth: IntArray, sticks_out: IntArray
) -> list[tuple[int, int, int]]:
    """Stretches to walk, as (enclosing span or -1, first position, position after the last); none inside another."""
    roots = np.flatnonzero(depth == 0)
    found: list[tuple[int, int, int]] = []
    for position in sticks_out.tolist():
        if found and position < found[-1][2] and end_ns[position] <= _end_of(found[-1][0], end_ns):
            continue
        holder = int(parent[position])
        while holder >= 0 and end_ns[holder] < end_ns[position]:
            holder = int(parent[holder])
        if holder >= 0:
            stretch = holder, holder + 1, int(np.searchsorted(start_ns, end_ns[holder], side="left"))
        else:
            at = int(np.searchsorted(roots, position))
            stretch = _NOTHING_OPEN, int(roots[at - 1]), int(roots[at]) if at < len(roots) else len(depth)
        while found and found[-1][1] >= stretch[1]:
            found.pop()
        found.append(stretch)
    return found


def _end_of(holder: int, end_ns: IntArray) -> int:
    return int(end_ns[holder]) if holder >= 0 else int(np.iinfo(np.int64).max)


def _walk(start_ns: IntArray, end_ns: IntArray, parent: IntArray, holder: int, first: int, last: int) -> None:
    """Nest one stretch span by span, with a stack of open spans; writes into the arrays."""
    starts, ends = start_ns[first:last].tolist(), end_ns[first:last].tolist()
    parents = [holder] * len(starts)
    stack: list[int] = []
    for at in range(len(starts)):
        begin, finish = starts[at], ends[at]
        while stack and ends[stack[-1]] <= begin:
            stack.pop()
        if stack:
            starts[at], ends[at] = _fit(stack, starts, ends, begin, finish)
        if stack:
            parents[at] = first + stack[-1]
        stack.append(at)
    start_ns[first:last], end_ns[first:last], parent[first:last] = starts, ends, parents


def _fit(stack: list[int], starts: list[int], ends: list[int], begin: int, finish: int) -> tuple[int, int]:
    """Clip one span so that it lies inside the innermost open span that it belongs to; closes left neighbours."""
    while stack:
        top_end = ends[stack[-1]]
        if finish <= top_end:
            break
        if top_end - begin >= finish - top_end:
            finish = top_end
            break
        begin = max(begin, top_end)
        stack.pop()
    if stack:
        begin = max(begin, starts[stack[-1]])
    return begin, max(begin, finish)
