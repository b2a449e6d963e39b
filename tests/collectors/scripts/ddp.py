"""DDP on two processes; --accumulate N micro-batches a step."""

import sys

import torch
import torch.distributed as dist
from gpt import GPT, batch, loss_of
from torch.nn.parallel import DistributedDataParallel

accumulated = int(sys.argv[1]) if len(sys.argv) > 1 else 1
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(GPT())
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(6):
    for _ in range(accumulated):
        tokens = batch()
        loss_of(model(tokens), tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
# A model that outlives its process group can abort gloo's threads at exit, recorded or not.
dist.barrier()
del model, optimizer
dist.destroy_process_group()
