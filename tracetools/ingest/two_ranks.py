"""One file, two processes: merged by another tool. In: the events of a trace. Out: whether they are one rank's."""

from __future__ import annotations

import numpy as np

from tracetools.table import CALLS, Events, IntArray, Lane


def processes_with_same_correlations(events: Events, lanes: tuple[Lane, ...]) -> tuple[int | str, int | str] | None:
    """Two processes whose launches carry the same correlations, which one profiler never hands out twice; or None."""
    if "correlation" not in events.arguments:
        return None
    sparse = events.arguments["correlation"]
    is_call = np.isin(events.kind[sparse.rows], CALLS) & (sparse.values > 0)
    pids = {lane.pid for lane in lanes}
    number_of = {pid: number for number, pid in enumerate(sorted(pids, key=str))}
    process_of_lane = np.array([number_of[lane.pid] for lane in lanes], np.int64)
    process = process_of_lane[events.lane[sparse.rows[is_call]]]
    if not len(process) or (process == process[0]).all():
        return None
    return _first_clash(process, sparse.values[is_call], {number: pid for pid, number in number_of.items()})


def _first_clash(
    process: IntArray, correlation: IntArray, pid_of: dict[int, int | str]
) -> tuple[int | str, int | str] | None:
    """Most of the smaller process's correlations have to repeat, so that a stray one is no proof."""
    groups = [(number, np.unique(correlation[process == number])) for number in np.unique(process).tolist()]
    groups = sorted(groups, key=lambda group: -len(group[1]))[:16]
    for at, (one, seen) in enumerate(groups):
        for other, values in groups[at + 1 :]:
            if 2 * len(np.intersect1d(seen, values, assume_unique=True)) > len(values):
                return pid_of[one], pid_of[other]
    return None
