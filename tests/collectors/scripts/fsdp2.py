"""FSDP2 (fully_shard) on two processes, each block sharded."""

import torch
import torch.distributed as dist
from gpt import GPT, batch, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
model = GPT()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(6):
    tokens = batch()
    loss_of(model(tokens), tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
