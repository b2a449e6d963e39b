"""Which call launched which GPU work. In: `Trace`, `Tree`, `GpuWork`. Out: `LaunchLinks`.

Work and call share a correlation; names say nothing (a Triton kernel comes from a driver call, a graph launch starts
many kernels). Correlation 0 is no correlation: older ROCm tracers write it on every communication kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tracetools.table import ABSENT, CALLS, BoolArray, IntArray, Kind, Trace
from tracetools.timeline.gpu_work import GpuWork
from tracetools.timeline.tree import Tree, nearest_ancestor

_ALWAYS_STARTS_WORK = re.compile(
    r"(cuda|cu|hip)(Ext)?(Module)?(Launch(?!HostFunc)|GraphLaunch|Memcpy|Memset)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class LaunchLinks:
    """Links per piece of GPU work (same length and order as `GpuWork`), and the launch calls.

    launch: row of the call, -1 where none is recorded. owner: row on a CPU thread that the work belongs to: its
    launch call, else the op of the same External id, else -1. launch_rows: rows of all calls that launch GPU work.
    linked: for each of these, whether a record of its work exists.
    shared: correlations used by several calls of one kind.
    """

    launch: IntArray
    owner: IntArray
    launch_rows: IntArray
    linked: BoolArray
    shared: int


def link_launches(trace: Trace, tree: Tree, work: GpuWork) -> LaunchLinks:
    """Tie GPU work to the call with the same correlation, a runtime call before a driver call inside it."""
    events = trace.events
    calls = np.flatnonzero(np.isin(events.kind, [*CALLS]))
    correlation = events.argument("correlation")
    wanted = correlation[work.row]
    launch, shared = _match(correlation, calls, events.kind, events.ts_ns, wanted)
    launch_rows = _launch_calls(trace, tree, calls, np.unique(launch[launch >= 0]))
    owner = np.where(launch >= 0, launch, _by_external_id(trace, work))
    linked = np.isin(launch_rows, launch)
    return LaunchLinks(launch, owner, launch_rows, linked, shared)


def _match(
    correlation: IntArray, calls: IntArray, kind: np.ndarray, ts_ns: IntArray, wanted: IntArray
) -> tuple[IntArray, int]:
    """Row of the call for each wanted correlation, -1 for none."""
    calls = calls[(correlation[calls] != ABSENT) & (correlation[calls] != 0)]
    # Runtime before driver, then earliest: the first of equal correlations is the one that counts.
    calls = calls[np.lexsort((ts_ns[calls], kind[calls] != Kind.RUNTIME, correlation[calls]))]
    numbers, first = np.unique(correlation[calls], return_index=True)
    if not len(numbers):
        return np.full(len(wanted), -1, np.int64), 0
    at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    launch = np.where(numbers[at] == wanted, calls[first[at]], -1)
    same_kind = (np.diff(correlation[calls]) == 0) & (kind[calls][1:] == kind[calls][:-1])
    return launch, int(np.count_nonzero(same_kind & np.isin(correlation[calls][1:], wanted)))


def _launch_calls(trace: Trace, tree: Tree, calls: IntArray, linked: IntArray) -> IntArray:
    """Calls that started recorded work, and calls that always start some unless they lie inside another launch."""
    is_launch = np.zeros(len(trace.events), bool)
    is_launch[calls] = trace.named(_ALWAYS_STARTS_WORK.match)[calls]
    is_launch[linked] = True
    inside_launch = nearest_ancestor(tree.parent, is_launch) >= 0
    is_linked = np.zeros(len(trace.events), bool)
    is_linked[linked] = True
    holds_linked = np.zeros(len(trace.events), bool)
    holds_linked[tree.parent[linked[tree.parent[linked] >= 0]]] = True
    return np.flatnonzero(is_launch & (is_linked | (~inside_launch & ~holds_linked)))


def _by_external_id(trace: Trace, work: GpuWork) -> IntArray:
    """Row of the op whose External id the GPU record carries, -1 for none."""
    events = trace.events
    external = events.argument("external_id")
    ops = np.flatnonzero((events.kind == Kind.CPU_OP) & (external != ABSENT) & (external != 0))
    numbers, first = np.unique(external[ops], return_index=True)
    wanted = external[work.row]
    if not len(numbers):
        return np.full(len(work), -1, np.int64)
    at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    return np.where(numbers[at] == wanted, ops[first[at]], -1)
