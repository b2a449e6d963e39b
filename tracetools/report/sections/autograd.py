"""Which forward op each backward node comes from. In: autograd rows. Out: a table, costliest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracetools.report import focus
from tracetools.report.figures import ABSENT, count, decimals_for, milliseconds, rank_name
from tracetools.report.layout import Column, lay_out
from tracetools.report.line import Line, note, plain, title
from tracetools.report.names import cut_middle, printable
from tracetools.report.view import Time, View
from tracetools.results import Analysis, AutogradLink

_ROWS: Final = 20


def render(analysis: Analysis, view: View) -> list[Line]:
    """Backward nodes of the busiest rank; `open` links have no forward op."""
    time = focus.time_of(analysis.modules, view.time)
    rank = focus.busiest_rank(analysis, time)
    rows = [row for row in analysis.autograd if row.rank == rank]
    if not rows:
        return [title("Autograd"), *plain(["No backward nodes in these traces."])]
    shown = sorted(rows, key=lambda row: _cost(row, time), reverse=True)[: view.limit(_ROWS)]
    lines = [title(f"Autograd · {rank_name(rank)} · ms"), *plain(lay_out(_columns(shown), view.width))]
    if len(shown) < len(rows):
        lines.append(note(f"{len(rows) - len(shown)} cheaper rows are hidden; --top {len(rows)} shows all"))
    return lines


def _cost(row: AutogradLink, time: Time) -> int:
    return (row.gpu_busy_ns or 0) if time is Time.GPU else row.cpu_ns


def _columns(rows: Sequence[AutogradLink]) -> list[Column]:
    cpu = [row.cpu_ns for row in rows]
    gpu = [row.gpu_busy_ns for row in rows]
    return [
        Column("backward node", [printable(row.backward_op) for row in rows], cut_middle),
        Column(
            "forward op", [ABSENT if row.forward_op is None else printable(row.forward_op) for row in rows], cut_middle
        ),
        Column("linked by", [row.linked_by for row in rows]),
        Column("calls", [count(row.calls) for row in rows]),
        Column("CPU", [milliseconds(value, decimals_for(cpu)) for value in cpu]),
        Column("GPU busy", [milliseconds(value, decimals_for(gpu)) for value in gpu]),
    ]
