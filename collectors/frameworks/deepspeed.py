"""DeepSpeed: grid and stages, a range around each instruction of its pipeline, and the ends of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from torch.autograd.profiler import record_function

from collectors.frameworks.framework import Facts, Framework, StepEnded
from collectors.live_objects import LiveObjects
from collectors.patches import replaced
from tracetools.trace_file import pipeline_range_name

_ENGINE = "deepspeed.runtime.engine.DeepSpeedEngine"
_PIPELINE = "deepspeed.runtime.pipe.engine.PipelineEngine"

# Instruction of the schedule → word of the range, and whether it is of one micro-batch.
_INSTRUCTIONS: Final = {
    "ForwardPass": ("forward", True),
    "BackwardPass": ("backward", True),
    "LoadMicroBatch": ("load_micro_batch", True),
    "SendActivation": ("send_activation", True),
    "RecvActivation": ("recv_activation", True),
    "SendGrad": ("send_grad", True),
    "RecvGrad": ("recv_grad", True),
    "ReduceGrads": ("reduce_grads", False),
    "ReduceTiedGrads": ("reduce_tied_grads", False),
    "OptimizerStep": ("optimizer_step", False),
}


def _facts(alive: LiveObjects) -> Facts:
    engines = alive.of(_ENGINE)
    notes: dict[str, Any] = {"zero_stage": _zero_stage(engines[0])} if engines else {}
    pipelines = alive.of(_PIPELINE)
    if len(pipelines) != 1:
        return Facts(notes=notes)
    engine = pipelines[0]
    grid = engine.grid
    stage = int(engine.stage_id)
    coordinates = {"pp": stage, "dp": int(grid.get_data_parallel_rank())}
    if (tensor := int(grid.get_slice_parallel_world_size())) > 1:
        coordinates["tp"] = int(grid.get_slice_parallel_rank())
    notes |= {"layers": [int(engine.module._local_start), int(engine.module._local_stop)], "tensor_parallel": tensor}
    return Facts(
        coordinates=coordinates,
        stage=stage,
        stages=int(engine.num_stages),
        virtual_stages=(stage,),
        micro_batches=int(engine.micro_batches),
        schedule="TrainSchedule",
        models={"": engine},
        notes=notes,
    )


def _zero_stage(engine: Any) -> int | None:
    return int(engine.zero_optimization_stage()) if hasattr(engine, "zero_optimization_stage") else None


@contextmanager
def _ranges() -> Iterator[None]:
    from deepspeed.runtime.pipe.engine import PipelineEngine

    counts: Counter[tuple[int, str]] = Counter()
    ranged = {kind: _ranged(kind.__name__, run, counts) for kind, run in PipelineEngine._INSTRUCTION_MAP.items()}
    with replaced(PipelineEngine, "_INSTRUCTION_MAP", ranged):
        yield


def _ranged(instruction: str, run: Callable[..., Any], counts: Counter[tuple[int, str]]) -> Callable[..., Any]:
    """The instruction inside a range. Each kind comes once for each micro-batch of a step, in their order."""
    if instruction not in _INSTRUCTIONS:
        return run
    work, of_one = _INSTRUCTIONS[instruction]

    @wraps(run)
    def with_range(engine: Any, *args: Any, **kwargs: Any) -> Any:
        nth = counts[id(engine), instruction]
        counts[id(engine), instruction] += 1
        micro_batch = nth % int(engine.micro_batches) if of_one else None
        with record_function(pipeline_range_name(work, int(engine.stage_id), micro_batch)):
            return run(engine, *args, **kwargs)

    return with_range


@contextmanager
def _step_ends(ended: StepEnded, alive: LiveObjects) -> Iterator[None]:
    """A pipeline's step is one `train_batch`; another engine's is the `step` that ends an accumulation."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.pipe.engine import PipelineEngine

    train_batch, step = PipelineEngine.train_batch, DeepSpeedEngine.step

    @wraps(train_batch)
    def counted_batch(engine: Any, *args: Any, **kwargs: Any) -> Any:
        loss = train_batch(engine, *args, **kwargs)
        ended()
        return loss

    @wraps(step)
    def counted_step(engine: Any, *args: Any, **kwargs: Any) -> Any:
        last = bool(engine.is_gradient_accumulation_boundary())
        result = step(engine, *args, **kwargs)
        if last:
            ended()
        return result

    with replaced(PipelineEngine, "train_batch", counted_batch), replaced(DeepSpeedEngine, "step", counted_step):
        yield


def _has_steps(alive: LiveObjects) -> bool:
    return bool(alive.of(_ENGINE))


FRAMEWORK = Framework("deepspeed", "deepspeed", (_ENGINE, _PIPELINE), _facts, _ranges, _step_ends, _has_steps)
