"""Where the time of each module went. In: module rows. Out: the tree (or a list, costliest first) of one or more ranks.

Only the busiest rank is drawn in full unless ranks were picked; a second table holds one row for each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from tracetools.report import focus
from tracetools.report.figures import ABSENT, count, decimals_for, flops, milliseconds, percent, rank_name, rate
from tracetools.report.layout import Column, fitting, lay_out, wrap
from tracetools.report.line import Line, note, plain, title
from tracetools.report.names import cut_path, printable
from tracetools.report.view import Sort, Time, View
from tracetools.results import Analysis, ModuleTime, PhaseTime

_ROWS: Final = 40
_SCREEN: Final = 25
_RANKS: Final = 16
_DEEPEST: Final = 4
_CLOCK: Final = {Time.GPU: "GPU busy ms", Time.CPU: "CPU ms"}
_DISPENSABLE: Final = ("kernels", "grad_acc", "grad_sync", "self", "calls")
"""Columns that may go where the page is narrow, first ones first."""


def render(analysis: Analysis, view: View) -> list[Line]:
    """The modules of the busiest rank, or of every rank where ranks were picked, then one row per rank."""
    time = focus.time_of(analysis.modules, view.time)
    ranks = focus.ranks_of(analysis)
    drawn = ranks if view.full_ranks else [focus.busiest_rank(analysis, time)]
    lines: list[Line] = []
    for rank in drawn:
        lines += [Line(""), *_one_rank(focus.modules_of(analysis, rank), rank, view)]
    if len(ranks) > len(drawn):
        lines += [Line(""), *_all_ranks(analysis, ranks, view)]
    return lines[1:]


def _one_rank(modules: Sequence[ModuleTime], rank: int | None, view: View) -> list[Line]:
    time = focus.time_of(modules, view.time)
    stage = "".join(f" · stage {row.stage}" for row in modules[:1] if row.stage is not None)
    heading = title(
        f"Modules · {rank_name(rank)}{stage} · {_CLOCK[time]}, submodules included (self: left out){_order(view)}"
    )
    matching = [row for row in modules if view.module is None or fnmatchcase(row.path, view.module)]
    if not matching:
        return [heading, *plain(wrap(_nothing(view), view.width))]
    depth = _depth(matching, view)
    by_depth = [row for row in matching if row.depth <= depth]
    shown = _chosen(by_depth, time, view)
    columns, dropped = fitting(_columns(shown, modules, time, view), view.width, _DISPENSABLE)
    notes = [*_left_out(shown, by_depth, matching, modules, depth, view), *_narrow(dropped)]
    return [
        heading,
        *plain(lay_out(columns, view.width)),
        *[note(line) for text in notes for line in wrap(text, view.width)],
    ]


def _narrow(dropped: Sequence[str]) -> list[str]:
    return [f"Hidden columns: {', '.join(dropped)} (a wider terminal, or COLUMNS=160, shows them)"] if dropped else []


def _order(view: View) -> str:
    return "" if view.sort is Sort.PATH else f" · by {view.sort}"


def _nothing(view: View) -> str:
    if view.module is None:
        return "No time was placed on this rank."
    return f"No module path matches {printable(view.module)}; try --module '*'."


def _depth(modules: Sequence[ModuleTime], view: View) -> int:
    """The depth asked for, else the deepest that fits a screen; a pattern or a ranking needs no limit."""
    if view.depth is not None:
        return view.depth
    if view.module is not None or view.sort is not Sort.PATH or view.top is not None:
        return max(row.depth for row in modules)
    fitting = [depth for depth in range(2, _DEEPEST + 1) if sum(row.depth <= depth for row in modules) <= _SCREEN]
    return max(fitting, default=1)


def _chosen(modules: Sequence[ModuleTime], time: Time, view: View) -> list[ModuleTime]:
    """As many rows as wanted: a tree keeps its order and its costliest rows, a ranking is cut at its end."""
    key = _SORT_KEYS[view.sort if view.sort is not Sort.PATH else Sort.TOTAL]
    ranking = sorted(range(len(modules)), key=lambda index: -(key(modules[index], time) or 0))[: view.limit(_ROWS)]
    return [modules[index] for index in (sorted(ranking) if view.sort is Sort.PATH else ranking)]


_SORT_KEYS: Final[dict[Sort, Callable[[ModuleTime, Time], int | None]]] = {
    Sort.FORWARD: lambda row, time: focus.inclusive_ns(row.forward, time),
    Sort.BACKWARD: lambda row, time: focus.inclusive_ns(row.backward, time),
    Sort.RECOMPUTE: lambda row, time: focus.inclusive_ns(row.recompute, time),
    Sort.TOTAL: lambda row, time: focus.inclusive_ns(row.total, time),
    Sort.SELF: lambda row, time: focus.self_ns(row.total, time),
    Sort.CPU: lambda row, time: row.total.cpu_ns,
    Sort.CALLS: lambda row, time: row.calls,
    Sort.KERNELS: lambda row, time: row.total.kernels,
    Sort.FLOPS: lambda row, time: row.total.flops,
}


def _columns(rows: Sequence[ModuleTime], of_rank: Sequence[ModuleTime], time: Time, view: View) -> list[Column]:
    """Columns of the table; one that holds nothing on the whole rank is left out."""
    decimals = decimals_for(focus.inclusive_ns(row.total, time) for row in of_rank)

    def times(header: str, figure: Callable[[ModuleTime], int | None]) -> Column:
        return Column(header, [milliseconds(figure(row), decimals) for row in rows])

    columns = [
        Column("module", [_label(row, view) for row in rows], cut_path),
        Column("calls", [count(row.calls) if focus.is_module(row) else ABSENT for row in rows]),
        times("forward", lambda row: focus.inclusive_ns(row.forward, time)),
        times("backward", lambda row: focus.inclusive_ns(row.backward, time)),
        times("recompute", lambda row: focus.inclusive_ns(row.recompute, time)),
        times("total", lambda row: focus.inclusive_ns(row.total, time)),
        times("self", lambda row: focus.self_ns(row.total, time)),
        times("grad_acc", lambda row: focus.grad_accumulation_ns(row, time)),
        times("grad_sync", lambda row: focus.grad_sync_ns(row, time)),
        times("CPU", lambda row: row.total.cpu_ns),
        Column("kernels", [count(row.total.kernels) for row in rows]),
        *_flops_columns(rows, time),
    ]
    empty = _empty_columns(of_rank, time)
    if time is Time.CPU or view.sort is not Sort.CPU:
        empty.append("CPU")
    return [column for column in columns if column.header not in empty]


def _flops_columns(rows: Sequence[ModuleTime], time: Time) -> list[Column]:
    """FLOPs of forward and backward, and per second of the time shown for them."""
    phases: dict[str, list[PhaseTime]] = {
        "fwd": [row.forward for row in rows],
        "bwd": [row.backward for row in rows],
    }
    return [
        *(Column(f"{name} FLOP", [flops(each.flops) for each in phase]) for name, phase in phases.items()),
        *(
            Column(f"{name} /s", [flops(rate(each.flops, focus.inclusive_ns(each, time))) for each in phase])
            for name, phase in phases.items()
        ),
    ]


def _empty_columns(rows: Sequence[ModuleTime], time: Time) -> list[str]:
    """Headers of the columns in which no row of the rank has anything."""
    held = {
        "recompute": any(focus.inclusive_ns(row.recompute, time) for row in rows),
        "grad_acc": any(focus.grad_accumulation_ns(row, time) for row in rows),
        "grad_sync": any(focus.grad_sync_ns(row, time) for row in rows),
        "kernels": any(row.total.kernels for row in rows),
    }
    held["fwd FLOP"] = held["fwd /s"] = any(row.forward.flops for row in rows)
    held["bwd FLOP"] = held["bwd /s"] = any(row.backward.flops for row in rows)
    return [header for header, holds in held.items() if not holds]


def _label(row: ModuleTime, view: View) -> str:
    """A module's own name under its parent's in the tree, its whole path in a list."""
    is_tree = view.sort is Sort.PATH and view.module is None
    if not is_tree or row.parent is None:
        return printable(row.path)
    own = row.path.removeprefix(row.parent).lstrip("/.") or row.path
    return "  " * row.depth + printable(own)


def _left_out(
    shown: Sequence[ModuleTime],
    by_depth: Sequence[ModuleTime],
    matching: Sequence[ModuleTime],
    modules: Sequence[ModuleTime],
    depth: int,
    view: View,
) -> list[str]:
    """What the table does not show, and the option that shows it."""
    notes = []
    if deeper := len(matching) - len(by_depth):
        notes.append(f"{deeper} deeper than level {depth} (--depth {max(row.depth for row in matching)} shows all)")
    if cheaper := len(by_depth) - len(shown):
        notes.append(f"{cheaper} cheaper (--top {len(by_depth)} shows all)")
    sentences = [f"Hidden rows: {', '.join(notes)}"] if notes else []
    if view.module is not None:
        sentences.append(f"Only paths like {printable(view.module)}: {len(matching)} of {len(modules)} rows")
    return sentences


def _all_ranks(analysis: Analysis, ranks: Sequence[int | None], view: View) -> list[Line]:
    """One row per rank, so that a slow rank or another stage shows beside the one drawn in full."""
    time = focus.time_of(analysis.modules, view.time)
    of_rank = {rank: focus.modules_of(analysis, rank) for rank in ranks}
    total = {rank: focus.whole_ns(of_rank[rank], "total", time) for rank in ranks}
    busiest = sorted(ranks, key=lambda rank: -total[rank])[: view.limit(_RANKS)]
    shown = [rank for rank in ranks if rank in busiest]
    lines = [
        title(f"Ranks · {_CLOCK[time]}"),
        *plain(lay_out(_rank_columns(shown, of_rank, time), view.width)),
        note("--rank N draws the modules of another rank"),
    ]
    if len(shown) < len(ranks):
        lines.append(note(f"{len(ranks) - len(shown)} less busy ranks are hidden; --top {len(ranks)} shows all"))
    return lines


def _rank_columns(ranks: Sequence[int | None], of_rank: dict[int | None, list[ModuleTime]], time: Time) -> list[Column]:
    total = [focus.whole_ns(of_rank[rank], "total", time) for rank in ranks]
    decimals = decimals_for(total)
    found = [focus.costliest(of_rank[rank], "backward", time) for rank in ranks]
    columns = [Column("rank", [rank_name(rank).removeprefix("rank ") for rank in ranks])]
    stages = [next((row.stage for row in of_rank[rank]), None) for rank in ranks]
    if any(stage is not None for stage in stages):
        columns.append(Column("stage", [count(stage) for stage in stages]))
    for phase in ("forward", "backward", "recompute", "total"):
        values = [focus.whole_ns(of_rank[rank], phase, time) for rank in ranks]
        columns.append(Column(phase, [milliseconds(value, decimals) for value in values]))
    return [
        *columns,
        Column("costliest in backward", [ABSENT if row is None else printable(row.path) for row in found], cut_path),
        Column("% of it", [ABSENT if row is None else percent(row.value_ns, row.whole_ns) for row in found]),
    ]
