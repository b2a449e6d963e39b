"""One file from bytes to rows, and many ranks' rows to one document. In: inputs and `Settings`. Out: `Analysis`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec

from tracetools import __version__, trace_file
from tracetools.attribution.structure import Structure, build_structure
from tracetools.errors import NothingReadable, UnreadableTrace, UsageError
from tracetools.findings import Finding, Severity, sort_key
from tracetools.flops.convention import CONVENTIONS
from tracetools.flops.count import count_flops
from tracetools.flops.formulas import read_formulas
from tracetools.ingest import TraceInput, read_trace
from tracetools.metrics import (
    annotation_time,
    autograd_time,
    flop_totals,
    flop_trust,
    gpu_time,
    launch_counts,
    module_time,
    op_time,
    step_time,
    trust,
)
from tracetools.metrics.passes import join_passes
from tracetools.results import SCHEMA_VERSION, Analysis, Convention, FlopsSection, Input, RankResult
from tracetools.settings import Settings
from tracetools.table import Trace
from tracetools.timeline.recording import recording_findings
from tracetools.timeline.stages import Place, find_place

_MOST_RANKS = 1_000_000


def analyze_file(
    source: TraceInput, settings: Settings, progress: Callable[[int], None] | None = None, processes: int = 1
) -> RankResult:
    """Read and measure one rank's file; an unreadable one gives a row that says so instead of an error.

    processes: how many may share the reading of a large file. A structure pass beside a timing pass is read after it.
    """
    for path in settings.flops:
        read_formulas(path)
    try:
        trace = read_trace(source, progress, processes)
    except UnreadableTrace as unreadable:
        return _unreadable(source, str(unreadable))
    result = analyze_trace(trace, source, settings)
    if source.structure is None:
        return result
    before = trace.bytes_read
    del trace
    further = None if progress is None else lambda done: progress(before + done)
    # All of its steps: those that were asked for are steps of the timing pass.
    structure = analyze_file(source.structure, replace(settings, steps=None), further, processes)
    return join_passes(result, structure, settings.steps)


def analyze_trace(trace: Trace, source: TraceInput, settings: Settings) -> RankResult:
    """Measure one trace: structure first, then each metric."""
    structure = build_structure(trace, settings.steps)
    place = find_place(trace.metadata, source.rank)
    rank = source.rank
    device = _device_name(structure)
    count = count_flops(structure)
    convention = CONVENTIONS[settings.convention]
    counts = flop_totals.by_convention(structure, count, convention)
    steps = () if trace.truncated else step_time.measure(structure, rank)
    gpu = gpu_time.measure(structure, rank)
    flops = flop_totals.measure(structure, count, rank, convention, (steps, gpu), device, settings.peaks)
    findings = [*trace.findings, *structure.work.findings, *trust.measure(structure)]
    findings += flop_trust.measure(structure, count, device, settings.peaks)
    findings += recording_findings(trace.metadata)
    if trace.truncated and len(structure.steps):
        findings.append(_steps_withheld(len(structure.steps)))
    return RankResult(
        input=_input_row(structure, source, place, device),
        modules=module_time.measure(structure, count, counts, rank, place.stage),
        ops=op_time.measure(structure, count, counts, rank),
        annotations=annotation_time.measure(structure, rank),
        autograd=autograd_time.measure(structure, rank),
        steps=steps,
        gpu=gpu,
        launches=launch_counts.measure(structure, rank),
        flops=(flops.rank,),
        step_flops=flops.steps,
        uncounted=flops.uncounted,
        peaks=flops.peaks,
        findings=tuple(msgspec.structs.replace(each, rank=rank, path=source.label) for each in findings),
    )


def reduce_results(
    results: Iterable[RankResult], settings: Settings, found: Sequence[Finding] = (), *, picked: bool = False
) -> Analysis:
    """One document out of all ranks' results, in the order of rank, then file.

    settings: those that the ranks were measured with. picked: the user asked for some ranks only, so that others are
    not missing.

    Raises NothingReadable where no file could be read.
    """
    ordered = sorted(results, key=lambda each: (each.input.rank is None, each.input.rank or 0, each.input.path))
    readable = [each for each in ordered if each.input.status != "unreadable"]
    if not readable:
        raise NothingReadable("\n".join(finding.message for each in ordered for finding in each.findings))
    findings = [*found, *(finding for each in ordered for finding in each.findings), *_uncommon_steps(readable)]
    findings += [] if picked else _missing_ranks([each.input for each in ordered])
    return Analysis(
        schema_version=SCHEMA_VERSION,
        tracetools_version=__version__,
        inputs=tuple(each.input for each in ordered),
        modules=tuple(row for each in ordered for row in each.modules),
        ops=tuple(row for each in ordered for row in each.ops),
        annotations=tuple(row for each in ordered for row in each.annotations),
        autograd=tuple(row for each in ordered for row in each.autograd),
        steps=tuple(row for each in ordered for row in each.steps),
        gpu=tuple(row for each in ordered for row in each.gpu),
        launches=tuple(row for each in ordered for row in each.launches),
        flops=_flops(ordered, CONVENTIONS[settings.convention]),
        findings=tuple(sorted(findings, key=sort_key)),
    )


def _flops(results: Sequence[RankResult], convention: Convention) -> FlopsSection:
    steps = tuple(row for each in results for row in each.step_flops)
    mfu, hfu = flop_totals.mean_utilization(steps)
    peaks = {(peak.device, peak.dtype): peak for each in results for peak in each.peaks}
    return FlopsSection(
        by_rank=tuple(row for each in results for row in each.flops),
        by_step=steps,
        uncounted=tuple(row for each in results for row in each.uncounted),
        convention=convention,
        mfu=mfu,
        hfu=hfu,
        peak=tuple(peaks[key] for key in sorted(peaks)),
    )


def check_steps(analysis: Analysis, settings: Settings) -> None:
    """Raise UsageError where a step that was asked for is in no trace."""
    recorded = {step for each in analysis.inputs for step in each.steps}
    missing = sorted(set(settings.steps or ()) - recorded)
    if missing:
        there = ", ".join(map(str, sorted(recorded))) or "none"
        raise UsageError(f"step {', '.join(map(str, missing))} is in no trace; steps recorded: {there}")


def _unreadable(source: TraceInput, message: str) -> RankResult:
    return RankResult(
        input=Input(
            path=source.label,
            rank=source.rank,
            host=source.host,
            stage=None,
            coordinates={},
            device=None,
            status="unreadable",
            events=0,
            steps=(),
            span_ns=None,
            rank_source=source.rank_source,
            bytes=0,
        ),
        findings=(
            Finding("unreadable", Severity.ERROR, message, rank=source.rank, path=source.label, affects=("inputs",)),
        ),
    )


def _input_row(structure: Structure, source: TraceInput, place: Place, device: str | None) -> Input:
    trace = structure.trace
    events = trace.events
    damaged = trace.truncated or any(each.severity is Severity.ERROR for each in trace.findings)
    span = int((events.ts_ns + events.dur_ns).max() - events.ts_ns.min()) if len(events) else None
    return Input(
        path=source.label,
        rank=source.rank,
        host=place.host,
        stage=place.stage,
        coordinates=place.coordinates,
        device=device,
        status="partial" if damaged else "read",
        events=len(events),
        steps=tuple(structure.steps.number.tolist()),
        span_ns=span,
        rank_source=source.rank_source,
        bytes=trace.bytes_read,
        world_size=_world_size(trace),
    )


def _world_size(trace: Trace) -> int | None:
    for key in ("distributedInfo", trace_file.METADATA_KEY):
        info = trace.metadata.get(key)
        size = info.get("world_size") if isinstance(info, dict) else None
        if isinstance(size, int) and 0 < size < _MOST_RANKS:
            return size
    return None


def _device_name(structure: Structure) -> str | None:
    """Name of the GPU that the work ran on, else of the first one listed."""
    listed = structure.trace.metadata.get("deviceProperties")
    names = {
        each.get("id"): each["name"]
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, dict) and isinstance(each.get("name"), str) and isinstance(each.get("id"), int)
    }
    used = structure.work.device.tolist()
    return names.get(used[0]) if used else next(iter(names.values()), None)


def _steps_withheld(count: int) -> Finding:
    message = (
        f"the file is cut, so the figures of its {count} steps are withheld: what is missing may belong to any of them"
    )
    return Finding("steps_withheld", Severity.WARNING, message, count=count, affects=("steps",))


def _uncommon_steps(results: Sequence[RankResult]) -> list[Finding]:
    """A warning where ranks recorded different steps."""
    with_steps = [each.input for each in results if each.input.steps]
    if len(with_steps) < 2:
        return []
    common = set.intersection(*(set(each.steps) for each in with_steps))
    ranks_of: dict[int, list[str]] = {}
    for each in with_steps:
        for step in set(each.steps) - common:
            ranks_of.setdefault(step, []).append("?" if each.rank is None else str(each.rank))
    if not ranks_of:
        return []
    listed = " and ".join(f"{step} (rank {', '.join(ranks)})" for step, ranks in sorted(ranks_of.items())[:8])
    message = f"steps {listed} not common to all ranks; compare ranks by step number only"
    return [Finding("steps_not_common", Severity.WARNING, message, count=len(ranks_of), affects=("steps",))]


def _missing_ranks(inputs: Sequence[Input]) -> list[Finding]:
    """A warning where several ranks of a job are here but not all; one rank alone was meant to be alone."""
    here = {each.rank for each in inputs if each.rank is not None}
    world = max((each.world_size or 0 for each in inputs), default=0)
    missing = sorted(set(range(world)) - here)
    if len(here) < 2 or not missing:
        return []
    listed = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    message = f"rank {listed} of {world} in no input; figures are those of the other {len(here)}"
    return [Finding("ranks_missing", Severity.WARNING, message, count=len(missing), affects=("inputs",))]
