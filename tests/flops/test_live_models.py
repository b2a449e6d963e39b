"""FLOPs of models that are recorded here and now, against torch's own counter and against closed formulas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import tracetools
from tests.flops.live_models import CASES, Call, Case
from tests.test_invariants import check_invariants
from tracetools.results import Analysis, RankFlops

pytestmark = pytest.mark.filterwarnings("ignore")


def loss(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    # Inputs come from something, as activations do: a leaf that collects a gradient is a weight.
    made = [each * 1 if each.is_floating_point() else each for each in inputs]
    return model(*made).float().pow(2).sum()


def counted_by_torch(case: Case) -> tuple[int, int]:
    """(forward, backward with recompute) by FlopCounterMode."""
    model, inputs = case
    with FlopCounterMode(display=False) as forward:
        result = loss(model, inputs)
    with FlopCounterMode(display=False) as backward:
        result.backward()
    return forward.get_total_flops(), backward.get_total_flops()


def record(case: Case, path: Path) -> Analysis:
    model, inputs = case
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        loss(model, inputs).backward()
    recording.export_chrome_trace(str(path))
    analysis = tracetools.load(path, workers=1).analysis
    check_invariants(analysis)
    return analysis


def flops(analysis: Analysis) -> RankFlops:
    (row,) = analysis.flops.by_rank
    return row


def made(case: Callable[[], Case]) -> Case:
    torch.manual_seed(0)
    return case()


@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_counter_of_torch(name: str, tmp_path: Path) -> None:
    forward, backward = counted_by_torch(made(CASES[name]))
    row = flops(record(made(CASES[name]), tmp_path / "trace.json"))
    assert forward > 0
    assert row.forward == forward
    assert (row.dgrad or 0) + (row.wgrad or 0) + (row.unsplit or 0) + (row.recompute or 0) == backward
    assert row.unsplit == 0
    assert row.total == forward + backward


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_inputs_are_what_is_left_without_weights(name: str, tmp_path: Path) -> None:
    """With all weights frozen backward makes just the gradients of inputs, if an input wants one."""
    model, inputs = made(CASES[name])
    if not any(each.requires_grad for each in inputs):
        pytest.skip("no input of this model wants a gradient")
    row = flops(record((model, inputs), tmp_path / "trace.json"))
    model, inputs = made(CASES[name])
    model.requires_grad_(False)
    alone = flops(record((model, inputs), tmp_path / "frozen.json"))
    _, torchs = counted_by_torch((model, inputs))
    assert alone.wgrad == 0
    assert row.dgrad == alone.dgrad == torchs - (alone.recompute or 0)


def test_a_model_under_ddp(tmp_path: Path) -> None:
    forward, backward = counted_by_torch(made(CASES["gpt"]))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, inputs = made(CASES["gpt"])
        row = flops(record((DistributedDataParallel(model), inputs), tmp_path / "trace.json"))
    finally:
        dist.destroy_process_group()
    assert (row.forward, (row.dgrad or 0) + (row.wgrad or 0)) == (forward, backward)


def test_a_recompute_that_stops_early_counts_what_ran(tmp_path: Path) -> None:
    """The second product of each recompute is entered and left: it is in the trace and did nothing."""
    analysis = record(made(CASES["gpt_checkpoint"]), tmp_path / "trace.json")
    (finding,) = (each for each in analysis.findings if each.rule == "flops_never_ran")
    assert finding.count == 2
    assert flops(analysis).recompute == flops(analysis).forward - head_of_gpt() - 2 * 2 * 24 * 96 * 24


def head_of_gpt() -> int:
    return 2 * 24 * 24 * 50


@pytest.mark.parametrize("groups", [2, 3, 6])
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_grouped_convolutions(groups: int, transposed: bool, tmp_path: Path) -> None:
    """By 2·N·Cout·(Cin / g)·∏K·∏out for each; torch's counter forgets the groups in the weight's gradient."""
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    model, x = kind(6, 12, 3, groups=groups), torch.randn(2, 6, 9, 9, requires_grad=True)
    row = flops(record((model, (x,)), tmp_path / "trace.json"))
    positions = 9 * 9 if transposed else 7 * 7
    each = 2 * 2 * 12 * (6 // groups) * 3 * 3 * positions
    assert (row.forward, row.dgrad, row.wgrad) == (each, each, each)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [2, 4])
def test_fused_attention_of_the_cpu(causal: bool, groups: int, tmp_path: Path) -> None:
    """2·B·H·S²·2D forward, backward 2.5 times that; torch's counter does not know this op."""
    query = torch.randn(2, 4, 16, 8, requires_grad=True)
    key = torch.randn(2, groups, 16, 8, requires_grad=True)

    def attend(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, key, is_causal=causal, enable_gqa=groups != 4)

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        row = flops(record((Call(attend), (query, key)), tmp_path / "trace.json"))
    each = 2 * 2 * 4 * 16 * 16 * 2 * 8
    assert (row.forward, row.dgrad, row.wgrad) == (each, each * 5 // 2, 0)
    assert row.causal_masked == (each * 7 // 4 if causal else 0)
    assert row.model == each * 3


class Worked(nn.Module):
    """The model of docs/flops.md: no biases, norms without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(64, 32)
        layers = [((32, 96), (32, 32), (32, 128), (128, 32)) for _ in range(2)]
        self.layers = nn.ModuleList([nn.ModuleList([nn.Linear(*size, bias=False) for size in each]) for each in layers])
        self.head = nn.Linear(32, 64, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for qkv, out, up, down in self.layers:
            heads = qkv(functional.rms_norm(x, (32,))).view(2, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + out(mixed.transpose(1, 2).reshape(2, 16, 32))
            x = x + down(functional.gelu(up(functional.rms_norm(x, (32,)))))
        return self.head(x)


def test_one_model_by_all_conventions(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "flops.md").read_text(encoding="utf-8")
    record((Worked(), (torch.randint(0, 64, (2, 16)),)), tmp_path / "trace.json")
    for convention in ("torchtitan", "megatron", "flopcounter"):
        row = flops(tracetools.load(tmp_path / "trace.json", convention=convention).analysis)
        figures = row.forward, (row.dgrad or 0) + (row.wgrad or 0), row.model, row.executed
        assert f"| `{convention}` | {' | '.join(map(str, figures))} |" in text
    weights = sum(each.numel() for each in Worked().parameters()) - 64 * 32
    assert 6 * weights * 32 + 12 * 2 * 32 * 16 * 32 == 5_505_024
    assert 6 * weights * 32 + 3 * 131_072 // 2 == 5_308_416


def test_products_of_groups(tmp_path: Path) -> None:
    """2·rows·K·N whatever the split, forward and both gradients; torch's counter does not know this op."""
    rows = torch.randn(32, 16, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(4, 16, 24, dtype=torch.bfloat16)
    ends = torch.tensor([8, 16, 24, 32], dtype=torch.int32)
    grouped = Call(lambda weight, rows: torch._grouped_mm(rows, weight, offs=ends), weight=weight)
    row = flops(record((grouped, (rows,)), tmp_path / "trace.json"))
    assert (row.forward, row.total) == (2 * 32 * 16 * 24, 3 * 2 * 32 * 16 * 24)


def test_products_of_the_optimizer_are_apart(tmp_path: Path) -> None:
    """Muon multiplies: five iterations of three products for a weight [8, 12], on its smaller side."""
    layer = nn.Linear(12, 8, bias=False)
    optimizer = torch.optim.Muon(layer.parameters())
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recording:
        layer(torch.randn(4, 12)).sum().backward()
        optimizer.step()
    recording.export_chrome_trace(str(tmp_path / "trace.json"))
    analysis = tracetools.load(tmp_path / "trace.json").analysis
    check_invariants(analysis)
    row = flops(analysis)
    assert row.optimizer == 5 * (2 * 8 * 12 * 8 + 2 * 8 * 8 * 8 + 2 * 8 * 8 * 12)
    assert row.model == row.forward + row.wgrad == 2 * 2 * 4 * 12 * 8


def test_a_counter_that_is_active_while_recording_changes_nothing(tmp_path: Path) -> None:
    """A dispatch mode shows each op twice, one inside the other."""
    alone = flops(record(made(CASES["gpt"]), tmp_path / "alone.json"))
    with FlopCounterMode(display=False):
        counted = flops(record(made(CASES["gpt"]), tmp_path / "counted.json"))
    assert counted == alone


def test_without_shapes_there_is_no_figure(tmp_path: Path) -> None:
    model, inputs = made(CASES["linear"])
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        loss(model, inputs).backward()
    recording.export_chrome_trace(str(tmp_path / "trace.json"))
    analysis = tracetools.load(tmp_path / "trace.json").analysis
    check_invariants(analysis)
    assert flops(analysis).total is None
    assert {row.flops for row in analysis.ops} == {None}
    assert [finding.count for finding in analysis.findings if finding.rule == "flops_without_shapes"] == [3]
    assert {(row.op, row.calls) for row in analysis.flops.uncounted} == {("aten::addmm", 1), ("aten::mm", 2)}
