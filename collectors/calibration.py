"""What recording costs on this machine, per op and per module. In: how a trace was recorded. Out: `RecordingCost`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from typing import Any, Final

import torch
from torch.nn import Identity

from collectors.module_ranges import ModuleRanges

_CALLS: Final = 200
_TURNS: Final = 25


@dataclass(frozen=True, slots=True)
class Spread:
    """A cost in ns over many turns: the middle one, and between which two half of them lie. Noise may be below zero."""

    median: int
    quartiles: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """Ns that recording added in small loops on the CPU, where caches are warm: rather less than what steps paid.

    op_ns: per dispatcher op. module_range_ns: per module call, for its range beyond the recording without ranges.
    idle_module_range_ns: the same between warm-up and recording, when no profiler runs.
    """

    op_ns: Spread
    module_range_ns: Spread
    idle_module_range_ns: Spread


def measure_cost(new_profiler: Callable[[], Any]) -> RecordingCost:
    """Time a small op and an empty module with and without recording; takes a fraction of a second.

    new_profiler: a recording as it was made, not yet started; what it records is dropped.
    """
    with torch.no_grad():
        off = _Turns()
        profiler = new_profiler()
        profiler.prepare_trace()
        profiler.start_trace()
        try:
            on = _Turns()
        finally:
            profiler.stop_trace()
    return RecordingCost(
        op_ns=_spread(on.op, off.op),
        module_range_ns=_spread(on.ranged, on.plain),
        idle_module_range_ns=_spread(off.ranged, off.plain),
    )


class _Turns:
    """Ns per op, per call of a module, and per call of it with a range; in turns, so that noise meets all of them."""

    def __init__(self) -> None:
        value, module = torch.zeros(1), Identity()
        self.op: list[float] = []
        self.plain: list[float] = []
        self.ranged: list[float] = []
        for _ in range(_TURNS + 1):
            self.op.append(_per_call(value.neg_))
            self.plain.append(_per_call(partial(module, value)))
            with ModuleRanges({"calibration": module}):
                self.ranged.append(_per_call(partial(module, value)))
        # The first turn fills caches.
        del self.op[0], self.plain[0], self.ranged[0]


def _per_call(work: Callable[[], Any]) -> float:
    before = time.perf_counter_ns()
    for _ in range(_CALLS):
        work()
    return (time.perf_counter_ns() - before) / _CALLS


def _spread(with_it: Sequence[float], without: Sequence[float]) -> Spread:
    """Of the differences, turn by turn.

    >>> _spread([5.0, 6.0, 7.0, 90.0, 8.0], [1.0, 1.0, 1.0, 1.0, 1.0])
    Spread(median=6, quartiles=(5, 7))
    """
    differences = [one - other for one, other in zip(with_it, without, strict=True)]
    lower, median, upper = quantiles(differences, method="inclusive")
    return Spread(round(median), (round(lower), round(upper)))
