"""What each GPU did. In: GPU rows of whole ranks. Out: busy and idle time, of the idlest GPUs where not all fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracetools.report.figures import count, decimals_for, milliseconds, percent, rank_name
from tracetools.report.layout import Column, lay_out, wrap
from tracetools.report.line import Line, note, plain, title
from tracetools.report.view import View
from tracetools.results import Analysis, GpuTime

_ROWS: Final = 16
_PARTS: Final = {
    "busy": "busy_ns",
    "compute": "compute_ns",
    "exposed comm": "exposed_communication_ns",
    "exposed copy": "exposed_copy_ns",
    "idle": "idle_ns",
}


def render(analysis: Analysis, view: View) -> list[Line]:
    """One row per rank and device; busy and idle are the window, compute and exposed parts are busy."""
    rows = [row for row in analysis.gpu if row.step is None]
    if not rows:
        return [title("GPU"), *plain(wrap("No GPU work in these traces; times below are CPU time.", view.width))]
    shown = _idlest(rows, view.limit(_ROWS))
    lines = [title("GPU · ms and % of the window"), *plain(lay_out(_columns(shown), view.width))]
    if len(shown) < len(rows):
        hidden = f"{len(rows) - len(shown)} GPUs with less idle time are hidden; --top {len(rows)} shows all"
        lines.append(note(hidden))
    return lines


def _idlest(rows: Sequence[GpuTime], limit: int) -> list[GpuTime]:
    """The rows with the largest share of idle time, in their own order."""
    by_idle = sorted(range(len(rows)), key=lambda index: -rows[index].idle_ns / max(rows[index].window_ns, 1))
    return [rows[index] for index in sorted(by_idle[:limit])]


def _columns(rows: Sequence[GpuTime]) -> list[Column]:
    decimals = decimals_for(row.window_ns for row in rows)
    columns = [
        Column("rank", [rank_name(row.rank).removeprefix("rank ") for row in rows]),
        Column("device", [str(row.device) for row in rows]),
        Column("window", [milliseconds(row.window_ns, decimals) for row in rows]),
    ]
    for header, field in _PARTS.items():
        values = [getattr(row, field) for row in rows]
        columns.append(Column(header, [milliseconds(value, decimals) for value in values]))
        if header in ("busy", "idle"):
            shares = [percent(value, row.window_ns) for value, row in zip(values, rows, strict=True)]
            columns.append(Column("%", shares))
    columns.append(Column("kernels", [count(row.kernels) for row in rows]))
    return columns
