"""How far the FLOPs of one trace hold. In: `Structure`, `FlopCount`. Out: findings, each by a rule of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from tracetools.attribution.structure import Structure
from tracetools.findings import Finding, Severity
from tracetools.flops.count import FlopCount
from tracetools.flops.formulas import Bound
from tracetools.flops.peaks import peaks_of
from tracetools.flops.precision import PRECISIONS
from tracetools.results import Peak
from tracetools.table import BoolArray
from tracetools.timeline.gpu_work import Work

_AFFECTS: Final = ("flops", "modules", "ops")
_MOST_NAMES: Final = 4
_TOLERANCE: Final = 1.05
_WELL_KNOWN: Final = 0.9


def measure(
    structure: Structure, count: FlopCount, device: str | None, given: Mapping[str, float]
) -> tuple[Finding, ...]:
    """Findings of all rules; rank and file are filled in by the caller."""
    peaks = peaks_of(device, given)
    return (
        *_never_ran(count),
        *_without_shapes(count),
        *_bounds(structure, count),
        *_unsplit(structure, count),
        *_not_covered(count),
        *(_without_peak(count, device, peaks) if count.coverage is not None else ()),
        *_above_peak(structure, count, peaks),
    )


def _never_ran(count: FlopCount) -> Iterator[Finding]:
    if count.never_ran:
        message = (
            f"{count.never_ran} ops were entered by a recompute that then stopped, as it had all it needed: they did "
            "nothing and count no FLOPs; their time is that of stopping"
        )
        yield Finding("flops_never_ran", Severity.NOTE, message, count=count.never_ran, affects=_AFFECTS)


def _without_shapes(count: FlopCount) -> Iterator[Finding]:
    if calls := sum(count.uncountable.values()):
        message = (
            f"{calls} calls of ops that multiply have no shapes that can be used ({_listed(count.uncountable)}): their "
            "FLOPs are missing; record with record_shapes=True"
        )
        yield Finding("flops_without_shapes", Severity.WARNING, message, count=calls, affects=_AFFECTS)


def _bounds(structure: Structure, count: FlopCount) -> Iterator[Finding]:
    for bound, word in ((Bound.LOWER, "lower"), (Bound.UPPER, "upper")):
        rows = count.row[count.bound == bound]
        if len(rows):
            names = _names(structure, count.bound == bound, count)
            message = (
                f"FLOPs of {len(rows)} calls are {word} bounds, as the trace does not hold all sizes ({_listed(names)})"
            )
            yield Finding(f"flops_{word}_bound", Severity.WARNING, message, count=len(rows), affects=_AFFECTS)


def _unsplit(structure: Structure, count: FlopCount) -> Iterator[Finding]:
    if unsplit := int(np.count_nonzero(~count.split)):
        message = (
            f"{unsplit} products in backward are the gradient of an input or of a weight, and nothing tells which "
            f"({_listed(_names(structure, ~count.split, count))}); they count as unsplit"
        )
        affects = ("flops.dgrad", "flops.wgrad", "modules.backward")
        yield Finding("flops_unsplit", Severity.NOTE, message, count=unsplit, affects=affects)


def _not_covered(count: FlopCount) -> Iterator[Finding]:
    coverage = count.coverage
    if coverage is None or not coverage.uncounted:
        return
    share = coverage.covered_ns / max(coverage.compute_ns, 1)
    largest = {each.op: each.calls for each in coverage.uncounted}
    message = (
        f"FLOPs are known for {100 * share:.1f}% of compute kernel time; the rest may multiply and is not counted: "
        f"{_listed(largest)}"
    )
    severity = Severity.NOTE if share >= _WELL_KNOWN else Severity.WARNING
    yield Finding("flops_uncounted", severity, message, count=sum(largest.values()), affects=_AFFECTS)


def _without_peak(count: FlopCount, device: str | None, peaks: Mapping[str, Peak]) -> Iterator[Finding]:
    used = np.unique(count.precision[count.total > 0]).tolist()
    missing = [PRECISIONS[at] for at in used if at >= 0 and PRECISIONS[at] not in peaks]
    if missing:
        types = ", ".join(missing)
        message = (
            f"no peak is known of {device or 'this device'} in {types}: no MFU; give one, as --peak {missing[0]}=989T"
        )
        yield Finding("peak_unknown", Severity.NOTE, message, affects=("flops.mfu", "flops.hfu"))
    if -1 in used:
        calls = int(np.count_nonzero((count.precision < 0) & (count.total > 0)))
        message = f"of {calls} products the trace does not tell whether they were made in TF32, FP32 or else: no MFU"
        yield Finding("precision_unknown", Severity.NOTE, message, count=calls, affects=("flops.mfu", "flops.hfu"))


def _above_peak(structure: Structure, count: FlopCount, peaks: Mapping[str, Peak]) -> Iterator[Finding]:
    """Ops whose FLOPs their device cannot have done in the time of their kernels.

    Calls of one name and size are taken together. What a causal mask leaves out does not count here, and convolutions
    by Winograd or FFT multiply less than they count.
    """
    work = structure.work
    if not peaks or not len(count.row):
        return
    mine = np.flatnonzero((count.launched_by >= 0) & (work.work == Work.COMPUTE))
    kernel_ns = np.zeros(len(count.row), np.int64)
    np.add.at(kernel_ns, count.launched_by[mine], (work.end_ns - work.start_ns)[mine])
    fewer = structure.trace.named(lambda name: "winograd" in name.lower() or "fft" in name.lower())[work.row[mine]]
    known = (kernel_ns > 0) & (count.precision >= 0) & (count.bound != Bound.UPPER)
    known[count.launched_by[mine[fewer]]] = False
    at = np.flatnonzero(known)
    name = structure.trace.events.name[count.row[at]].astype(np.int64)
    least = (count.total - count.masked)[at]
    keys, group = np.unique(np.stack([name, count.precision[at], least]), axis=1, return_inverse=True)
    flops, spent = np.zeros((2, keys.shape[1]))
    np.add.at(flops, group.ravel(), least)
    np.add.at(spent, group.ravel(), kernel_ns[at])
    peak = np.array([peaks[PRECISIONS[each]].flop_per_s if PRECISIONS[each] in peaks else np.inf for each in keys[1]])
    rate = flops / np.maximum(spent, 1) * 1e9
    above = np.flatnonzero(rate > _TOLERANCE * peak)
    if not len(above):
        return
    worst = above[np.argmax((rate / peak)[above])]
    message = (
        f"{structure.trace.strings[keys[0][worst]]} seems to run at {rate[worst] / 1e12:.0f} TFLOP/s, above the peak "
        f"of {peak[worst] / 1e12:.0f}: its FLOPs, its kernel time or its element type is not what the trace says"
    )
    yield Finding("above_peak", Severity.WARNING, message, count=len(above), affects=("flops", "ops"))


def _names(structure: Structure, which: BoolArray, count: FlopCount) -> dict[str, int]:
    names, calls = np.unique(structure.trace.events.name[count.row[which]], return_counts=True)
    found = {structure.trace.strings[name]: int(each) for name, each in zip(names.tolist(), calls, strict=True)}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _listed(calls: Mapping[str, int]) -> str:
    shown = [f"{name} ×{number}" for name, number in list(calls.items())[:_MOST_NAMES]]
    more = len(calls) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
