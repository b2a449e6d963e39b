"""A training with doubles of Transformer Engine's modules: its names, none of its code, nothing of its cost."""

import sys
from contextlib import suppress
from types import ModuleType

import torch
from torch import nn
from torch.nn import functional as F

sys.modules["transformer_engine"] = ModuleType("transformer_engine")
sys.modules["transformer_engine"].__version__ = "0.0.double"


def nvtx(call, *message):
    with suppress(RuntimeError):  # a torch without CUDA has no NVTX
        getattr(torch.cuda.nvtx, call)(*message)


class _LayerNormLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, inp):
        ctx.save_for_backward(weight, inp)
        return F.layer_norm(inp, inp.shape[-1:]) @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        weight, inp = ctx.saved_tensors
        return grad.flatten(0, -2).t() @ F.layer_norm(inp, inp.shape[-1:]).flatten(0, -2), grad @ weight


class LayerNormLinear(nn.Module):
    """Double of te.LayerNormLinear."""

    def __init__(self, width_in, width_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width_out, width_in) / width_in)
        self.sequence_parallel = False
        self.fuse_wgrad_accumulation = True
        self.fp8 = False
        self.tp_size = 1

    def forward(self, x):
        nvtx("range_push", "LayerNormLinear forward")
        y = _LayerNormLinear.apply(self.weight, x)
        nvtx("range_pop")
        return y


LayerNormLinear.__module__ = "transformer_engine.pytorch.module.layernorm_linear"

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(LayerNormLinear(32, 64), nn.GELU(), nn.Linear(64, 32))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(6):
    model(torch.randn(4, 8, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
