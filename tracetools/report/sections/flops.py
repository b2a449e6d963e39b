"""What was computed, for what, and how much of the device that used. In: the FLOPs section. Out: a table per rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tracetools.report import focus
from tracetools.report.figures import (
    ABSENT,
    count,
    decimals_for,
    flops,
    milliseconds,
    percent,
    rank_name,
    share,
    with_unit,
)
from tracetools.report.layout import Column, lay_out, wrap
from tracetools.report.line import Line, note, plain, title
from tracetools.report.names import cut_middle, printable
from tracetools.report.view import View
from tracetools.results import Analysis, FlopsSection, RankFlops, UncountedOp

_RANKS: Final = 12
_UNCOUNTED: Final = 6
_PARTS: Final[dict[str, Callable[[RankFlops], int | None]]] = {
    "forward": lambda row: row.forward,
    "dgrad": lambda row: row.dgrad,
    "wgrad": lambda row: row.wgrad,
    "unsplit": lambda row: row.unsplit,
    "recompute": lambda row: row.recompute,
    "optimizer": lambda row: row.optimizer,
    "other": lambda row: row.other,
}
_ALWAYS: Final = ("forward", "dgrad", "wgrad")


def render(analysis: Analysis, view: View) -> list[Line]:
    """One row per rank, the busiest where not all fit, then the largest of what is not counted."""
    section = analysis.flops
    rows = [row for row in section.by_rank if row.total or row.compute_kernel_ns]
    if not any(row.total for row in rows) and not section.uncounted:
        return []
    limit = view.limit(_RANKS)
    largest = sorted(range(len(rows)), key=lambda at: -(rows[at].total or 0))[:limit]
    shown = [rows[at] for at in sorted(largest)]
    lines = [title("FLOPs · a multiply and an add are two"), *plain(lay_out(_columns(shown), view.width))]
    if len(shown) < len(rows):
        lines.append(note(f"{len(rows) - len(shown)} ranks with fewer are hidden; --top {len(rows)} shows all"))
    sentences = [_convention(section), *_peaks(section)]
    lines += [note(line) for text in sentences for line in wrap(text, view.width)]
    return [*lines, *_uncounted(analysis, view)]


def _columns(rows: Sequence[RankFlops]) -> list[Column]:
    parts = {name: [part(row) for row in rows] for name, part in _PARTS.items()}
    return [
        Column("rank", [rank_name(row.rank).removeprefix("rank ") for row in rows]),
        *(
            Column(name, [flops(value) for value in values])
            for name, values in parts.items()
            if name in _ALWAYS or any(values)
        ),
        Column("total", [flops(row.total) for row in rows]),
        Column("model", [flops(row.model) for row in rows]),
        Column("MFU %", [share(row.mfu) for row in rows]),
        Column("HFU %", [share(row.hfu) for row in rows]),
        Column("known %", [percent(row.known_kernel_ns, row.compute_kernel_ns) for row in rows]),
    ]


def _convention(section: FlopsSection) -> str:
    """What the figures hold and what not."""
    rules = section.convention
    masks = "in full" if rules.causal == "full" else "by half"
    again = "with" if rules.scores_again else "without"
    return (
        f"Products alone, as {rules.name} counts: causal masks {masks}; model: no recompute and no optimizer, {again} "
        "the scores that attention works out again in backward. Embeddings and norms are no products. known: share of "
        "compute kernel time whose FLOPs are counted or none"
    )


def _peaks(section: FlopsSection) -> list[str]:
    found = [f"{with_unit(each.flop_per_s, 'FLOP/s')} in {each.dtype} ({each.source})" for each in section.peak]
    return [f"Peak of {printable(section.peak[0].device)}: {', '.join(found)}"] if found else []


def _uncounted(analysis: Analysis, view: View) -> list[Line]:
    """The largest of one rank, whose figures miss most."""
    rows = analysis.flops.uncounted
    if not rows:
        return []
    missed: dict[int | None, int] = {}
    for row in rows:
        missed[row.rank] = missed.get(row.rank, 0) + (row.kernel_ns or row.calls)
    rank = max(focus.ranks_of(analysis), key=lambda each: missed.get(each, 0))
    mine = [row for row in rows if row.rank == rank]
    shown = mine[: view.limit(_UNCOUNTED)]
    lines = [
        Line(""),
        title(f"Not counted · {rank_name(rank)} · compute kernels that may multiply and have no formula · ms"),
        *plain(lay_out(_uncounted_columns(shown), view.width)),
    ]
    if len(shown) < len(mine):
        lines.append(note(f"{len(mine) - len(shown)} more rows are hidden; --top {len(mine)} shows all"))
    return lines


def _uncounted_columns(rows: Sequence[UncountedOp]) -> list[Column]:
    times = [row.kernel_ns for row in rows]
    return [
        Column("op", [printable(row.op) for row in rows], cut_middle),
        Column("calls", [count(row.calls) for row in rows]),
        Column(
            "kernel sum", [milliseconds(time, decimals_for(times)) if time is not None else ABSENT for time in times]
        ),
    ]
