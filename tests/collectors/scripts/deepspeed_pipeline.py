"""DeepSpeed's PipelineEngine with two stages: `deepspeed_pipeline.py [checkpoint]`."""

import sys

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule
from gpt import VOCABULARY, WIDTH, Block, batch, loss_of
from torch import nn

checkpointed = "checkpoint" in sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)
deepspeed.init_distributed(dist_backend="gloo")


class BlockPipe(Block):
    """The only layer that is checkpointed: an embedding has no input that takes a gradient."""


layers = [LayerSpec(nn.Embedding, VOCABULARY, WIDTH), *(LayerSpec(BlockPipe) for _ in range(4))]
net = PipelineModule(
    layers=[*layers, LayerSpec(nn.Linear, WIDTH, VOCABULARY)],
    num_stages=2,
    loss_fn=loss_of,
    partition_method="uniform",
    activation_checkpoint_interval=int(checkpointed),
    checkpointable_layers=["BlockPipe"] if checkpointed else None,
)
engine, _, _, _ = deepspeed.initialize(
    model=net,
    model_parameters=list(net.parameters()),
    config={
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "steps_per_print": 1000,
    },
)


def batches():
    while True:
        tokens = batch()
        yield tokens, tokens


data = batches()
for _ in range(6):
    engine.train_batch(data_iter=data)
dist.barrier()
dist.destroy_process_group()
