"""A GPT of four blocks on two pipeline stages: what `make demo` records. Knows nothing of recording.

torchrun --nproc-per-node 2 -m tracetools.collect --out traces samples/train_pipeline.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, LENGTH, MICRO_BATCHES, STEPS = 1000, 128, 4, 64, 4, 10


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Shape in and out: batch, length, width."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    """One transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Shape in and out: batch, length, width."""
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class Stage(nn.Module):
    """Two blocks under the names that they have in the whole model, with the embedding first or the head last."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH) if stage == 0 else nn.Identity()
        self.blocks = nn.ModuleDict({str(number): Block() for number in (2 * stage, 2 * stage + 1)})
        self.head = nn.Linear(WIDTH, VOCABULARY) if stage == 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or activations in, activations or logits out."""
        x = self.emb(x)
        for block in self.blocks.values():
            x = block(x)
        return self.head(x)


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy over all positions."""
    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens.reshape(-1))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = Stage(rank)
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(STEPS):
        tokens = torch.randint(0, VOCABULARY, (2 * MICRO_BATCHES, LENGTH))
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=tokens, losses=[])
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
