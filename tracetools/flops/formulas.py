"""Which op counts by which formula. In: names and functions. Out: the registry that `count` looks into.

A formula takes an `OpCall` and gives `Flops`; where the trace does not hold what it needs it raises `Uncountable`. The
innermost op of a nest for which a formula gives a count is the one that counts, so composites need none.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tracetools.flops.call import OpCall, Shape


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

_FORMULAS: Final[dict[str, Formula]] = {}


def formula_of(name: str) -> Formula | None:
    """The formula of an op, None where there is none."""
    return _FORMULAS.get(name)


def built_in(*names: str) -> Callable[[Formula], Formula]:
    """Decorate the formula of one or more ops, named as in the trace."""

    def add(formula: Formula) -> Formula:
        for name in names:
            assert name not in _FORMULAS, name
            _FORMULAS[name] = formula
        return formula

    return add
