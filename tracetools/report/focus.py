"""What a reader should look at first. In: module rows. Out: the busiest rank, and the module that costs most there.

Selections over figures that `metrics` worked out; no figure is made here but shares of a total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tracetools.report.view import Time
from tracetools.results import Analysis, ModuleTime, PhaseTime

NEARLY_ALL: Final = 0.9
"""A module with submodules that holds this share of a phase only wraps what costs; the answer lies inside it."""


def time_of(modules: Sequence[ModuleTime], wanted: Time | None) -> Time:
    """The clock to show: the one asked for, else the GPU's where there is any figure of it."""
    if wanted is not None:
        return wanted
    return Time.GPU if any(row.total.gpu_busy_ns is not None for row in modules) else Time.CPU


def inclusive_ns(phase: PhaseTime, time: Time) -> int | None:
    """Time of a module in one phase, submodules included."""
    return phase.gpu_busy_ns if time is Time.GPU else phase.cpu_ns


def self_ns(phase: PhaseTime, time: Time) -> int | None:
    """Time of a module in one phase, submodules left out."""
    return phase.self_gpu_busy_ns if time is Time.GPU else phase.self_cpu_ns


def grad_accumulation_ns(row: ModuleTime, time: Time) -> int | None:
    """Time of a module's AccumulateGrad work."""
    return row.backward.grad_accumulation_ns if time is Time.GPU else row.backward.grad_accumulation_cpu_ns


def grad_sync_ns(row: ModuleTime, time: Time) -> int | None:
    """Time of communication that starts from AccumulateGrad."""
    return row.backward.grad_sync_ns if time is Time.GPU else row.backward.grad_sync_cpu_ns


def ranks_of(analysis: Analysis) -> list[int | None]:
    """Every rank that was read, in order; None stands for a file that does not say its rank."""
    found = {row.rank for row in analysis.inputs if row.status != "unreadable"}
    return sorted(found, key=lambda rank: -1 if rank is None else rank)


def modules_of(analysis: Analysis, rank: int | None) -> list[ModuleTime]:
    """Module rows of one rank."""
    return [row for row in analysis.modules if row.rank == rank]


def is_module(row: ModuleTime) -> bool:
    """Whether a row is a module, and not work outside all of them."""
    return not row.path.startswith("(") or row.source is not None


def whole_ns(modules: Sequence[ModuleTime], phase: str, time: Time) -> int:
    """What a rank spent in a phase: its roots and its bracketed rows together."""
    return sum(inclusive_ns(getattr(row, phase), time) or 0 for row in modules if row.parent is None)


def busiest_rank(analysis: Analysis, time: Time) -> int | None:
    """The rank with the largest total; the lowest of equals."""
    ranks = ranks_of(analysis)
    if not ranks:
        return None
    return max(ranks, key=lambda rank: whole_ns(modules_of(analysis, rank), "total", time))


@dataclass(frozen=True, slots=True)
class Costliest:
    """The module that a phase spends most in, and what it spends there out of the phase's whole.

    defined_at: file and line of its forward, None where unknown.
    """

    path: str
    defined_at: str | None
    value_ns: int
    whole_ns: int


def costliest(modules: Sequence[ModuleTime], phase: str, time: Time) -> Costliest | None:
    """The module with the largest inclusive time that is not just a wrapper around another one.

    A wrapper has a submodule that costs something and is a root, or holds NEARLY_ALL of the phase.
    """
    whole = whole_ns(modules, phase, time)
    spent = {row.path: inclusive_ns(getattr(row, phase), time) or 0 for row in modules if is_module(row)}
    inner = {row.parent for row in modules if row.parent is not None and spent.get(row.path)}
    roots = {row.path for row in modules if row.parent is None}
    candidates = {
        path: value
        for path, value in spent.items()
        if value and not (path in inner and (path in roots or value >= NEARLY_ALL * whole))
    }
    return _largest(modules, candidates, whole)


def costliest_alone(modules: Sequence[ModuleTime], phase: str, time: Time) -> Costliest | None:
    """The module with the largest self time."""
    own = {row.path: self_ns(getattr(row, phase), time) or 0 for row in modules if is_module(row)}
    return _largest(modules, {path: value for path, value in own.items() if value}, whole_ns(modules, phase, time))


def _largest(modules: Sequence[ModuleTime], spent: dict[str, int], whole: int) -> Costliest | None:
    if not spent:
        return None
    path = max(spent, key=lambda path: spent[path])
    defined_at = next((row.defined_at for row in modules if row.path == path), None)
    return Costliest(path, defined_at, spent[path], whole)
