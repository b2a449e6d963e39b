"""How long each step took. In: step rows. Out: a table, the longest steps where not all fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracetools.report import focus
from tracetools.report.figures import decimals_for, milliseconds, rank_name
from tracetools.report.layout import Column, lay_out
from tracetools.report.line import Line, note, plain, title
from tracetools.report.view import View
from tracetools.results import Analysis, StepTime

_ROWS: Final = 12
_FIELDS: Final = {
    "wall": "wall_ns",
    "forward": "forward_ns",
    "backward": "backward_ns",
    "recompute": "recompute_ns",
    "optimizer": "optimizer_ns",
    "GPU busy": "gpu_busy_ns",
}


def render(analysis: Analysis, view: View) -> list[Line]:
    """One row per rank and step; only the busiest rank's where all ranks do not fit."""
    rows = list(analysis.steps)
    if not rows:
        return []
    limit = view.limit(_ROWS)
    shown = _fitting(analysis, view, limit)
    lines = [
        title("Steps · ms · phases in CPU time, over all threads"),
        *plain(lay_out(_columns(shown), view.width)),
    ]
    if len(shown) < len(rows):
        hidden = f"{len(rows) - len(shown)} steps, shorter or of other ranks, are hidden"
        lines.append(note(f"{hidden}; --top {len(rows)} shows all"))
    return lines


def _fitting(analysis: Analysis, view: View, limit: int) -> list[StepTime]:
    """All rows if they fit, else the longest of the busiest rank, in their own order."""
    rows = list(analysis.steps)
    if len(rows) <= limit:
        return rows
    rank = focus.busiest_rank(analysis, focus.time_of(analysis.modules, view.time))
    of_rank = [row for row in rows if row.rank == rank] or rows
    longest = sorted(range(len(of_rank)), key=lambda index: -of_rank[index].wall_ns)[:limit]
    return [of_rank[index] for index in sorted(longest)]


def _columns(rows: Sequence[StepTime]) -> list[Column]:
    decimals = decimals_for(row.wall_ns for row in rows)
    columns = [
        Column("rank", [rank_name(row.rank).removeprefix("rank ") for row in rows]),
        Column("step", ["all" if row.step is None else str(row.step) for row in rows]),
    ]
    for header, field in _FIELDS.items():
        columns.append(Column(header, [milliseconds(getattr(row, field), decimals) for row in rows]))
    return columns
