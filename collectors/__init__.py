"""Records training steps with torch.profiler, with the names and places that Kineto does not write.

    with collectors.collect("traces/", model=model) as collection:
        for batch in batches:
            train(batch)
            collection.step()

Runs inside the training job: torch yes, pandas no.
"""

from __future__ import annotations

import atexit
import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from collectors.errors import CollectError
from collectors.options import Options, options

if TYPE_CHECKING:
    from collectors.session import Collection, Given

__all__ = ["CollectError", "Options", "collect", "collect_steps", "lightning_callback"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def collect(out: str | os.PathLike[str], *, model: Given = None, **chosen: Any) -> Collection:
    """Record some training steps of this rank into the folder `out`.

    out: one folder for all ranks of a run. model: the modules to name: one, a list, or by name; None to find them.
    chosen: steps="6-8" or (6, 8), warmup=2, ranks=None, 0, [0, 8] or "0,8-15", passes="timing"|"structure"|"both",
    shapes=True, stack=False, memory=False, module_ranges=True, clock_probe=False, nvtx=False, max_size=None,
    overwrite=False; see `options`.

    Use it in a `with` block, and call its `step()` at the end of each training step.

    Raises: CollectError where an option means nothing, or (from `with`) the folder cannot be used.
    """
    # Here and not above, so that the command line answers wrong usage without waiting for torch.
    from collectors.session import Collection

    unknown = chosen.keys() - inspect.signature(options).parameters.keys()
    if unknown:
        known = ", ".join(list(inspect.signature(options).parameters)[1:])
        raise CollectError(f"no such option: {', '.join(sorted(unknown))}; there are {known}")
    return Collection(options(out, **chosen), model)


def collect_steps(
    out: str | os.PathLike[str], *, model: Given = None, **chosen: Any
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate the function that makes one training step: each call of it is a step; options as in `collect`.

    The recording begins with the first call, and ends with the last step that was asked for or with the process.
    """
    collection = collect(out, model=model, **chosen)

    def decorate(train_step: Callable[_P, _R]) -> Callable[_P, _R]:
        entered = False

        @wraps(train_step)
        def counted(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            nonlocal entered
            if not entered:
                entered = True
                collection.__enter__()
                atexit.register(collection.__exit__, None, None, None)
            result = train_step(*args, **kwargs)
            collection.step()
            return result

        return counted

    return decorate


def lightning_callback(out: str | os.PathLike[str], *, model: Given = None, **chosen: Any) -> Any:
    """A callback for Lightning's `Trainer(callbacks=[…])`; options as in `collect`.

    Raises: CollectError where Lightning is not installed.
    """
    from collectors.frameworks.lightning import collecting_callback

    return collecting_callback(collect(out, model=model, **chosen))
