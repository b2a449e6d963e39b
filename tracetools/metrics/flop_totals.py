"""FLOPs of a rank and of each step, and how much of the device they used. In: `Structure`, `FlopCount`. Out: rows.

Ideal time is the sum over element types of FLOPs / peak: the time that a device at its peak would take. Its share of
the time that the step took is HFU, and MFU for the FLOPs of the model alone (A. Chowdhery et al., "PaLM", 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracetools.attribution.phases import Code
from tracetools.attribution.structure import Structure
from tracetools.flops.count import FlopCount
from tracetools.flops.peaks import peaks_of
from tracetools.flops.precision import PRECISIONS
from tracetools.results import Convention, GpuTime, Peak, RankFlops, StepFlops, StepTime, UncountedOp
from tracetools.table import BoolArray, IntArray

_NS = 1e9


@dataclass(frozen=True, slots=True)
class FlopRows:
    """Rows of one rank, and the peaks that they were measured by."""

    rank: RankFlops
    steps: tuple[StepFlops, ...]
    uncounted: tuple[UncountedOp, ...]
    peaks: tuple[Peak, ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """FLOPs per counted op by one convention. flops: what ran. model: of these, the model's own."""

    flops: IntArray
    model: IntArray


def by_convention(structure: Structure, count: FlopCount, convention: Convention) -> Counts:
    """What each op counts for."""
    phase = structure.phase[count.row]
    half = convention.causal == "half"
    flops = count.total - (count.masked if half else 0)
    again = np.where(half & (count.masked > 0), count.again // 2, count.again)
    model = flops if convention.scores_again else flops - again
    return Counts(flops, np.where(np.isin(phase, [Code.RECOMPUTE, Code.OPTIMIZER]), 0, model))


def measure(
    structure: Structure,
    count: FlopCount,
    rank: int | None,
    convention: Convention,
    times: tuple[Sequence[StepTime], Sequence[GpuTime]],
    device: str | None,
    given: Mapping[str, float],
) -> FlopRows:
    """Rows of the steps that were asked for.

    times: the rank's step and GPU rows. device: its name. given: peaks to take before those that are listed.
    """
    phase, chosen = structure.phase[count.row], structure.chosen[count.row]
    counts = by_convention(structure, count, convention)
    peaks = peaks_of(device, given)
    backward = chosen & (phase == Code.BACKWARD)

    def known(flops: IntArray, which: BoolArray) -> int | None:
        return int(flops[which].sum()) if count.known else None

    windows = _windows(*times)
    step = structure.step[count.row] if len(structure.steps) else np.zeros(len(count.row), np.int64)
    at_step = {number: at for at, number in enumerate(structure.steps.number.tolist())}
    steps = []
    for number, window in windows.items():
        mine = step == at_step.get(number, 0) if number is not None else np.ones(len(step), bool)
        ideal, model_ideal = (
            _ideal_ns(flops[mine], count.precision[mine], peaks) for flops in (counts.flops, counts.model)
        )
        steps.append(
            StepFlops(
                rank=rank,
                step=number,
                window_ns=window,
                model=known(counts.model, mine),
                executed=known(counts.flops, mine),
                model_ideal_ns=model_ideal if count.known else None,
                ideal_ns=ideal if count.known else None,
                mfu=_share(model_ideal, window) if count.known else None,
                hfu=_share(ideal, window) if count.known else None,
            )
        )
    accumulate = np.isin(phase, [Code.ACCUMULATE, Code.OTHER])
    total = known(counts.flops, chosen)
    row = RankFlops(
        rank=rank,
        forward=known(counts.flops, chosen & (phase == Code.FORWARD)),
        dgrad=known(counts.flops - count.weight, backward & count.split),
        wgrad=known(count.weight, backward & count.split),
        unsplit=known(counts.flops, backward & ~count.split),
        recompute=known(counts.flops, chosen & (phase == Code.RECOMPUTE)),
        optimizer=known(counts.flops, chosen & (phase == Code.OPTIMIZER)),
        other=known(counts.flops, chosen & accumulate),
        total=total,
        model=known(counts.model, chosen),
        executed=total,
        causal_masked=known(count.masked, chosen),
        compute_kernel_ns=None if count.coverage is None else count.coverage.compute_ns,
        known_kernel_ns=None if count.coverage is None else count.coverage.covered_ns,
        mfu=_mean([each.model_ideal_ns for each in steps], [each.window_ns for each in steps]),
        hfu=_mean([each.ideal_ns for each in steps], [each.window_ns for each in steps]),
    )
    used = [PRECISIONS[at] for at in np.unique(count.precision[(count.precision >= 0) & chosen]).tolist()]
    return FlopRows(row, tuple(steps), _uncounted(count, rank), tuple(peaks[each] for each in used if each in peaks))


def mean_utilization(steps: Sequence[StepFlops]) -> tuple[float | None, float | None]:
    """MFU and HFU over all ranks and steps; None where one of them has none."""
    windows = [each.window_ns for each in steps]
    model, executed = [each.model_ideal_ns for each in steps], [each.ideal_ns for each in steps]
    return _mean(model, windows), _mean(executed, windows)


def _windows(steps: Sequence[StepTime], gpu: Sequence[GpuTime]) -> dict[int | None, int]:
    """Time of each step: the windows of its GPUs, which tile the rank however far launches run ahead, else its wall."""
    numbers = [each.step for each in steps]
    on_gpu: dict[int | None, int] = {}
    for row in gpu:
        if row.step in numbers:
            on_gpu[row.step] = on_gpu.get(row.step, 0) + row.window_ns
    return {each.step: on_gpu.get(each.step, each.wall_ns) for each in steps}


def _ideal_ns(flops: IntArray, precision: IntArray, peaks: Mapping[str, Peak]) -> int | None:
    """None where FLOPs were made in a type that is not known or has no peak."""
    total = 0.0
    for at in np.unique(precision[flops > 0]).tolist():
        peak = peaks.get(PRECISIONS[at]) if at >= 0 else None
        if peak is None:
            return None
        total += float(flops[precision == at].sum()) / peak.flop_per_s * _NS
    return round(total)


def _share(ideal_ns: int | None, window_ns: int) -> float | None:
    return None if ideal_ns is None or not window_ns else ideal_ns / window_ns


def _mean(ideal_ns: Sequence[int | None], windows: Sequence[int]) -> float | None:
    known = [each for each in ideal_ns if each is not None]
    return sum(known) / sum(windows) if windows and sum(windows) and len(known) == len(ideal_ns) else None


def _uncounted(count: FlopCount, rank: int | None) -> tuple[UncountedOp, ...]:
    """Kernels that are not covered, by op; and without GPU work the ops whose shapes are missing."""
    if count.coverage is not None:
        return tuple(UncountedOp(rank, each.op, each.calls, each.kernel_ns) for each in count.coverage.uncounted)
    return tuple(UncountedOp(rank, name, calls, None) for name, calls in sorted(count.uncountable.items()))
