"""What recording costs on this machine, per op and per module. In: how a trace was recorded. Out: `RecordingCost`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn import Identity, Module

from collectors.module_ranges import ModuleRanges

_CALLS: Final = 500
_REPEATS: Final = 7


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """ns that recording added, each the least of several tries on the CPU, so a lower bound of what steps paid.

    op_ns: per dispatcher op. module_range_ns: per module call, for its range beyond the recording without ranges.
    idle_module_range_ns: the same between warm-up and recording, when no profiler runs.
    """

    op_ns: int
    module_range_ns: int
    idle_module_range_ns: int


def measure_cost(new_profiler: Callable[[], Any]) -> RecordingCost:
    """Time a small op and an empty module with and without recording; takes a fraction of a second.

    new_profiler: a recording as it was made, not yet started; what it records is dropped.
    """
    value = torch.zeros(1)
    module = Identity()

    def ops() -> None:
        for _ in range(_CALLS):
            value.neg_()

    def calls() -> None:
        for _ in range(_CALLS):
            module(value)

    with torch.no_grad():
        op_off, plain_off, ranged_off = _least(ops), _least(calls), _least(calls, ModuleRanges(_named(module)))
        profiler = new_profiler()
        profiler.prepare_trace()
        profiler.start_trace()
        try:
            op_on, plain_on, ranged_on = _least(ops), _least(calls), _least(calls, ModuleRanges(_named(module)))
        finally:
            profiler.stop_trace()
    return RecordingCost(
        op_ns=max(op_on - op_off, 0),
        module_range_ns=max(ranged_on - plain_on, 0),
        idle_module_range_ns=max(ranged_off - plain_off, 0),
    )


def _named(module: Module) -> dict[str, Module]:
    return {"calibration": module}


def _least(work: Callable[[], None], around: AbstractContextManager[Any] | None = None) -> int:
    """Ns per call of the quickest repeat."""
    took = []
    with around or nullcontext():
        for _ in range(_REPEATS):
            before = time.perf_counter_ns()
            work()
            took.append(time.perf_counter_ns() - before)
    return round(min(took) / _CALLS)
