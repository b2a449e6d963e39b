"""An Accelerate loop with gradient accumulation."""

import torch
from accelerate import Accelerator
from gpt import GPT, batch, loss_of

torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = GPT()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3))
for _ in range(12):
    with accelerator.accumulate(model):
        tokens = batch()
        accelerator.backward(loss_of(model(tokens), tokens))
        optimizer.step()
        optimizer.zero_grad()
# Together: gloo may end a process that leaves while its peer still talks.
accelerator.wait_for_everyone()
accelerator.end_training()
