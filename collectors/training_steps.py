"""When a training step ends, where the loop does not say so. In: what torch and the frameworks call. Out: calls back.

Every optimizer of torch tells when it has stepped. Where a framework knows better (a DeepSpeed engine steps its
optimizer once for each group of parameters), its own end of a step counts from the moment its objects are there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, wraps
from types import MethodType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from collectors.parallel_layout import frameworks_in_use, look_for_layout
from collectors.step_clock import StepClock


class StepEnds:
    """Calls `ended` at the end of each training step, from `start` to `stop`.

    found_by: whose word counts, "optimizer" or a framework's name; None before the first step has ended. clock: which
    optimizer that is. passed_over: called, maybe again and again, where steps cannot be counted, with the reason.
    guarded: calls what it is given, and lets nothing of it fail inside the script's optimizer.
    """

    def __init__(
        self,
        ended: Callable[[], None],
        passed_over: Callable[[str], None],
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        self.found_by: str | None = None
        self.clock = StepClock()
        self._ended = ended
        self._passed_over = passed_over
        self._guarded = guarded
        self._inside = self._due = False
        self._step = ExitStack()
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
        self._step.close()
        self._patches.close()

    def _post_hook(self) -> Callable[[Optimizer, Any, Any], None]:
        """What torch calls, and what its compiler looks into where the step is part of a compiled function."""

        def stepped(optimizer: Optimizer, compiled: bool = False) -> None:
            self._guarded(partial(self._optimizer_has_stepped, optimizer, compiled))

        # Behind a break of the graph, of which torch's own optimizers have two in their step already.
        outside_of_graphs: Callable[..., None] = torch.compiler.disable(stepped)
        may_break = _graph_may_break(self._passed_over)

        def has_stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if not is_dynamo_compiling():
                stepped(optimizer)
            elif may_break():
                outside_of_graphs(optimizer, compiled=True)

        return has_stepped

    def _optimizer_has_stepped(self, optimizer: Optimizer, compiled: bool) -> None:
        changes = self.clock.changes
        if self.found_by not in (None, "optimizer") or not self.clock.ticks(optimizer):
            return
        if self.found_by is None:
            self._ask_frameworks()
        if self.found_by is None:
            self.found_by = "optimizer"
        # A method that changes is compiled anew.
        if self.found_by == "optimizer" and self.clock.changes > changes and not compiled:
            self._end_after(optimizer)
        if self._inside:
            self._due = True
        else:
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
        self._step.close()
        own = vars(optimizer).get("step")
        # A method kept in the object itself would keep it alive until Python looks for cycles, and its memory with it.
        owner, step = (type(optimizer), type(optimizer).step) if own is None else (optimizer, own)

        @wraps(step)
        def step_then_end(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return step(*args, **kwargs)
            self._inside, self._due = True, False
            try:
                result = step(*args, **kwargs)
            finally:
                self._inside = False
            if self._due:
                self._ended()
            return result

        if isinstance(own, MethodType):
            # Schedulers of the learning rate ask for it.
            step_then_end.__func__ = own.__func__  # type: ignore[attr-defined]
        # Kept there and not here, where it could keep the optimizer alive.
        step_then_end.before = vars(owner).get("step")  # type: ignore[attr-defined]
        owner.step = step_then_end  # type: ignore[method-assign]
        self._step.callback(_put_back, weakref.ref(owner), weakref.ref(step_then_end))


def _put_back(owner: weakref.ref[Any], step_then_end: weakref.ref[Any]) -> None:
    """The step that was there, where the owner still is and nobody has replaced it since."""
    there, ours = owner(), step_then_end()
    if there is None or ours is None or vars(there).get("step") is not ours:
        return
    if ours.before is None:
        del there.step
    else:
        there.step = ours.before


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
