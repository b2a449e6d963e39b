"""Small models and layers to record in a test, each with inputs; what they compute is of no interest, only how much."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

Case = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor], *parts: nn.Module, **weights: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(parts)
        for name, value in weights.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*self.parts, *self._parameters.values(), *inputs)


class Attention(nn.Module):
    """Self-attention of one kind: "math" (products and softmax) or "fused" (what torch picks)."""

    def __init__(self, width: int, heads: int, kind: str, causal: bool = False, groups: int | None = None) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups or heads
        self.head = width // heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * self.groups * self.head)
        self.out = nn.Linear(width, width, bias=False)
        self.kind, self.causal = kind, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query = self.query(x).view(batch, length, self.heads, self.head).transpose(1, 2)
        key, value = self.key_value(x).view(batch, length, 2, self.groups, self.head).permute(2, 0, 3, 1, 4)
        if self.groups != self.heads:
            key, value = (each.repeat_interleave(self.heads // self.groups, 1) for each in (key, value))
        if self.kind == "math":
            scores = query @ key.transpose(-2, -1) / self.head**0.5
            if self.causal:
                scores = scores + torch.full((length, length), -1e9).triu(1)
            mixed = scores.softmax(-1) @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kind: str, causal: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, heads, kind, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """Token and position embeddings, causal blocks, a head that may share the embedding's weight."""

    def __init__(self, *, again: str = "none", tied: bool = False, kind: str = "math") -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, 24), nn.Embedding(12, 24)
        self.blocks = nn.ModuleList([Block(24, 3, kind, causal=True) for _ in range(2)])
        self.head = nn.Linear(24, 50, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        self.again = again

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x) if self.again == "none" else checkpoint(block, x, use_reentrant=self.again == "reentrant")
        return self.head(x)


class ViT(nn.Module):
    """Patches by a strided convolution, blocks, the mean of all patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 4, stride=4)
        self.blocks = nn.Sequential(Block(24, 2, "math"), Block(24, 2, "math"))
        self.head = nn.Linear(24, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


class Residual(nn.Module):
    """A bottleneck as in ResNet: 1×1, 3×3 and 1×1 convolutions beside a projection."""

    def __init__(self, inner: int, outer: int, stride: int, inputs: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.beside = nn.Conv2d(inputs, outer, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.way(x) + self.beside(x))


class LoRA(nn.Module):
    """A frozen linear layer and a trained update of low rank."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.up(self.down(x))


class Experts(nn.Module):
    """A mixture of experts: each token goes to the expert that its gate likes best."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(experts)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        out = x.new_zeros(x.shape[0], 2 * x.shape[1])
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero().flatten()
            out = out.index_add(0, mine, expert(x[mine]) * weights[mine, None])
        return out


def _mlp(*widths: int, again: str = "none") -> nn.Module:
    layers = [nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in itertools.pairwise(widths)]
    if again == "none":
        return nn.Sequential(*layers)

    def run(*parts_and_x: Any) -> torch.Tensor:
        *parts, x = parts_and_x
        for part in parts:
            x = checkpoint(part, x, use_reentrant=again == "reentrant")
        return x

    return Call(run, *layers)


def _by_products(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """With attention as products and softmax, which torch's counter knows on the CPU."""
    with sdpa_kernel(SDPBackend.MATH):
        return layer(x)


def _x(*sizes: int, grad: bool = True) -> torch.Tensor:
    return torch.randn(*sizes, requires_grad=grad)


def _tokens() -> torch.Tensor:
    return torch.randint(0, 50, (2, 12))


def _frozen(model: nn.Module, *names: str) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(each in name for each in names))
    return model


CASES: Final[dict[str, Callable[[], Case]]] = {
    "linear": lambda: (nn.Linear(24, 10), (_x(6, 24),)),
    "linear_without_bias": lambda: (nn.Linear(24, 10, bias=False), (_x(6, 24),)),
    "linear_square": lambda: (nn.Linear(16, 16), (_x(16, 16),)),
    "linear_square_without_bias": lambda: (nn.Linear(16, 16, bias=False), (_x(16, 16),)),
    "linear_rows_as_outputs": lambda: (nn.Linear(24, 16), (_x(16, 24),)),
    "linear_3d": lambda: (nn.Linear(24, 10), (_x(2, 5, 24),)),
    "linear_3d_without_bias": lambda: (nn.Linear(24, 10, bias=False), (_x(2, 5, 24),)),
    "first_layer": lambda: (_mlp(24, 20, 10), (_x(6, 24, grad=False),)),
    "frozen_first": lambda: (_frozen(_mlp(24, 20, 10), "0.0"), (_x(6, 24),)),
    "frozen_all_but_bias": lambda: (_frozen(_mlp(24, 20, 10), "weight"), (_x(6, 24),)),
    "bfloat16": lambda: (_mlp(24, 20, 10).bfloat16(), (torch.randn(6, 24, dtype=torch.bfloat16, requires_grad=True),)),
    "double": lambda: (nn.Linear(24, 10).double(), (torch.randn(6, 24, dtype=torch.float64, requires_grad=True),)),
    "weight_first": lambda: (Call(lambda w, x: w @ x, w=_x(10, 24)), (_x(24, 6),)),
    "weight_second": lambda: (Call(lambda w, x: x @ w, w=_x(24, 10)), (_x(6, 24),)),
    "batched": lambda: (Call(lambda a, b: a @ b), (_x(3, 4, 5), _x(3, 5, 6))),
    "batched_weight": lambda: (Call(lambda w, x: torch.bmm(x, w), w=_x(3, 5, 6)), (_x(3, 4, 5),)),
    "baddbmm": lambda: (Call(torch.baddbmm), (_x(3, 4, 6), _x(3, 4, 5), _x(3, 5, 6))),
    "addmm": lambda: (Call(torch.addmm), (_x(4, 6), _x(4, 5), _x(5, 6))),
    "einsum": lambda: (Call(lambda a, b: torch.einsum("bij,kj->bik", a, b)), (_x(3, 4, 5), _x(6, 5))),
    "bilinear_form": lambda: (Call(lambda w, x: (x @ w) @ x.T, w=_x(24, 24)), (_x(6, 24),)),
    "conv1d": lambda: (nn.Conv1d(4, 6, 3, padding=1), (_x(2, 4, 20),)),
    "conv1d_dilated": lambda: (nn.Conv1d(4, 6, 3, dilation=2), (_x(2, 4, 20),)),
    "conv2d": lambda: (nn.Conv2d(3, 8, 3), (_x(2, 3, 12, 12),)),
    "conv2d_strided": lambda: (nn.Conv2d(3, 8, 5, stride=2, padding=2), (_x(2, 3, 13, 13),)),
    "conv2d_first": lambda: (nn.Conv2d(3, 8, 3), (_x(2, 3, 12, 12, grad=False),)),
    "conv2d_frozen": lambda: (_frozen(nn.Conv2d(3, 8, 3), "weight"), (_x(2, 3, 12, 12),)),
    "conv2d_uneven": lambda: (nn.Conv2d(3, 8, (3, 1), stride=(1, 2), padding=(1, 0)), (_x(2, 3, 9, 12),)),
    "conv3d": lambda: (nn.Conv3d(2, 4, 3), (_x(1, 2, 6, 6, 6),)),
    "conv_transposed_1d": lambda: (nn.ConvTranspose1d(4, 6, 3, stride=2), (_x(2, 4, 9),)),
    "conv_transposed_2d": lambda: (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), (_x(2, 4, 7, 7),)),
    "conv_transposed_3d": lambda: (nn.ConvTranspose3d(2, 3, 3), (_x(1, 2, 4, 4, 4),)),
    "attention_math": lambda: (Attention(24, 3, "math"), (_x(2, 12, 24),)),
    "attention_math_causal": lambda: (Attention(24, 3, "math", causal=True), (_x(2, 12, 24),)),
    "attention_grouped": lambda: (Attention(24, 4, "math", groups=2), (_x(2, 12, 24),)),
    "attention_square": lambda: (Attention(16, 1, "math"), (_x(1, 16, 16),)),
    "multihead": lambda: (
        Call(lambda layer, x: layer(x, x, x, need_weights=True)[0], nn.MultiheadAttention(24, 3, batch_first=True)),
        (_x(2, 12, 24),),
    ),
    "gpt": lambda: (GPT(), (_tokens(),)),
    "gpt_tied": lambda: (GPT(tied=True), (_tokens(),)),
    "gpt_checkpoint": lambda: (GPT(again="non_reentrant"), (_tokens(),)),
    "gpt_checkpoint_reentrant": lambda: (GPT(again="reentrant"), (_tokens(),)),
    "mlp_checkpoint": lambda: (_mlp(24, 20, 10, again="non_reentrant"), (_x(6, 24),)),
    "mlp_checkpoint_reentrant": lambda: (_mlp(24, 20, 10, again="reentrant"), (_x(6, 24),)),
    "encoder_layer": lambda: (
        Call(_by_products, nn.TransformerEncoderLayer(24, 3, 48, dropout=0.0, batch_first=True)),
        (_x(2, 12, 24),),
    ),
    "vit": lambda: (ViT(), (_x(2, 3, 16, 16),)),
    "resnet": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False),
            nn.MaxPool2d(2),
            Residual(4, 16, 1, 8),
            Residual(8, 32, 2, 16),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        ),
        (_x(2, 3, 32, 32, grad=False),),
    ),
    "unet": lambda: (
        Call(
            lambda down, up, x: up(down(x)) + x,
            nn.Conv2d(4, 8, 2, stride=2),
            nn.ConvTranspose2d(8, 4, 2, stride=2),
        ),
        (_x(2, 4, 8, 8),),
    ),
    "lora": lambda: (nn.Sequential(LoRA(nn.Linear(24, 20), 3), nn.ReLU(), LoRA(nn.Linear(20, 10), 3)), (_x(6, 24),)),
    "experts": lambda: (Experts(16, 3), (_x(20, 16),)),
    "weight_norm": lambda: (nn.utils.parametrizations.weight_norm(nn.Linear(24, 10)), (_x(6, 24),)),
    "shared_layer": lambda: (Call(lambda layer, x: layer(layer(x)), nn.Linear(16, 16)), (_x(6, 16),)),
    "gated_mlp": lambda: (
        Call(
            lambda gate, up, down, x: down(functional.silu(gate(x)) * up(x)),
            nn.Linear(24, 40, bias=False),
            nn.Linear(24, 40, bias=False),
            nn.Linear(40, 24, bias=False),
        ),
        (_x(2, 5, 24),),
    ),
    "rnn_cell": lambda: (Call(lambda cell, x, h: cell(x, cell(x, h)), nn.GRUCell(8, 12)), (_x(5, 8), _x(5, 12))),
}
"""Name → a new model and its inputs. torch's own counter knows all of their ops, and counts them right."""
