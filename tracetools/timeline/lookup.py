"""Look-up by lane and time, exact at any size. In: columns. Out: positions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracetools.table import IntArray


def last_at_or_before(
    lane: npt.NDArray[np.integer],
    ts_ns: IntArray,
    wanted_lane: npt.NDArray[np.integer],
    wanted_ns: IntArray,
) -> IntArray:
    """Position of the last entry on the wanted lane that is not later than the wanted time, -1 for none.

    Of entries with equal lane and time the one given last is found.

    >>> last_at_or_before(np.array([1, 1, 2]), np.array([10, 20, 5]), np.array([1, 1, 3]), np.array([15, 20, 9]))
    array([ 0,  1, -1])
    """
    entries = len(lane)
    both_lane, both_ns = np.concatenate([lane, wanted_lane]), np.concatenate([ts_ns, wanted_ns])
    is_wanted = np.arange(len(both_lane)) >= entries
    order = np.lexsort((is_wanted, both_ns, both_lane))
    latest = np.maximum.accumulate(np.where(order < entries, np.arange(len(order)), -1))
    found = np.where(latest >= 0, order[latest], -1)
    same_lane = (found >= 0) & (both_lane[found] == both_lane[order])
    result = np.full(len(both_lane), -1, np.int64)
    result[order] = np.where(same_lane, found, -1)
    return result[entries:]
