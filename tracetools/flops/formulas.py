"""Which op counts by which formula. In: names and functions. Out: the registry that counting looks into.

A formula takes an `OpCall` and gives `Flops`; where the trace does not hold what it needs it raises `Uncountable`. The
innermost op of a nest for which a formula gives a count is the one that counts, so composites need none.
"""

from __future__ import annotations

import enum
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from tracetools.errors import UsageError
from tracetools.flops.call import OpCall, Shape, Uncountable


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
    bound: see `Bound`. operand: index of the input whose element type the products are made in. factors: shapes of the
    two factors of a product, [..., m, k] and [..., k, n]; None for what is no single product.
    """

    count: int
    masked: int = 0
    again: int = 0
    weight: int | None = None
    bound: Bound = Bound.EXACT
    operand: int = 0
    factors: tuple[Shape, Shape] | None = None


Formula: TypeAlias = Callable[[OpCall], Flops]

_BUILT_IN: Final[dict[str, Formula]] = {}
_OWN: Final[dict[str, Formula]] = {}
_READ: Final[set[str]] = set()


def formula_of(name: str) -> Formula | None:
    """The formula of an op, None where there is none; one that was registered goes before ours."""
    return _OWN.get(name) or _BUILT_IN.get(name)


def built_in(*names: str) -> Callable[[Formula], Formula]:
    """Decorate the formula of one or more ops, named as in the trace."""

    def add(formula: Formula) -> Formula:
        for name in names:
            assert name not in _BUILT_IN, name
            _BUILT_IN[name] = formula
        return formula

    return add


def register(*names: str) -> Callable[[Callable[[OpCall], Flops | int]], Callable[[OpCall], Flops | int]]:
    """Decorate a formula of your own for one or more ops, named as in the trace.

    It takes the `OpCall` and gives `Flops`, or a plain number of them (a multiply and an add are two), and raises
    `Uncountable` where the call does not hold what it needs. It goes before a formula of ours for the same op, and
    counts wherever no op inside it has a count. It holds in this process: give the file that registers it to
    `tracetools analyze --flops` or to `load(flops=…)` where several are to work.

        @register("my_library::fused_linear")
        def fused_linear(call):
            x, weight = call.shape(0), call.shape(1, 2)
            return 2 * elements(x) * weight[0]
    """

    def add(formula: Callable[[OpCall], Flops | int]) -> Callable[[OpCall], Flops | int]:
        for name in names:
            _OWN[name] = partial(_checked, formula)
        return formula

    return add


def unregister(*names: str) -> None:
    """Take back what `register` added; names without a formula are passed by."""
    for name in names:
        _OWN.pop(name, None)


def registered_here() -> bool:
    """Whether this process holds formulas that another one would not have."""
    return bool(_OWN) and not _READ


def read_formulas(path: str) -> None:
    """Run a Python file that registers formulas, once in each process.

    Raises: UsageError where it cannot be run or registers nothing.
    """
    if path in _READ:
        return
    before = dict(_OWN)
    try:
        runpy.run_path(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; give a Python file that registers formulas") from None
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{path}: it failed ({type(error).__name__}: {error}); mend it, or leave out --flops"
        ) from error
    if before == _OWN:
        raise UsageError(f"{path}: it registers no formula; decorate one with tracetools.flops.register(name)")
    _READ.add(path)


def _checked(formula: Callable[[OpCall], Flops | int], call: OpCall) -> Flops:
    """What a registered formula gives, or an error that names the op."""
    try:
        found = formula(call)
    except Uncountable:
        raise
    except Exception as error:
        fact = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"the formula of {call.name} failed on shapes {list(call.shapes)} ({fact}); mend it, or raise Uncountable"
        ) from error
    if isinstance(found, Flops):
        return found
    if isinstance(found, int) and not isinstance(found, bool):
        return Flops(found)
    raise UsageError(f"the formula of {call.name} gave {found!r}; it must give Flops or a whole number of them")
