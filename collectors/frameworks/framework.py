"""What every framework answers. In: living objects. Out: `Facts` for the metadata; ranges and step ends on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch.nn import Module

from collectors.live_objects import LiveObjects

StepEnded = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a framework knows of this rank; None or empty where it says nothing.

    coordinates: position along each parallel dimension (dp, tp, pp, ep, cp). stage: position along the pipeline.
    stages: ranks along it. virtual_stages: pieces of the model on this rank, numbered over the whole pipeline.
    models: what it runs, by name, where this is more than the roots among the modules. notes: its settings.
    """

    coordinates: dict[str, int] = field(default_factory=dict)
    stage: int | None = None
    stages: int | None = None
    virtual_stages: tuple[int, ...] = ()
    micro_batches: int | None = None
    schedule: str | None = None
    models: dict[str, Module] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


def _nothing(alive: LiveObjects) -> Facts:
    return Facts()


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework. package: imported where it is in use. looks_for: classes whose objects it asks for.

    facts: what its objects say. ranges: a block inside which its schedule writes pipeline ranges. step_ends: a block
    inside which a function is called at the end of each training step; has_steps: whether such steps are to be expected
    of the objects that are alive.
    """

    name: str
    package: str
    looks_for: tuple[str, ...] = ()
    facts: Callable[[LiveObjects], Facts] = _nothing
    ranges: Callable[[], AbstractContextManager[None]] | None = None
    step_ends: Callable[[StepEnded, LiveObjects], AbstractContextManager[None]] | None = None
    has_steps: Callable[[LiveObjects], bool] = lambda alive: False

    def in_use(self) -> bool:
        """Whether the script has imported it."""
        return self.package in sys.modules
