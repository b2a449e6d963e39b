"""A Lightning loop with gradient accumulation, on one process or on two (DDP)."""

import os
import sys
import warnings

import lightning.pytorch as L
import torch
from gpt import GPT, batch, loss_of
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
torch.manual_seed(0)


class Tokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return batch(1)[0]


class Training(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = GPT()

    def training_step(self, tokens, index):
        return loss_of(self.model(tokens), tokens)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


devices = int(os.environ.get("WORLD_SIZE", "1"))
callbacks = []
if "callback" in sys.argv:
    import collectors

    callbacks.append(collectors.lightning_callback(sys.argv[2], steps="3-4"))
trainer = L.Trainer(
    max_steps=6,
    accelerator="cpu",
    devices=devices,
    strategy="ddp" if devices > 1 else "auto",
    accumulate_grad_batches=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=callbacks,
)
trainer.fit(Training(), DataLoader(Tokens(), batch_size=2))
