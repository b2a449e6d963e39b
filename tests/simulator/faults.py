"""Damage that real recordings have. In: traces as written. Out: the same files, spoilt on purpose.

What a fault does to the truth is said beside it: figures of the whole run are no longer those of the file.
"""

from __future__ import annotations

import enum
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.simulator.kineto import FIRST_NS


class Fault(enum.StrEnum):
    """What can be wrong with a rank's trace."""

    LOST_KERNELS = "lost_kernels"
    UNTIMED_RECORDS = "untimed_records"
    CORRELATION_ZERO = "correlation_zero"
    MISSING_RANK = "missing_rank"
    CUT_RANK = "cut_rank"
    OTHER_STEPS = "other_steps"
    INFEASIBLE_CLOCK = "infeasible_clock"
    BROKEN_ESCAPE = "broken_escape"


def spoil(path: Path, fault: Fault) -> int:
    """Apply a fault to one trace; returns how many records it hit."""
    if fault is Fault.MISSING_RANK:
        path.unlink()
        return 1
    text = gzip.decompress(path.read_bytes())
    if fault is Fault.CUT_RANK:
        path.write_bytes(gzip.compress(text[: len(text) * 2 // 3], 1, mtime=0))
        return 1
    if fault is Fault.BROKEN_ESCAPE:
        hit = text.count(b'"name": "aten::add"')
        spoilt = text.replace(b'"name": "aten::add"', b'"name": "aten::add\\q"')
        path.write_bytes(gzip.compress(spoilt, 1, mtime=0))
        return hit
    document = json.loads(text)
    hit = _SPOIL[fault](document["traceEvents"])
    path.write_bytes(gzip.compress(json.dumps(document).encode(), 1, mtime=0))
    return hit


def _kernels(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((event for event in events if event.get("cat") == "kernel"), key=lambda event: float(event["ts"]))


def _lose_first_kernels(events: list[dict[str, Any]]) -> int:
    """The profiler's buffer came too late: the first tenth of the kernels is missing, their launches are there."""
    lost = _kernels(events)[: len(_kernels(events)) // 10]
    gone = {id(event) for event in lost}
    events[:] = [event for event in events if id(event) not in gone]
    return len(lost)


def _forget_times(events: list[dict[str, Any]]) -> int:
    """Records whose time was never filled in: start and length are 0."""
    hit = _kernels(events)[::25]
    for event in hit:
        event["ts"] = FIRST_NS / 1000
        event["dur"] = 0.0
    return len(hit)


def _forget_correlations(events: list[dict[str, Any]]) -> int:
    """Communication kernels carry correlation 0, as older ROCm tracers write it."""
    hit = [event for event in _kernels(events) if "Collective name" in event["args"]]
    for event in hit:
        event["args"]["correlation"] = 0
    return len(hit)


def _renumber_steps(events: list[dict[str, Any]]) -> int:
    """This rank counts its steps from elsewhere."""
    hit = [event for event in events if event["name"].startswith("ProfilerStep#")]
    for event in hit:
        event["name"] = f"ProfilerStep#{int(event['name'].partition('#')[2]) + 100}"
    return len(hit)


def _jump(events: list[dict[str, Any]]) -> int:
    """The clock was set in the middle: no offset, no drift fits all of it."""
    times = [float(event["ts"]) for event in events if "ts" in event]
    middle = (min(times) + max(times)) / 2
    hit = [event for event in events if "ts" in event and float(event["ts"]) > middle]
    for event in hit:
        event["ts"] = float(event["ts"]) + 50_000
    return len(hit)


_SPOIL: Final[dict[Fault, Callable[[list[dict[str, Any]]], int]]] = {
    Fault.LOST_KERNELS: _lose_first_kernels,
    Fault.UNTIMED_RECORDS: _forget_times,
    Fault.CORRELATION_ZERO: _forget_correlations,
    Fault.OTHER_STEPS: _renumber_steps,
    Fault.INFEASIBLE_CLOCK: _jump,
}
