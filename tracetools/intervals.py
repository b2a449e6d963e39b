"""Arithmetic on half-open intervals [start, end) in int64 ns. In: start and end arrays. Out: arrays or lengths.

Intervals of length zero are legal and add nothing to a union.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def merge(start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Disjoint, ascending intervals that cover the same ground; those that touch become one.

    >>> merge(np.array([5, 0, 3]), np.array([9, 2, 6]))
    (array([0, 3]), array([2, 9]))
    """
    solid = end > start
    order = np.argsort(start[solid], kind="stable")
    start, end = start[solid][order], end[solid][order]
    if not len(start):
        return start, end
    reach = np.maximum.accumulate(end)
    opens = np.ones(len(start), bool)
    opens[1:] = start[1:] > reach[:-1]
    closes = np.ones(len(start), bool)
    closes[:-1] = opens[1:]
    return start[opens], reach[closes]


def union_length(start: IntArray, end: IntArray) -> int:
    """Length of the union, ns.

    >>> union_length(np.array([0, 5]), np.array([6, 9]))
    9
    """
    first, last = merge(start, end)
    return int((last - first).sum())


def subtract(start: IntArray, end: IntArray, minus_start: IntArray, minus_end: IntArray) -> tuple[IntArray, IntArray]:
    """What of the first set lies outside the second, merged.

    >>> subtract(np.array([0]), np.array([10]), np.array([2, 6]), np.array([3, 8]))
    (array([0, 3, 8]), array([ 2,  6, 10]))
    """
    start, end = merge(start, end)
    minus_start, minus_end = merge(minus_start, minus_end)
    edges = np.concatenate([start, end, minus_start, minus_end])
    kept = np.repeat([1, -1, 0, 0], [len(start), len(end), len(minus_start), len(minus_end)])
    cut = np.repeat([0, 0, 1, -1], [len(start), len(end), len(minus_start), len(minus_end)])
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    inside = (np.cumsum(kept[order]) > 0) & (np.cumsum(cut[order]) == 0)
    return merge(edges[:-1][inside[:-1]], edges[1:][inside[:-1]])


def covered_before(first: IntArray, last: IntArray, at: IntArray) -> IntArray:
    """How much of disjoint, ascending intervals lies before each time, ns; shape of `at`.

    >>> covered_before(np.array([0, 8]), np.array([5, 20]), np.array([3, 6, 10]))
    array([3, 5, 7])
    """
    before = np.searchsorted(first, at, side="right")
    whole = np.concatenate([[0], np.cumsum(last - first)])
    beyond = np.maximum(np.append(last, 0)[before - 1] - at, 0)
    result: IntArray = whole[before] - np.where(before > 0, beyond, 0)
    return result


def lies_alone(start: IntArray, end: IntArray) -> npt.NDArray[np.bool_]:
    """Which intervals overlap no other one; such an interval adds its length to every union that it is in.

    >>> lies_alone(np.array([7, 0, 2]), np.array([9, 3, 7]))
    array([ True, False, False])
    """
    order = np.lexsort((end, start))
    first, last = start[order], end[order]
    result = np.ones(len(start), bool)
    result[order[1:]] = first[1:] >= np.maximum.accumulate(last)[:-1]
    result[order[:-1]] &= last[:-1] <= first[1:]
    return result


def grouped_union_length(group: npt.NDArray[np.integer], start: IntArray, end: IntArray, groups: int) -> IntArray:
    """Length of the union within each group, ns; rows of a negative group are left out.

    group: one number below `groups` per interval. Returns: int64 of shape (groups,).

    >>> grouped_union_length(np.array([1, 0, 1, -1]), np.array([0, 0, 2, 0]), np.array([4, 3, 9, 99]), 3)
    array([3, 9, 0])
    """
    total = np.zeros(groups, np.int64)
    used = (group >= 0) & (end > start)
    group, start, end = group[used].astype(np.int64), start[used], end[used]
    if not len(start):
        return total
    order = np.lexsort((start, group))
    present, dense = np.unique(group[order], return_inverse=True)
    origin = int(start.min())
    start, end = start[order] - origin, end[order] - origin
    np.add.at(total, present[dense], _uncovered(dense.astype(np.int64), start, end))
    return total


def _uncovered(group: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """Length that each interval adds to the union of those before it in its group; rows sorted by group and start."""
    span = int(end.max()) + 1
    per_pass = max(1, (2**62) // span)
    if int(group[-1]) >= per_pass:
        # Groups are laid end to end on one axis; an axis longer than int64 is cut into passes.
        cut = int(np.searchsorted(group, per_pass))
        rest = _uncovered(group[cut:] - per_pass, start[cut:], end[cut:])
        return np.concatenate([_uncovered(group[:cut], start[:cut], end[:cut]), rest])
    first, last = start + group * span, end + group * span
    reach = np.maximum.accumulate(last)
    covered = np.concatenate([first[:1], reach[:-1]])
    uncovered: IntArray = np.maximum(last - np.maximum(first, covered), 0)
    return uncovered
