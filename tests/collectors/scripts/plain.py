"""A plain loop that knows nothing of recording: `plain.py [STEPS] [ACCUMULATED]`."""

import sys

import torch
from gpt import GPT, batch, loss_of

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 6
accumulated = int(sys.argv[2]) if len(sys.argv) > 2 else 1
torch.manual_seed(0)
torch.set_num_threads(1)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(steps):
    for _ in range(accumulated):
        tokens = batch()
        loss = loss_of(model(tokens), tokens) / accumulated
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.9f}")
