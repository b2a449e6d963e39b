"""How far the figures of one trace hold. In: `Structure`. Out: findings, each by a rule of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from tracetools.attribution.structure import Structure
from tracetools.findings import Finding, Severity
from tracetools.table import ABSENT, Kind
from tracetools.timeline.autograd import LinkedBy


def measure(structure: Structure) -> tuple[Finding, ...]:
    """Findings of all rules; rank and file are filled in by the caller."""
    return tuple(finding for rule in _RULES for finding in rule(structure))


def _no_modules(structure: Structure) -> Iterator[Finding]:
    trace = structure.trace
    if structure.modules.is_call.any() or not len(trace.events):
        return
    if trace.metadata.get("with_stack") and not (trace.events.kind == Kind.PYTHON).any():
        why = (
            "the header says with_stack, but it holds no python_function event (second profile run, or missing option)"
        )
    else:
        why = "it holds neither module ranges nor `nn.Module:` frames"
    yield Finding(
        "no_modules",
        Severity.WARNING,
        f"no module information in this trace: {why}; all time is unattributed; record with with_stack=True",
        affects=("modules",),
    )


def _no_gpu_records(structure: Structure) -> Iterator[Finding]:
    if len(structure.work):
        return
    launches = len(structure.launches.launch_rows)
    if launches:
        message = (
            f"0 of {launches} launches have a GPU record, so GPU time is not measurable; the tracer delivered nothing "
            "(another profiler attached, or no warm-up step); record again with a warm-up step"
        )
        yield Finding(
            "no_gpu_records", Severity.ERROR, message, count=launches, affects=("gpu", "modules", "ops", "steps")
        )
    elif len(structure.trace.events):
        message = "the trace holds no GPU work and no launch: GPU figures are empty; times are those of the CPU"
        yield Finding("cpu_only", Severity.NOTE, message, affects=("gpu",))


def _lost_gpu_records(structure: Structure) -> Iterator[Finding]:
    links = structure.launches
    lost = int(np.count_nonzero(~links.linked))
    if not lost or not len(structure.work):
        return
    total = len(links.linked)
    events = structure.trace.events
    number = events.argument("correlation")[links.launch_rows]
    in_time = links.linked[np.lexsort((number, events.ts_ns[links.launch_rows]))]
    which = (
        f"the first {lost}" if not in_time[:lost].any() else f"the last {lost}" if not in_time[-lost:].any() else lost
    )
    message = (
        f"{total - lost} of {total} launches have a GPU record ({100 * (total - lost) / total:.1f} %); what {which} "
        "ran is missing, outside the recording or lost by the tracer, so GPU figures are lower bounds"
    )
    yield Finding("lost_gpu_records", Severity.WARNING, message, count=lost, affects=("gpu", "modules", "ops", "steps"))


def _work_without_launch(structure: Structure) -> Iterator[Finding]:
    lone = structure.launches.owner < 0
    if not lone.any():
        return
    length = int((structure.work.end_ns[lone] - structure.work.start_ns[lone]).sum())
    message = (
        f"{int(lone.sum())} pieces of GPU work ({length / 1e3:.3f} us) have no launch in the trace, most likely "
        "launched before it began; they count as busy and stay unattributed"
    )
    yield Finding("work_without_launch", Severity.WARNING, message, count=int(lone.sum()), affects=("modules", "ops"))


def _correlation_zero(structure: Structure) -> Iterator[Finding]:
    zero = int(np.count_nonzero(structure.trace.events.argument("correlation")[structure.work.row] == 0))
    if zero:
        message = (
            f"{zero} pieces of GPU work carry correlation 0, as older ROCm tracers write; they are tied to no launch"
        )
        yield Finding("correlation_zero", Severity.WARNING, message, count=zero, affects=("modules", "ops"))


def _correlation_shared(structure: Structure) -> Iterator[Finding]:
    shared = structure.launches.shared
    if shared:
        message = f"{shared} launch calls share a correlation with an earlier call; GPU work went to the earliest"
        yield Finding("correlation_shared", Severity.WARNING, message, count=shared, affects=("modules", "ops"))


def _starts_before_launch(structure: Structure) -> Iterator[Finding]:
    links = structure.launches
    linked = links.launch >= 0
    early = structure.trace.events.ts_ns[links.launch[linked]] - structure.work.start_ns[linked]
    count = int(np.count_nonzero(early > 0))
    if count:
        shift_us = early.max() / 1e3
        message = (
            f"{count} of {int(linked.sum())} pieces of GPU work start before their launch call, by at most "
            f"{shift_us:.3f} us: GPU clock and CPU clock disagree; a shift of +{shift_us:.3f} us mends it (not applied)"
        )
        yield Finding("starts_before_launch", Severity.WARNING, message, count=count, affects=("launches",))


def _graph_replays(structure: Structure) -> Iterator[Finding]:
    graph = structure.trace.events.argument("graph_id")[structure.work.row]
    count = int(np.count_nonzero((graph != ABSENT) & (graph > 0)))
    if count:
        message = (
            f"{count} kernels ran inside CUDA graphs; they belong to whoever launched the graph, not to the ops in it"
        )
        yield Finding("graph_replays", Severity.NOTE, message, count=count, affects=("modules", "ops"))


def _backward_links(structure: Structure) -> Iterator[Finding]:
    autograd = structure.autograd
    by_number = int(np.count_nonzero(autograd.linked_by == LinkedBy.SEQUENCE))
    if by_number:
        message = f"{by_number} backward nodes have no arrow and were tied to their forward op by Sequence number"
        yield Finding("linked_by_sequence", Severity.NOTE, message, count=by_number, affects=("modules.backward",))
    open_nodes = int(np.count_nonzero((autograd.maker < 0) & ~autograd.accumulates))
    if open_nodes:
        message = f"{open_nodes} backward nodes have no forward op in the trace; their time is unattributed"
        yield Finding("backward_open", Severity.WARNING, message, count=open_nodes, affects=("modules.backward",))
    if autograd.conflicts:
        message = (
            f"{autograd.conflicts} forward-backward arrows tie different Sequence numbers; the arrows were believed"
        )
        yield Finding(
            "arrow_conflict", Severity.WARNING, message, count=autograd.conflicts, affects=("modules.backward",)
        )


def _recompute_unplaced(structure: Structure) -> Iterator[Finding]:
    count = structure.modules.unplaced_recompute
    if count:
        message = f"{count} recomputed module calls were not found in the forward pass; they are roots of their own"
        yield Finding("recompute_unplaced", Severity.WARNING, message, count=count, affects=("modules.recompute",))


def _clipped(structure: Structure) -> Iterator[Finding]:
    tree = structure.tree
    if tree.clipped_events:
        message = (
            f"{tree.clipped_events} spans crossed their neighbours and were clipped for nesting, "
            f"{tree.clipped_ns / 1e3:.3f} us in all; none was dropped"
        )
        yield Finding("nesting_clipped", Severity.NOTE, message, count=tree.clipped_events, affects=("modules", "ops"))


def _coarse_clock(structure: Structure) -> Iterator[Finding]:
    if structure.trace.resolution_ns > 1:
        message = "times are whole us: figures near 1 us, such as launch delays and short kernels, carry that error"
        yield Finding("coarse_clock", Severity.NOTE, message, affects=("launches", "ops", "gpu"))


def _no_steps(structure: Structure) -> Iterator[Finding]:
    if not len(structure.steps) and len(structure.trace.events):
        message = (
            "no step is marked (`ProfilerStep#`); the whole recording counts as one; call prof.step() to mark steps"
        )
        yield Finding("no_steps", Severity.NOTE, message, affects=("steps",))


_RULES: Final[tuple[Callable[[Structure], Iterator[Finding]], ...]] = (
    _no_modules,
    _no_gpu_records,
    _lost_gpu_records,
    _work_without_launch,
    _correlation_zero,
    _correlation_shared,
    _starts_before_launch,
    _graph_replays,
    _backward_links,
    _recompute_unplaced,
    _clipped,
    _coarse_clock,
    _no_steps,
)
