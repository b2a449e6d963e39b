"""Which ops cost most. In: op rows of the busiest rank. Out: a table, costliest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracetools.report import focus
from tracetools.report.figures import count, decimals_for, flops, milliseconds, plural, rank_name, rate
from tracetools.report.layout import Column, fitting, lay_out
from tracetools.report.line import Line, note, plain, title
from tracetools.report.names import cut_middle, printable
from tracetools.report.view import Time, View
from tracetools.results import Analysis, OpTime

_ROWS: Final = 10
_WRAPPER: Final = "autograd::engine::evaluate_function: "
_NEARLY_ALL: Final = 0.9
_DISPENSABLE: Final = ("self CPU", "kernel sum")
_FIELDS: Final = {
    "CPU": "cpu_ns",
    "self CPU": "self_cpu_ns",
    "GPU busy": "gpu_busy_ns",
    "kernel sum": "kernel_ns",
}


def render(analysis: Analysis, view: View) -> list[Line]:
    """Ops of the busiest rank by GPU busy time, or by self CPU time where there is no GPU."""
    time = focus.time_of(analysis.modules, view.time)
    rank = focus.busiest_rank(analysis, time)
    of_rank = [row for row in analysis.ops if row.rank == rank]
    rows = _without_wrappers(of_rank, time)
    if not rows:
        return []
    shown = sorted(rows, key=lambda row: _cost(row, time), reverse=True)[: view.limit(_ROWS)]
    order = "GPU busy time" if time is Time.GPU else "self CPU time"
    lines = [
        title(f"Ops · {rank_name(rank)} · ms · costliest first by {order}"),
        *plain(lay_out(fitting(_columns(shown, time), view.width, _DISPENSABLE)[0], view.width)),
    ]
    if len(shown) < len(rows):
        lines.append(note(f"{len(rows) - len(shown)} cheaper rows are hidden; --top {len(rows)} shows all"))
    if wrappers := len(of_rank) - len(rows):
        lines.append(
            note(f"{plural(wrappers, 'row')} of {_WRAPPER[:-2]} left out: the nodes' own rows hold nearly all of it")
        )
    return lines


def _without_wrappers(rows: Sequence[OpTime], time: Time) -> list[OpTime]:
    """The rows without those that say hardly more than another one: the engine's span around each autograd node.

    A wrapper stays where it does more than its node, as around AccumulateGrad, whose hooks start the all-reduce.
    """
    nodes = {(row.name, row.phase): _inclusive(row, time) for row in rows}

    def repeats_its_node(row: OpTime) -> bool:
        held = nodes.get((row.name.removeprefix(_WRAPPER), row.phase))
        return row.name.startswith(_WRAPPER) and held is not None and held >= _NEARLY_ALL * _inclusive(row, time)

    return [row for row in rows if not repeats_its_node(row)]


def _inclusive(row: OpTime, time: Time) -> int:
    return (row.gpu_busy_ns or 0) if time is Time.GPU else row.cpu_ns


def _cost(row: OpTime, time: Time) -> int:
    return (row.gpu_busy_ns or 0) if time is Time.GPU else row.self_cpu_ns


def _columns(rows: Sequence[OpTime], time: Time) -> list[Column]:
    columns = [
        Column("op", [printable(row.name) for row in rows], cut_middle),
        Column("phase", [row.phase.value for row in rows]),
        Column("calls", [count(row.calls) for row in rows]),
    ]
    for header, field in _FIELDS.items():
        values = [getattr(row, field) for row in rows]
        columns.append(Column(header, [milliseconds(value, decimals_for(values)) for value in values]))
    if any(row.flops for row in rows):
        times = [_inclusive(row, time) for row in rows]
        columns.append(Column("FLOP", [flops(row.flops) for row in rows]))
        columns.append(Column("/s", [flops(rate(row.flops, spent)) for row, spent in zip(rows, times, strict=True)]))
    return columns
