"""Launch calls against the GPU work they started. In: `Structure`. Out: `Launches` rows."""

from __future__ import annotations

import numpy as np

from tracetools.attribution.structure import Structure
from tracetools.results import Launches, RunAhead
from tracetools.table import IntArray


def measure(structure: Structure, rank: int | None) -> tuple[Launches, ...]:
    """One row, or none where the trace has neither launch calls nor GPU work."""
    links = structure.launches
    calls = structure.chosen[links.launch_rows]
    work = np.flatnonzero(structure.work_chosen)
    if not calls.any() and not len(work):
        return ()
    linked = work[links.launch[work] >= 0]
    start = structure.work.start_ns[linked]
    call = structure.trace.events.ts_ns[links.launch[linked]]
    return (
        Launches(
            rank=rank,
            count=int(calls.sum()),
            without_kernel=int((calls & ~links.linked).sum()),
            kernels_without_launch=len(work) - len(linked),
            run_ahead_ns=_run_ahead(structure, linked),
            started_before_launch=int((start < call).sum()),
        ),
    )


def _run_ahead(structure: Structure, linked: IntArray) -> RunAhead | None:
    """Percentiles (nearest rank) of start minus end of the launch call, once per call: a graph launch starts many."""
    if not len(linked):
        return None
    launch = structure.launches.launch[linked]
    _, first = np.unique(launch, return_index=True)
    events = structure.trace.events
    call_end = events.ts_ns[launch[first]] + events.dur_ns[launch[first]]
    delay = np.sort(np.maximum(structure.work.start_ns[linked[first]] - call_end, 0))
    at = [int(np.ceil(share * len(delay))) - 1 for share in (0.5, 0.95)]
    return RunAhead(p50=int(delay[at[0]]), p95=int(delay[at[1]]), max=int(delay[-1]))
