"""torch.distributed.pipelining: stages, schedule, and a range around each forward and backward of a micro-batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from torch.autograd.profiler import record_function

from collectors.frameworks.framework import Facts, Framework
from collectors.live_objects import LiveObjects
from collectors.patches import replaced
from tracetools.trace_file import pipeline_range_name

_STAGE = "torch.distributed.pipelining.stage._PipelineStageBase"
_SCHEDULE = "torch.distributed.pipelining.schedules._PipelineSchedule"
_METHODS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


def _facts(alive: LiveObjects) -> Facts:
    stages = sorted(alive.of(_STAGE), key=lambda stage: int(stage.stage_index))
    if not stages:
        return Facts()
    schedules = alive.of(_SCHEDULE)
    rank = int(stages[0].group_rank)
    several = len(stages) > 1
    return Facts(
        coordinates={"pp": rank},
        stage=rank,
        stages=int(stages[0].group_size),
        virtual_stages=tuple(int(stage.stage_index) for stage in stages),
        micro_batches=int(schedules[0]._n_microbatches) if len(schedules) == 1 else None,
        schedule=type(schedules[0]).__name__ if len(schedules) == 1 else None,
        models={f"stage_{stage.stage_index}" if several else "": stage.submod for stage in stages},
    )


@contextmanager
def _ranges() -> Iterator[None]:
    from torch.distributed.pipelining.stage import _PipelineStageBase

    with ExitStack() as patched:
        for name in _METHODS:
            method = getattr(_PipelineStageBase, name, None)
            if method is not None:
                patched.enter_context(replaced(_PipelineStageBase, name, _ranged(method)))
        yield


def _ranged(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method inside a range; the micro-batch is its first argument, under whatever name."""
    signature = inspect.signature(method)
    micro_batch = list(signature.parameters)[1]

    @wraps(method)
    def with_range(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        work = _work(method.__name__, given.arguments.get("full_backward", True))
        with record_function(pipeline_range_name(work, int(args[0].stage_index), int(given.arguments[micro_batch]))):
            return method(*args, **kwargs)

    return with_range


def _work(name: str, full_backward: bool) -> str:
    if name == "forward_one_chunk":
        return "forward"
    if name == "backward_weight_one_chunk":
        return "weight_grad"
    return "backward" if full_backward else "input_grad"


FRAMEWORK = Framework("torch_pipelining", "torch.distributed.pipelining", (_STAGE, _SCHEDULE), _facts, _ranges)
