"""Frameworks that train, each in a file of its own with the same answers. A new one is a file and a line here."""

from __future__ import annotations

from collectors.frameworks import (
    accelerate,
    ddp,
    deepspeed,
    fsdp2,
    lightning,
    megatron,
    torch_pipelining,
    transformer_engine,
)
from collectors.frameworks.framework import Facts, Framework, StepEnded

# Later ones know better: what they say replaces what the ones before them said. The order counts for steps, too.
FRAMEWORKS: tuple[Framework, ...] = (
    ddp.FRAMEWORK,
    fsdp2.FRAMEWORK,
    torch_pipelining.FRAMEWORK,
    megatron.FRAMEWORK,
    transformer_engine.FRAMEWORK,
    accelerate.FRAMEWORK,
    *lightning.FRAMEWORKS,
    deepspeed.FRAMEWORK,
)

__all__ = ["FRAMEWORKS", "Facts", "Framework", "StepEnded"]
