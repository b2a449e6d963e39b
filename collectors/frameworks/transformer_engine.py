"""Transformer Engine: which of its modules there are and how they are set; its NVTX ranges as ranges of the trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.autograd.profiler import record_function

from collectors.frameworks.framework import Facts, Framework
from collectors.live_objects import LiveObjects
from collectors.models import MODULE
from collectors.patches import replaced

_PACKAGE: Final = "transformer_engine"
_SETTINGS: Final = {
    "sequence_parallel": "sequence_parallel",
    "fuse_wgrad_accumulation": "fused_weight_gradient",
    "fp8": "fp8",
    "tp_size": "tensor_parallel",
    "ub_overlap_ag": "overlaps_all_gather",
    "ub_overlap_rs": "overlaps_reduce_scatter",
}


def _facts(alive: LiveObjects) -> Facts:
    """Classes of its modules with their number, each setting with the values met, and the fp8 recipe."""
    modules = [each for each in alive.of(MODULE) if type(each).__module__.partition(".")[0] == _PACKAGE]
    if not modules:
        return Facts()
    notes: dict[str, Any] = {"modules": dict(sorted(Counter(type(each).__name__ for each in modules).items()))}
    for attribute, setting in _SETTINGS.items():
        met = {value for each in modules if isinstance(value := vars(each).get(attribute), (bool, int))}
        if met:
            notes[setting] = sorted(met)
    recipes = {_recipe(each) for each in modules} - {None}
    if recipes:
        notes["fp8_recipe"] = sorted(str(each) for each in recipes)
    return Facts(notes=notes)


def _recipe(module: Any) -> str | None:
    """Class of the recipe that a module last ran with."""
    recipe = vars(module).get("fp8_meta", {})
    recipe = recipe.get("recipe") if isinstance(recipe, dict) else None
    return None if recipe is None else type(recipe).__name__


@contextmanager
def nvtx_ranges() -> Iterator[None]:
    """NVTX ranges that code pushes through torch become ranges of the trace as well; without CUDA nothing else does.

    Transformer Engine pushes any only where NVTE_NVTX_ENABLED=1 was set before its import.
    """
    push: Callable[[str], Any] = torch.cuda.nvtx.range_push
    pop: Callable[[], Any] = torch.cuda.nvtx.range_pop
    opened: list[record_function] = []
    with_cuda = torch.cuda.is_available()

    def pushed(message: str) -> Any:
        each = record_function(message)
        each.__enter__()
        opened.append(each)
        return push(message) if with_cuda else len(opened)

    def popped() -> Any:
        if opened:
            opened.pop().__exit__(None, None, None)
        return pop() if with_cuda else len(opened)

    with replaced(torch.cuda.nvtx, "range_push", pushed), replaced(torch.cuda.nvtx, "range_pop", popped):
        try:
            yield
        finally:
            while opened:
                opened.pop().__exit__(None, None, None)


FRAMEWORK = Framework("transformer_engine", _PACKAGE, (MODULE,), _facts)
