"""What happened inside ranges named by the training script. In: annotation rows. Out: a table, costliest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracetools.report import focus
from tracetools.report.figures import count, decimals_for, milliseconds, rank_name
from tracetools.report.layout import Column, lay_out
from tracetools.report.line import Line, note, plain, title
from tracetools.report.names import cut_middle, printable
from tracetools.report.view import View
from tracetools.results import Analysis, AnnotationTime

_ROWS: Final = 20


def render(analysis: Analysis, view: View) -> list[Line]:
    """Ranges of the busiest rank by CPU time."""
    rank = focus.busiest_rank(analysis, focus.time_of(analysis.modules, view.time))
    rows = [row for row in analysis.annotations if row.rank == rank]
    if not rows:
        return [title("Annotations"), *plain(["No record_function ranges in these traces."])]
    shown = sorted(rows, key=lambda row: -row.cpu_ns)[: view.limit(_ROWS)]
    lines = [title(f"Annotations · {rank_name(rank)} · ms"), *plain(lay_out(_columns(shown), view.width))]
    if len(shown) < len(rows):
        lines.append(note(f"{len(rows) - len(shown)} cheaper rows are hidden; --top {len(rows)} shows all"))
    return lines


def _columns(rows: Sequence[AnnotationTime]) -> list[Column]:
    columns = [
        Column("range", [printable(row.name) for row in rows], cut_middle),
        Column("calls", [count(row.calls) for row in rows]),
    ]
    for header, field in {"CPU": "cpu_ns", "GPU busy": "gpu_busy_ns", "kernel sum": "kernel_ns"}.items():
        values = [getattr(row, field) for row in rows]
        columns.append(Column(header, [milliseconds(value, decimals_for(values)) for value in values]))
    return columns
