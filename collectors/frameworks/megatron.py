"""Megatron Core: coordinates from its parallel state, a range around each forward and backward of a micro-batch.

No GPU was at hand when this was written: it was held to doubles of Megatron's functions, not to Megatron itself.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import ModuleType
from typing import Any, Final

from torch.autograd.profiler import record_function

from collectors.frameworks.framework import Facts, Framework
from collectors.live_objects import LiveObjects
from collectors.patches import replaced
from tracetools.trace_file import pipeline_range_name

_STATE = "megatron.core.parallel_state"
_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_CALCULATOR = "megatron.core.num_microbatches_calculator"

# Dimension → Megatron's functions for the position along it and for its length.
_DIMENSIONS: Final = {
    "pp": ("get_pipeline_model_parallel_rank", "get_pipeline_model_parallel_world_size"),
    "tp": ("get_tensor_model_parallel_rank", "get_tensor_model_parallel_world_size"),
    "dp": ("get_data_parallel_rank", "get_data_parallel_world_size"),
    "cp": ("get_context_parallel_rank", "get_context_parallel_world_size"),
    "ep": ("get_expert_model_parallel_rank", "get_expert_model_parallel_world_size"),
}


def _facts(alive: LiveObjects) -> Facts:
    state = sys.modules.get(_STATE)
    if state is None or not _asked(state, "model_parallel_is_initialized"):
        return Facts()
    coordinates = {
        name: position
        for name, (rank, size) in _DIMENSIONS.items()
        if (_asked(state, size) or 1) > 1 and (position := _asked(state, rank)) is not None
    }
    stages = _asked(state, "get_pipeline_model_parallel_world_size")
    stage = _asked(state, "get_pipeline_model_parallel_rank")
    chunks = _asked(state, "get_virtual_pipeline_model_parallel_world_size") or 1
    numbered = tuple(stage + chunk * stages for chunk in range(chunks)) if stage is not None and stages else ()
    calculator = sys.modules.get(_CALCULATOR)
    return Facts(
        coordinates=coordinates,
        stage=stage,
        stages=stages,
        virtual_stages=numbered,
        micro_batches=_asked(calculator, "get_num_microbatches") if calculator else None,
        schedule=("interleaved 1F1B" if chunks > 1 else "1F1B") if stages and stages > 1 else None,
    )


def _asked(module: ModuleType, function: str) -> int | None:
    """Answer of a function that a version may lack, or that refuses before the groups are made."""
    try:
        answer = getattr(module, function)()
    except (AttributeError, AssertionError):
        return None
    return None if answer is None else int(answer)


@contextmanager
def _ranges() -> Iterator[None]:
    schedules, state = sys.modules.get(_SCHEDULES), sys.modules.get(_STATE)
    with ExitStack() as patched:
        counts: Counter[tuple[str, int]] = Counter()
        for name, work in (("forward_step", "forward"), ("backward_step", "backward")):
            run = getattr(schedules, name, None)
            if run is not None and state is not None:
                patched.enter_context(replaced(schedules, name, _ranged(run, work, state, counts)))
        yield


def _ranged(
    run: Callable[..., Any], work: str, state: ModuleType, counts: Counter[tuple[str, int]]
) -> Callable[..., Any]:
    """The step inside a range; a chunk's micro-batches come in their order."""

    @wraps(run)
    def with_range(*args: Any, **kwargs: Any) -> Any:
        stage = _asked(state, "get_pipeline_model_parallel_rank") or 0
        chunk = _asked(state, "get_virtual_pipeline_model_parallel_rank") or 0
        stage += chunk * (_asked(state, "get_pipeline_model_parallel_world_size") or 1)
        calculator = sys.modules.get(_CALCULATOR)
        count = (_asked(calculator, "get_num_microbatches") if calculator else None) or 0
        nth = counts[work, stage]
        counts[work, stage] += 1
        with record_function(pipeline_range_name(work, stage, nth % count if count else None)):
            return run(*args, **kwargs)

    return with_range


FRAMEWORK = Framework("megatron", "megatron.core", (), _facts, _ranges)
