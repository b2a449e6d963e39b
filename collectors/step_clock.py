"""Which of several optimizers counts the steps. In: each optimizer that steps. Out: whether a training step has ended.

SGD SGD SGD                    the first optimizer that steps is the clock
SGD Adam Adam SGD Adam Adam    others step within its steps
SGD Adam × 10                  the clock stands still: Adam is the clock from here on
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any, Final

_STANDS_STILL: Final = 10
"""Steps of another optimizer without one of the clock, after which the other is the clock."""


class StepClock:
    """The optimizer whose steps count. It is not kept alive; once it is gone, the next that steps takes its place."""

    def __init__(self) -> None:
        self._optimizer: weakref.ref[Any] | None = None
        self._others: Counter[int] = Counter()
        self.changes = 0
        """How often an optimizer has become the clock."""

    def ticks(self, optimizer: Any) -> bool:
        """Whether this step of an optimizer counts."""
        clock = None if self._optimizer is None else self._optimizer()
        if clock is not optimizer:
            self._others[id(optimizer)] += 1
            if clock is not None and self._others[id(optimizer)] < _STANDS_STILL:
                return False
            self._optimizer = weakref.ref(optimizer)
            self.changes += 1
        self._others.clear()
        return True
