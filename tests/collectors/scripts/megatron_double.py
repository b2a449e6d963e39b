"""A training with doubles of Megatron Core's functions: its names and the order of its calls, none of its code.

Two pipeline ranks with two chunks each, interleaved; each rank runs all of its chunks here, without a peer.
"""

import os
import sys
from types import ModuleType

import torch
from gpt import WIDTH, Block

MICRO_BATCHES, CHUNKS, STAGES = 4, 2, 2
rank = int(os.environ.get("RANK", "0"))


def double(name, **functions):
    module = ModuleType(name)
    vars(module).update(functions)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            double(parent)
        setattr(sys.modules[parent], last, module)
    return module


def not_there():
    raise AssertionError("expert parallel group is not initialized")


current = [None]
state = double(
    "megatron.core.parallel_state",
    model_parallel_is_initialized=lambda: True,
    get_pipeline_model_parallel_rank=lambda: rank,
    get_pipeline_model_parallel_world_size=lambda: STAGES,
    get_virtual_pipeline_model_parallel_world_size=lambda: CHUNKS,
    get_virtual_pipeline_model_parallel_rank=lambda: current[0],
    get_tensor_model_parallel_rank=lambda: 0,
    get_tensor_model_parallel_world_size=lambda: 1,
    get_data_parallel_rank=lambda: 0,
    get_data_parallel_world_size=lambda: 1,
    get_expert_model_parallel_rank=not_there,
    get_expert_model_parallel_world_size=not_there,
)
double("megatron.core.num_microbatches_calculator", get_num_microbatches=lambda: MICRO_BATCHES)
sys.modules["megatron.core"].__version__ = "0.0.double"


def forward_step(model, value):
    return model(value)


def backward_step(output):
    output.square().mean().backward()


schedules = double("megatron.core.pipeline_parallel.schedules", forward_step=forward_step, backward_step=backward_step)


def forward_backward(chunks):
    """Looks its functions up in the module at each call, as Megatron's schedules do."""
    outputs = {}
    for chunk, model in enumerate(chunks):
        current[0] = chunk
        for micro_batch in range(MICRO_BATCHES):
            outputs[chunk, micro_batch] = schedules.forward_step(model, torch.randn(2, 16, WIDTH))
    for chunk in reversed(range(CHUNKS)):
        current[0] = chunk
        for micro_batch in range(MICRO_BATCHES):
            schedules.backward_step(outputs.pop((chunk, micro_batch)))


torch.set_num_threads(1)
torch.manual_seed(0)
chunks = [Block() for _ in range(CHUNKS)]
optimizer = torch.optim.SGD([each for chunk in chunks for each in chunk.parameters()], 0.1)
for _ in range(6):
    forward_backward(chunks)
    optimizer.step()
    optimizer.zero_grad()
