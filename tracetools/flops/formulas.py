"""Which op counts by which formula. In: names and functions. Out: the registry that `count` looks into.

A formula takes an `OpCall` and gives `Flops`; where the trace does not hold what it needs it raises `Uncountable`. The
innermost op of a nest for which a formula gives a count is the one that counts, so composites need none.
"""

from __future__ import annotations

import enum
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tracetools.errors import UsageError
from tracetools.flops.call import OpCall


class Bound(enum.IntEnum):
    """How sure a count is: what ran is at least, exactly or at most that much."""

    EXACT = 0
    LOWER = 1
    UPPER = 2


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations of one call; a multiply and an add are two.

    count: all of them, as if no mask left anything out. masked: those of them that a causal mask leaves out, of a
    square half. again: those that an attention backward spends on working the scores out once more. weight: those that
    make the gradient of a weight, where the op itself says so; None where its place in the backward pass has to tell.
    bound: see `Bound`. operand: index of the input whose element type the products are made in.
    """

    count: int
    masked: int = 0
    again: int = 0
    weight: int | None = None
    bound: Bound = Bound.EXACT
    operand: int = 0


Formula: TypeAlias = Callable[[OpCall], Flops]

_FORMULAS: Final[dict[str, Formula]] = {}
_own: set[str] = set()


def register(*names: str) -> Callable[[Callable[[OpCall], Flops | int]], Callable[[OpCall], Flops | int]]:
    """Decorate the formula of one or more ops, named as in the trace; a later one replaces an earlier.

    The formula gets an `OpCall`, and gives `Flops`, or just a count. It may raise `Uncountable`.

    >>> @register("my_library::scale_and_multiply")
    ... def scale_and_multiply(call):
    ...     (m, k), (_, n) = call.shape(0, 2), call.shape(1, 2)
    ...     return 2 * m * k * n
    >>> unregister("my_library::scale_and_multiply")
    """

    def add(formula: Callable[[OpCall], Flops | int]) -> Callable[[OpCall], Flops | int]:
        def whole(call: OpCall) -> Flops:
            found = formula(call)
            return found if isinstance(found, Flops) else Flops(found)

        for name in names:
            _FORMULAS[name] = whole
            _own.add(name)
        return formula

    return add


def unregister(*names: str) -> None:
    """Take formulas out again; ops that tracetools knows by itself get no formula back."""
    for name in names:
        _FORMULAS.pop(name, None)
        _own.discard(name)


def formula_of(name: str) -> Formula | None:
    """The formula of an op, None where there is none."""
    return _FORMULAS.get(name)


def known_ops() -> tuple[str, ...]:
    """Names of all ops that have a formula, sorted."""
    return tuple(sorted(_FORMULAS))


def has_own_formulas() -> bool:
    """Whether the caller has registered any in this process, of which other processes know nothing."""
    return bool(_own)


def built_in(*names: str) -> Callable[[Formula], Formula]:
    """As `register`, for the formulas of this package."""

    def add(formula: Formula) -> Formula:
        for name in names:
            assert name not in _FORMULAS, name
            _FORMULAS[name] = formula
        return formula

    return add


_read: set[str] = set()


def read_formulas(path: str) -> None:
    """Run a Python file that calls `register`; once per process, however often it is asked for.

    Raises: UsageError where the file cannot be read, or fails.
    """
    if path in _read:
        return
    if not Path(path).is_file():
        raise UsageError(f"--flops {path}: no such file; give a Python file that calls tracetools.flops.register")
    before = set(_own)
    try:
        runpy.run_path(path)
    except Exception as error:
        raise UsageError(f"--flops {path}: {type(error).__name__}: {error}; mend the file") from error
    if _own == before:
        raise UsageError(f"--flops {path}: registers no formula; decorate one with tracetools.flops.register")
    # Every worker reads the file by itself.
    _own.intersection_update(before)
    _read.add(path)
