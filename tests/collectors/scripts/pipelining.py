"""torch.distributed.pipelining on two processes: `pipelining.py gpipe|1f1b|interleaved`."""

import sys

import torch
import torch.distributed as dist
from gpt import LENGTH, VOCABULARY, WIDTH, Block, batch, loss_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

MICRO_BATCHES = 4


class Piece(nn.Module):
    """Blocks of one stage, with their names of the whole model."""

    def __init__(self, blocks, first, last):
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.blocks = nn.ModuleDict({str(number): Block() for number in blocks})
        self.head = nn.Linear(WIDTH, VOCABULARY) if last else None

    def forward(self, x):
        if self.emb is not None:
            x = self.emb(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(x)


schedule_name = sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()
device = torch.device("cpu")
group = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",)).get_group("pp")
if schedule_name == "interleaved":
    numbers = (rank, rank + 2)
    pieces = [Piece([number], number == 0, number == 3) for number in numbers]
    stages = [
        PipelineStage(piece, number, 4, device, group=group) for piece, number in zip(pieces, numbers, strict=True)
    ]
    schedule = ScheduleInterleaved1F1B(stages, MICRO_BATCHES, loss_fn=loss_of)
else:
    pieces = [Piece([2 * rank, 2 * rank + 1], rank == 0, rank == 1)]
    stage = PipelineStage(pieces[0], rank, 2, device, group=group)
    schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule_name](stage, MICRO_BATCHES, loss_fn=loss_of)
optimizer = torch.optim.AdamW([each for piece in pieces for each in piece.parameters()], 1e-3)
for _ in range(6):
    tokens = batch(8)
    assert tokens.shape == (8, LENGTH)
    if rank == 0:
        schedule.step(tokens)
    else:
        schedule.step(target=tokens, losses=[])
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
