"""When a training step ends, where the loop does not say so. In: what torch and the frameworks call. Out: calls back.

Every optimizer of torch tells when it has stepped. Where a framework knows better (a DeepSpeed engine steps its
optimizer once for each group of parameters), its own end of a step counts from the moment its objects are there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from collectors.parallel_layout import frameworks_in_use, look_for_layout
from collectors.patches import replaced


class StepEnds:
    """Calls `ended` at the end of each training step, from `start` to `stop`.

    found_by: whose word counts, "optimizer" or a framework's name; None before the first step has ended. passed_over:
    called, maybe again and again, where steps cannot be counted, with the reason.
    """

    def __init__(self, ended: Callable[[], None], passed_over: Callable[[str], None]) -> None:
        self.found_by: str | None = None
        self._ended = ended
        self._passed_over = passed_over
        self._clock: int | None = None
        self._inside = False
        self._patches = ExitStack()
        self._hook: Any = None

    def start(self) -> None:
        """Begin to listen."""
        self._hook = register_optimizer_step_post_hook(self._post_hook())

    def stop(self) -> None:
        """Listen no more, and leave everything as it was."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._patches.close()

    def _post_hook(self) -> Callable[[Optimizer, Any, Any], None]:
        """What torch calls, and what its compiler looks into where the step is part of a compiled function."""
        stepped = self._optimizer_has_stepped
        # Behind a break of the graph, of which torch's own optimizers have two in their step already.
        outside_of_graphs: Callable[..., None] = torch.compiler.disable(stepped)
        may_break = _graph_may_break(self._passed_over)

        def has_stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if not is_dynamo_compiling():
                stepped(optimizer)
            elif may_break():
                outside_of_graphs(optimizer, compiled=True)

        return has_stepped

    def _optimizer_has_stepped(self, optimizer: Optimizer, compiled: bool = False) -> None:
        """The first optimizer that steps is the clock; others step within its steps."""
        if self._clock is None:
            self._clock = id(optimizer)
            self._ask_frameworks()
            if self.found_by is None:
                self.found_by = "optimizer"
                # A method that changes is compiled anew.
                if not compiled:
                    self._end_after(optimizer)
            self._ended()
        elif self._clock == id(optimizer) and self.found_by == "optimizer" and not self._inside:
            self._ended()

    def _ask_frameworks(self) -> None:
        """From now on the last framework in the list that has steps of its own, if any."""
        alive = look_for_layout()
        for framework in reversed(frameworks_in_use()):
            if framework.step_ends is not None and framework.has_steps(alive):
                self.found_by = framework.name
                # The step that is under way is counted by the optimizer that made us ask.
                self._patches.enter_context(framework.step_ends(self._ended, alive))
                return

    def _end_after(self, optimizer: Optimizer) -> None:
        """End later steps once `optimizer.step` has returned, not inside the range that torch writes around it.

        The hook stays, for loops that took hold of the method before.
        """
        step = optimizer.step
        steps_once = getattr(step, "__func__", None)
        if steps_once is None:
            return

        @wraps(steps_once)
        def step_then_end(self_: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return step(*args, **kwargs)
            self._inside = True
            try:
                result = step(*args, **kwargs)
            finally:
                self._inside = False
            self._ended()
            return result

        self._patches.enter_context(replaced(optimizer, "step", MethodType(step_then_end, optimizer)))


def _graph_may_break(passed_over: Callable[[str], None]) -> Callable[[], bool]:
    """Asked by the compiler, once for each function that it compiles; the answer becomes part of what it compiles."""

    def may_break() -> bool:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        if getattr(InstructionTranslator.current_tx(), "one_graph", True):
            passed_over("an optimizer steps inside a function that is compiled with fullgraph=True")
            return False
        return True

    # As torch._dynamo.assume_constant_result does.
    may_break._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return may_break
