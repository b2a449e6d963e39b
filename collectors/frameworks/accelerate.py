"""Accelerate (and trainers built on it): a step is one on which its optimizer was not held back by accumulation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from collectors.frameworks.framework import Framework, StepEnded
from collectors.live_objects import LiveObjects
from collectors.patches import replaced
from collectors.step_clock import StepClock

_OPTIMIZER = "accelerate.optimizer.AcceleratedOptimizer"


@contextmanager
def _step_ends(ended: StepEnded, alive: LiveObjects) -> Iterator[None]:
    from accelerate.optimizer import AcceleratedOptimizer

    step = AcceleratedOptimizer.step
    # Of several optimizers one counts, as without Accelerate; the first has just stepped.
    clock = StepClock()
    clock.ticks(alive.of(_OPTIMIZER)[0])

    @wraps(step)
    def with_end(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = step(optimizer, *args, **kwargs)
        if optimizer.gradient_state.sync_gradients and clock.ticks(optimizer):
            ended()
        return result

    with replaced(AcceleratedOptimizer, "step", with_end):
        yield


def _has_steps(alive: LiveObjects) -> bool:
    return bool(alive.of(_OPTIMIZER))


FRAMEWORK = Framework("accelerate", "accelerate", (_OPTIMIZER,), step_ends=_step_ends, has_steps=_has_steps)
