"""How launch calls and GPU work fit together. In: launch rows. Out: a table, one row per rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracetools.report.figures import count, microseconds, rank_name
from tracetools.report.layout import Column, lay_out
from tracetools.report.line import Line, note, plain, title
from tracetools.report.view import View
from tracetools.results import Analysis, Launches

_ROWS: Final = 16


def render(analysis: Analysis, view: View) -> list[Line]:
    """Launches, launches and GPU work without a partner, work that starts before its launch, and run-ahead."""
    rows = analysis.launches
    if not rows:
        return [title("Launches"), *plain(["No launch calls in these traces."])]
    shown = rows[: view.limit(_ROWS)]
    lines = [title("Launches · run-ahead in µs"), *plain(lay_out(_columns(shown), view.width))]
    if len(shown) < len(rows):
        lines.append(note(f"{len(rows) - len(shown)} ranks are hidden; --top {len(rows)} shows all"))
    return lines


def _columns(rows: Sequence[Launches]) -> list[Column]:
    ahead = [row.run_ahead_ns for row in rows]
    return [
        Column("rank", [rank_name(row.rank).removeprefix("rank ") for row in rows]),
        Column("launches", [count(row.count) for row in rows]),
        Column("without GPU work", [count(row.without_kernel) for row in rows]),
        Column("GPU work without launch", [count(row.kernels_without_launch) for row in rows]),
        Column("before launch", [count(row.started_before_launch) for row in rows]),
        Column("median", [microseconds(value.p50 if value else None) for value in ahead]),
        Column("95 %", [microseconds(value.p95 if value else None) for value in ahead]),
        Column("max", [microseconds(value.max if value else None) for value in ahead]),
    ]
