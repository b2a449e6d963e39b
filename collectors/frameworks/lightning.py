"""Lightning: its steps, through a callback that joins the running trainer."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from collectors.errors import CollectError
from collectors.frameworks.framework import Framework, StepEnded
from collectors.live_objects import LiveObjects

_TRAINERS = (
    "lightning.pytorch.trainer.trainer.Trainer",
    "pytorch_lightning.trainer.trainer.Trainer",
)


def step_callback(package: str, ended: StepEnded) -> Any:
    """A callback that calls `ended` after each batch on which the optimizer stepped.

    package: "lightning.pytorch" or "pytorch_lightning", of which the script uses one.
    """
    base = sys.modules[package].Callback

    class StepEnds(base):  # type: ignore[misc, valid-type]
        """Counts optimizer steps, so that the batches of one accumulation are one step."""

        def __init__(self) -> None:
            self._steps: int | None = None

        def on_train_batch_start(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            """The count that the batch begins with."""
            if self._steps is None:
                self._steps = trainer.global_step

        def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            """Ends a step if the optimizer has stepped since the first batch that was seen to begin."""
            before, self._steps = self._steps, trainer.global_step
            if before is not None and trainer.global_step > before:
                ended()

    return StepEnds()


def collecting_callback(collection: Any) -> Any:
    """A callback that opens a collection when training starts, and closes it when it ends.

    Raises: CollectError where Lightning is not installed.
    """
    package = _package()
    counted = step_callback(package, collection.step)

    class Collecting(type(counted)):  # type: ignore[misc]
        """Records the steps of one `fit`."""

        def on_train_start(self, trainer: Any, *args: Any) -> None:
            """Begins."""
            collection.__enter__()

        def on_train_end(self, trainer: Any, *args: Any) -> None:
            """Ends, whether or not all steps were reached."""
            collection.__exit__(None, None, None)

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            """Saves what is there."""
            collection.__exit__(type(exception), exception, exception.__traceback__)

    return Collecting()


def _package() -> str:
    for package in ("lightning.pytorch", "pytorch_lightning"):
        if package in sys.modules or importlib.util.find_spec(package.partition(".")[0]) is not None:
            importlib.import_module(package)
            return package
    raise CollectError("lightning is not installed; pip install lightning, or use collectors.collect in your own loop")


@contextmanager
def _step_ends(ended: StepEnded, alive: LiveObjects) -> Iterator[None]:
    joined = []
    for name in _TRAINERS:
        for trainer in alive.of(name):
            callback = step_callback(name.partition(".trainer")[0], ended)
            trainer.callbacks.append(callback)
            joined.append((trainer, callback))
    try:
        yield
    finally:
        for trainer, callback in joined:
            # A new list: the trainer may be on its way through the old one.
            trainer.callbacks = [each for each in trainer.callbacks if each is not callback]


def _has_steps(alive: LiveObjects) -> bool:
    """Trainers that train: one that has ended leaves its loops alive."""
    return any(trainer.training for name in _TRAINERS for trainer in alive.of(name))


def _framework(package: str, name: str) -> Framework:
    return Framework("lightning", package, (name,), step_ends=_step_ends, has_steps=_has_steps)


FRAMEWORKS = (_framework("lightning.pytorch", _TRAINERS[0]), _framework("pytorch_lightning", _TRAINERS[1]))
