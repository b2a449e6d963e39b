"""The answers first, in words. In: an analysis. Out: what was read, what costs most in backward, where time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracetools.report import focus
from tracetools.report.figures import (
    decimals_for,
    flops,
    milliseconds,
    percent,
    plural,
    ranges,
    rank_name,
    share,
    with_unit,
)
from tracetools.report.layout import wrap
from tracetools.report.line import Line, Style, plain
from tracetools.report.names import cut_middle, cut_path, printable
from tracetools.report.view import Time, View
from tracetools.results import OPTIMIZER, Analysis, ModuleTime, RankFlops

_PHASES: Final = ("forward", "backward", "recompute")
_CLOCK: Final = {Time.GPU: "GPU busy time", Time.CPU: "CPU time"}


def render(analysis: Analysis, view: View) -> list[Line]:
    """What was read, then what the reader came for."""
    time = focus.time_of(analysis.modules, view.time)
    rank = focus.busiest_rank(analysis, time)
    modules = focus.modules_of(analysis, rank)
    answers = [
        *_costliest(modules, rank, time, view.width),
        *_shares(analysis, modules, rank, time),
        *_flops(analysis, rank),
    ]
    return [
        *plain(wrap(_what_was_read(analysis), view.width)),
        *_not_read(analysis, view.width),
        *[Line(text, Style.ANSWER) for sentence in answers for text in wrap(sentence, view.width)],
    ]


def _what_was_read(analysis: Analysis) -> str:
    read = [row for row in analysis.inputs if row.status != "unreadable"]
    steps = sorted({step for row in read for step in row.steps})
    devices = sorted({printable(row.device) for row in read if row.device})
    parts = [
        f"tracetools {analysis.tracetools_version}",
        plural(len(focus.ranks_of(analysis)), "rank"),
        f"steps {ranges(steps)}" if steps else "no steps marked",
        plural(sum(row.events for row in read), "event"),
        *(devices or ["GPU not named" if analysis.gpu else "CPU only"]),
    ]
    return " · ".join(parts)


def _not_read(analysis: Analysis, width: int) -> list[Line]:
    """Files that are missing from the figures, or only partly in them."""
    lines = []
    for status, words in (("unreadable", "could not be read"), ("partial", "could be read only in part")):
        paths = [printable(row.path) for row in analysis.inputs if row.status == status]
        if paths:
            shown = ", ".join(cut_middle(path, width // 2) for path in paths[:3])
            more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            text = f"{plural(len(paths), 'file')} {words}: {shown}{more}; see the findings"
            lines += [Line(line, Style.WARNING) for line in wrap(text, width)]
    return lines


def _costliest(modules: Sequence[ModuleTime], rank: int | None, time: Time, width: int) -> list[str]:
    """The costliest module in backward, with its submodules and by itself; in forward where no backward ran."""
    if not any(focus.is_module(row) for row in modules):
        return ["No module names in these traces: time is split by phase and op only."]
    found = [_costliest_in(phase, modules, rank, time, width) for phase in ("backward", "forward")]
    if found[0]:
        return found[0]
    return [f"No module has {_CLOCK[time]} in backward in these traces.", *found[1]]


def _costliest_in(phase: str, modules: Sequence[ModuleTime], rank: int | None, time: Time, width: int) -> list[str]:
    whole = focus.costliest(modules, phase, time)
    alone = focus.costliest_alone(modules, phase, time)
    if whole is None or alone is None:
        return []
    return [
        f"Costliest module in {phase}: {cut_path(printable(whole.path), width - 10)} "
        f"({percent(whole.value_ns, whole.whole_ns)}% of {phase} {_CLOCK[time]} on {rank_name(rank)}, "
        f"{_ms(whole)} ms, submodules included{_where(whole, width)})",
        f"Without submodules: {cut_path(printable(alone.path), width - 10)} "
        f"({percent(alone.value_ns, alone.whole_ns)}%, {_ms(alone)} ms{_where(alone, width)})",
    ]


def _where(found: focus.Costliest, width: int) -> str:
    """Where the module's source lies, unless it is torch's own."""
    if found.defined_at is None or found.defined_at.startswith("torch/"):
        return ""
    return f"; {cut_middle(printable(found.defined_at), width // 2)}"


def _ms(found: focus.Costliest) -> str:
    return milliseconds(found.value_ns, decimals_for([found.value_ns]))


def _shares(analysis: Analysis, modules: Sequence[ModuleTime], rank: int | None, time: Time) -> list[str]:
    """How the rank's time divides among the phases; on the CPU beside the time in which nothing was recorded."""
    whole = focus.whole_ns(modules, "total", time)
    if not whole:
        return []
    spent = {phase: focus.whole_ns(modules, phase, time) for phase in _PHASES} | _outside_phases(modules, time)
    spent["other"] = max(0, whole - sum(spent.values()))
    parts = ", ".join(f"{part} {percent(value, whole)}%" for part, value in spent.items() if value)
    recorded = "" if time is Time.GPU else _beside_wall(analysis, rank, whole)
    return [f"{rank_name(rank).capitalize()} spent its {_CLOCK[time]}{recorded} in: {parts}"]


def _beside_wall(analysis: Analysis, rank: int | None, recorded_ns: int) -> str:
    """What the recorded spans of all threads add up to, beside what the steps took."""
    walls = [row.wall_ns for row in analysis.steps if row.rank == rank]
    if not walls:
        return ""
    shown = [milliseconds(value, decimals_for([value])) for value in (recorded_ns, sum(walls))]
    return f" ({shown[0]} ms of spans over all threads, in steps of {shown[1]} ms)"


def _flops(analysis: Analysis, rank: int | None) -> list[str]:
    """What the rank computed, and how much of the device that used."""
    row = next((each for each in analysis.flops.by_rank if each.rank == rank and each.total), None)
    if row is None:
        return []
    parts = {"forward": row.forward, "input gradients": row.dgrad, "weight gradients": row.wgrad}
    parts |= {"unsplit gradients": row.unsplit, "recompute": row.recompute, "optimizer": row.optimizer}
    listed = ", ".join(f"{part} {flops(value)}" for part, value in (parts | {"other": row.other}).items() if value)
    sentences = [f"{rank_name(rank).capitalize()} computed {with_unit(row.total or 0, 'FLOP')}: {listed}"]
    if analysis.flops.mfu is not None:
        peaks = ", ".join(f"{with_unit(each.flop_per_s, 'FLOP/s')} in {each.dtype}" for each in analysis.flops.peak)
        utilization = f"MFU {share(analysis.flops.mfu)}%, HFU {share(analysis.flops.hfu)}%"
        sentences.append(f"{utilization} of {peaks}{_known(row)}")
    return sentences


def _known(row: RankFlops) -> str:
    """How much of the compute time the FLOPs are of, where not of all."""
    known, whole = row.known_kernel_ns, row.compute_kernel_ns
    return f"; FLOPs are known for {percent(known, whole)}% of compute kernel time" if known != whole else ""


def _outside_phases(modules: Sequence[ModuleTime], time: Time) -> dict[str, int]:
    """Time that no phase holds: the gradients' and the optimizer's."""
    roots = [row for row in modules if row.parent is None]
    optimizer = [row.total for row in roots if row.path == OPTIMIZER]
    return {
        "gradient accumulation": sum(focus.grad_accumulation_ns(row, time) or 0 for row in roots),
        "gradient sync": sum(focus.grad_sync_ns(row, time) or 0 for row in roots),
        "optimizer": sum(focus.inclusive_ns(total, time) or 0 for total in optimizer),
    }
