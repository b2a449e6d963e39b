"""Records ddp_gpt_cpu/: two ranks train a tiny GPT on the CPU under torch.profiler. Out: a trace per rank.

Run it in an environment of its own (the analyzer itself never needs torch), with the working directory at `samples/`:

    python -m venv ../build/env && ../build/env/bin/pip install torch==2.13.0 && ../build/env/bin/pip install numpy
    ../build/env/bin/torchrun --standalone --nproc-per-node 2 record_ddp.py ddp_gpt_cpu

A new recording has new times: the numbers in the README and in tests/test_samples.py then have to be derived again.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

VOCABULARY: Final = 128
HIDDEN: Final = 64
HEADS: Final = 4
BLOCKS: Final = 3
CHECKPOINTED: Final = 1
BATCH: Final = 2
TOKENS: Final = 16
STEPS: Final = {"wait": 1, "warmup": 1, "active": 2}
HOST: Final = "host-a"


class Attention(nn.Module):
    """Causal self-attention with one projection for query, key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.proj = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        """Attend along dimension 1 of [batch, tokens, hidden]."""
        batch, tokens, _ = x.shape
        heads = self.qkv(x).view(batch, tokens, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(batch, tokens, HIDDEN))


class Block(nn.Module):
    """One transformer layer: attention and MLP, each behind a norm and inside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(HIDDEN), Attention()
        self.norm2 = nn.LayerNorm(HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out as in."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Embedding, blocks, norm, head. Block number CHECKPOINTED keeps no activations: backward recomputes it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, tokens, vocabulary]."""
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if number == CHECKPOINTED else block(x)
        return self.head(self.norm(x))


def train(profiler: profile) -> None:
    """Run every step of the schedule; each ends with profiler.step()."""
    # A small bucket makes several all-reduces per step, so that some overlap with backward.
    model = nn.parallel.DistributedDataParallel(GPT(), bucket_cap_mb=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(sum(STEPS.values())):
        tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS))
        logits = model(tokens)
        functional.cross_entropy(logits.view(-1, VOCABULARY), tokens.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()


def neutral(text: str) -> str:
    """The trace without what names the recording machine: its paths, its host, its temporary file.

    Edits text, not parsed JSON, so that every number stays as the profiler wrote it.
    """
    site_packages = sysconfig.get_path("purelib")
    prefixes = {
        f"{site_packages}/": "site-packages/",
        f"{sysconfig.get_path('stdlib')}/": "lib/",
        f"{Path(__file__).parent.resolve()}/": "samples/",
        f"{sys.prefix}/": "env/",
    }
    for prefix, replacement in prefixes.items():
        text = text.replace(prefix, replacement)
    text = re.sub(r'"host_name": "[^"]*"', f'"host_name": "{HOST}"', text)
    return re.sub(r'"traceName": "[^"]*"', '"traceName": "trace.json"', text)


def save(profiler: profile, path: Path) -> None:
    """Write the trace to `path` as reproducible gzip."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(raw))
        text = neutral(raw.read_text())
    json.loads(text)  # the edits above must leave valid JSON
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def main(folder: str) -> None:
    """Record into `folder`, one file per rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder, f"rank-{dist.get_rank():05d}.trace.json.gz")
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(repeat=1, **STEPS),
        on_trace_ready=lambda profiler: save(profiler, path),
        record_shapes=True,
        with_stack=True,
    ) as profiler:
        train(profiler)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
