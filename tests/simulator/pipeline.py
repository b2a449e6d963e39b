"""The right answers about a pipeline: which cell ran when, and what filled the rest. In: logs. Out: rows.

All times are true ns since the start of the simulation, the same for every host.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tests.simulator.job import Job
from tests.simulator.log import COMPUTE, Done, Log

CAUSES = ("warm_up", "cool_down", "imbalance", "transfer", "launch_bound", "other")


def truth_of(job: Job, logs: dict[int, Log]) -> dict[str, Any]:
    """Grid and bubbles of all pipelines of a job."""
    cells = []
    for rank, log in logs.items():
        cells += grid(log, rank)
        log.forget()
    return {
        "stages": job.pipeline,
        "virtual_stages": job.pipeline * job.chunks,
        "grid": cells,
        "bubbles": bubbles(job, logs, cells) if job.pipeline > 1 else [],
    }


def grid(log: Log, rank: int) -> list[dict[str, Any]]:
    """When each pipeline action computed: first compute start to last compute end."""
    spans: dict[int, list[int]] = {}
    for each in _computing(log):
        span = spans.setdefault(each.chunk, [each.true_start_ns, each.true_end_ns])
        span[1] = max(span[1], each.true_end_ns)
    rows = []
    for number, (begin, end) in sorted(spans.items()):
        kind, stage, batch, step = log.chunks[number]
        cell = {"stage": stage, "rank": rank, "step": step, "micro_batch": batch, "kind": kind}
        rows.append({**cell, "start_ns": begin, "end_ns": end})
    return rows


def bubbles(job: Job, logs: dict[int, Log], cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per rank and step: span of the whole pipeline's step, busy with chunks, and the rest by cause.

    span: first start to last end of any chunk's compute in this pipeline and step. What a rank idles before its first
    backward is warm-up, what it idles after its last forward is cool-down: schedules have to. In between an instant is
    imbalance while a receive waits for the sender, transfer while data moves, launch_bound until the next work's launch
    call is over, else other.
    """
    spans: defaultdict[tuple[int, int, int], list[int]] = defaultdict(lambda: [2**62, 0])
    for cell in cells:
        _, data, tensor = job.place_of(cell["rank"])
        span = spans[data, tensor, cell["step"]]
        span[0], span[1] = min(span[0], cell["start_ns"]), max(span[1], cell["end_ns"])
    ideal = (job.pipeline - 1) / (job.chunks * job.micro_batches + job.pipeline - 1)
    rows = []
    for rank, log in logs.items():
        stage, data, tensor = job.place_of(rank)
        by_step = _by_step(log)
        log.forget()
        for step, works in sorted(by_step.items()):
            low, high = spans[data, tensor, step]
            causes = _causes(log, works, low, high)
            bubble = sum(causes.values())
            row = {"stage": stage, "rank": rank, "step": step, "span_ns": high - low, "busy_ns": high - low - bubble}
            rows.append({**row, "bubble_ns": bubble, "ideal_share": ideal, "by_cause": causes})
    return rows


def _computing(log: Log) -> list[Done]:
    """Compute of chunks by true start."""
    works = [each for each in log.works() if each.chunk >= 0 and each.kind == COMPUTE]
    return sorted(works, key=lambda each: each.true_start_ns)


def _by_step(log: Log) -> dict[int, list[Done]]:
    """Compute of chunks and receives of each step."""
    found: defaultdict[int, list[Done]] = defaultdict(list)
    for each in log.works():
        if each.receives or (each.chunk >= 0 and each.kind == COMPUTE):
            found[each.step].append(each)
    return found


def _causes(log: Log, of_step: list[Done], low: int, high: int) -> dict[str, int]:
    causes = dict.fromkeys(CAUSES, 0)
    works = sorted((each for each in of_step if not each.receives), key=lambda each: each.true_start_ns)
    receives = [each for each in of_step if each.receives]
    is_forward = [log.chunks[each.chunk][0] == "forward" for each in works]
    steady = next(each.true_start_ns for each, forward in zip(works, is_forward, strict=True) if not forward)
    falling = max(each.true_end_ns for each, forward in zip(works, is_forward, strict=True) if forward)
    reach = low
    for work in works:
        begin, end = reach, work.true_start_ns
        if end > begin and end <= steady:
            causes["warm_up"] += end - begin
        elif end > begin >= falling:
            causes["cool_down"] += end - begin
        elif end > begin:
            _split(causes, work, begin, end, receives)
        reach = max(reach, work.true_end_ns)
    causes["cool_down"] += high - reach
    return causes


def _split(causes: dict[str, int], work: Done, begin: int, end: int, receives: Iterable[Done]) -> None:
    """One gap between two works of chunks, cut where a receive begins, has its sender or ends, or the launch does."""
    near = [each for each in receives if each.true_start_ns < end and each.true_end_ns > begin]
    edges = {begin, end, min(max(work.true_called_ns, begin), end)}
    for each in near:
        edges |= {at for at in (each.true_start_ns, each.true_met_ns, each.true_end_ns) if begin < at < end}
    cuts = sorted(edges)
    for first, last in itertools.pairwise(cuts):
        if any(each.true_met_ns <= first < each.true_end_ns for each in near):
            cause = "transfer"
        elif any(each.true_start_ns <= first < each.true_met_ns for each in near):
            cause = "imbalance"
        else:
            cause = "launch_bound" if first < work.true_called_ns else "other"
        causes[cause] += last - first
