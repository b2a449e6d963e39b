"""Two ranks that stand for two hosts, the second with a clock that goes wrong by a known amount.

`clocks.py [SKEW_NS] [leaves]`: with `leaves`, rank 1 ends before the clocks are compared.
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
skew = int(sys.argv[1]) if len(sys.argv) > 1 else 0
socket.gethostname = lambda: f"host-{rank}"
if rank == 1:
    right = time.time_ns
    time.time_ns = lambda: right() + skew

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(6):
    if "leaves" in sys.argv and rank == 1 and step == 2:
        break
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
sys.stdout.write(f"rank {rank} trained\n")
if "leaves" not in sys.argv:
    dist.destroy_process_group()
