"""Analyses made by hand, small enough to check every printed figure against the figures written here."""

from __future__ import annotations

import msgspec

from tracetools.findings import Finding, Severity
from tracetools.results import (
    OPTIMIZER,
    SCHEMA_VERSION,
    UNATTRIBUTED,
    Analysis,
    AnnotationTime,
    AutogradLink,
    BackwardTime,
    Convention,
    FlopsSection,
    GpuTime,
    Input,
    Launches,
    ModuleTime,
    OpTime,
    Peak,
    Phase,
    PhaseTime,
    RankFlops,
    RunAhead,
    StepFlops,
    StepTime,
    UncountedOp,
)

MS = 1_000_000
GFLOP_PER_NS = 300_000
"""300 TFLOP/s while the GPU is busy."""
Figures = tuple[int, int, int, int]
NONE: Figures = (0, 0, 0, 0)


def phase(figures: Figures, gpu: bool) -> PhaseTime:
    """From (CPU, self CPU, GPU busy, self GPU busy) in ms."""
    cpu, self_cpu, busy, self_busy = (figure * MS for figure in figures)
    return PhaseTime(
        calls=2,
        cpu_ns=cpu,
        self_cpu_ns=self_cpu,
        gpu_busy_ns=busy if gpu else None,
        self_gpu_busy_ns=self_busy if gpu else None,
        kernel_ns=busy if gpu else None,
        kernels=busy // MS if gpu else None,
        flops=busy * GFLOP_PER_NS,
    )


def backward_phase(figures: Figures, gpu: bool) -> BackwardTime:
    """As `phase`; two thirds of the FLOPs are for gradients of weights."""
    made = phase(figures, gpu)
    flops = made.flops or 0
    return BackwardTime(
        **msgspec.structs.asdict(made),
        dgrad_flops=flops - 2 * flops // 3,
        wgrad_flops=2 * flops // 3,
        unsplit_flops=0,
        grad_accumulation_ns=0 if gpu else None,
        grad_accumulation_cpu_ns=0,
        grad_sync_ns=0 if gpu else None,
        grad_sync_cpu_ns=0,
    )


def module(
    path: str,
    *,
    forward: Figures = NONE,
    backward: Figures = NONE,
    recompute: Figures = NONE,
    other: Figures = NONE,
    rank: int | None = 0,
    gpu: bool = True,
    parent: str | None = None,
) -> ModuleTime:
    """One row; total is the plain sum of the phases, the parent is what stands before the last slash."""
    is_bracketed = path.startswith("(")
    above = parent if parent is not None else (path.rpartition("/")[0] or None)
    total: Figures = tuple(map(sum, zip(forward, backward, recompute, other, strict=True)))  # type: ignore[assignment]
    return ModuleTime(
        rank=rank,
        stage=None,
        path=path,
        parent=None if is_bracketed else above,
        class_=None if is_bracketed else path.rpartition("/")[2].rpartition("_")[0],
        calls=2,
        depth=path.count("/"),
        source=None if is_bracketed else "python_frames",
        forward=phase(forward, gpu),
        backward=backward_phase(backward, gpu),
        recompute=phase(recompute, gpu),
        other=phase(other, gpu),
        total=phase(total, gpu),
        defined_at=None,
    )


def modules(rank: int | None = 0, scale: int = 1, gpu: bool = True) -> tuple[ModuleTime, ...]:
    """A GPT of two blocks; Block_1 costs 50 of the 80 ms of backward GPU time."""

    def ms(*figures: int) -> Figures:
        cpu, self_cpu, busy, self_busy = (figure * scale for figure in figures)
        return cpu, self_cpu, busy, self_busy

    shared = {"rank": rank, "gpu": gpu}
    return (
        module("GPT_0", forward=ms(50, 10, 40, 0), backward=ms(60, 0, 80, 0), recompute=ms(8, 0, 10, 0), **shared),
        module("GPT_0/Block_0", forward=ms(20, 5, 15, 0), backward=ms(25, 5, 30, 10), **shared),
        module("GPT_0/Block_0/Linear_0", forward=ms(15, 15, 15, 15), backward=ms(20, 20, 20, 20), **shared),
        module(
            "GPT_0/Block_1",
            forward=ms(20, 20, 25, 25),
            backward=ms(35, 35, 50, 50),
            recompute=ms(8, 8, 10, 10),
            **shared,
        ),
        module(UNATTRIBUTED, other=ms(7, 7, 4, 4), **shared),
        module(OPTIMIZER, other=ms(9, 9, 6, 6), **shared),
    )


def gpu_time(rank: int | None = 0, step: int | None = None, idle_ms: int = 60) -> GpuTime:
    """A window of 200 ms, all but `idle_ms` busy: 20 ms of it exposed communication, 5 ms exposed copies."""
    busy = 200 - idle_ms
    return GpuTime(
        rank=rank,
        device=0,
        step=step,
        window_ns=200 * MS,
        busy_ns=busy * MS,
        compute_ns=(busy - 25) * MS,
        exposed_communication_ns=20 * MS,
        exposed_copy_ns=5 * MS,
        idle_ns=idle_ms * MS,
        communication_ns=30 * MS,
        kernels=140,
        kernel_ns=150 * MS,
    )


def step_time(rank: int | None = 0, step: int | None = 10, wall_ms: int = 100, gpu: bool = True) -> StepTime:
    return StepTime(
        rank=rank,
        step=step,
        wall_ns=wall_ms * MS,
        forward_ns=25 * MS,
        backward_ns=30 * MS,
        recompute_ns=4 * MS,
        optimizer_ns=5 * MS,
        gpu_busy_ns=70 * MS if gpu else None,
    )


def op(name: str, ms: int, rank: int | None = 0, gpu: bool = True) -> OpTime:
    figure = ms * MS
    times = figure, figure // 2, figure if gpu else None, figure if gpu else None
    return OpTime(rank, name, Phase.BACKWARD, 12, *times, flops=figure * GFLOP_PER_NS if name == "aten::mm" else 0)


def flops_section(ranks: tuple[int | None, ...], gpu: bool = True) -> FlopsSection:
    """54 GFLOP forward and 108 backward, of which 60 for gradients of weights; MFU 40%, HFU 45%."""
    each = 10**9
    shares = (0.4, 0.45) if gpu else (None, None)
    return FlopsSection(
        by_rank=tuple(
            RankFlops(
                rank=rank,
                forward=54 * each,
                dgrad=48 * each,
                wgrad=60 * each,
                unsplit=0,
                recompute=20 * each,
                optimizer=0,
                other=0,
                total=182 * each,
                model=162 * each,
                executed=182 * each,
                causal_masked=4 * each,
                compute_kernel_ns=100 * MS if gpu else None,
                known_kernel_ns=93 * MS if gpu else None,
                mfu=shares[0],
                hfu=shares[1],
            )
            for rank in ranks
        ),
        by_step=tuple(
            StepFlops(rank, step, 100 * MS, 81 * each, 91 * each, 40 * MS, 45 * MS, *shares)
            for rank in ranks
            for step in (10, 11)
        ),
        uncounted=tuple(UncountedOp(rank, "my::op", 3, 7 * MS if gpu else None) for rank in ranks),
        convention=Convention("torchtitan", "full", False),
        mfu=shares[0],
        hfu=shares[1],
        peak=(Peak("NVIDIA H100 80GB HBM3", "bf16", 989e12, "torchtitan"),) if gpu else (),
    )


def input_row(rank: int | None = 0, status: str = "read", path: str | None = None, device: str | None = None) -> Input:
    return Input(
        path=path or f"traces/rank-{rank}.json.gz",
        rank=rank,
        host="host-a",
        stage=None,
        coordinates={},
        device=device,
        status=status,
        events=1000,
        steps=(10, 11),
        span_ns=200 * MS,
        rank_source="metadata",
        bytes=123_456,
    )


def analysis(**sections: object) -> Analysis:
    """An analysis with the given sections, the others empty."""
    empty: dict[str, object] = {
        "inputs": (input_row(),),
        "modules": (),
        "ops": (),
        "annotations": (),
        "autograd": (),
        "steps": (),
        "gpu": (),
        "launches": (),
        "flops": flops_section(()),
        "findings": (),
    }
    return Analysis(schema_version=SCHEMA_VERSION, tracetools_version="9.9.9", **(empty | sections))  # type: ignore[arg-type]


def gpu_run(ranks: int = 2) -> Analysis:
    """Every section filled; rank 1 takes twice as long as the others."""
    numbers = range(ranks)
    return analysis(
        inputs=tuple(input_row(rank, device="NVIDIA H100 80GB HBM3") for rank in numbers),
        modules=tuple(row for rank in numbers for row in modules(rank, 2 if rank == 1 else 1)),
        ops=tuple(row for rank in numbers for row in (op("aten::mm", 30, rank), op("aten::add_", 3, rank))),
        annotations=tuple(AnnotationTime(rank, "loss", 2, 4 * MS, 3 * MS, 3 * MS) for rank in numbers),
        autograd=tuple(AutogradLink(rank, "aten::mm", "MmBackward0", 12, "arrow", 30 * MS, 9 * MS) for rank in numbers),
        steps=tuple(step_time(rank, step) for rank in numbers for step in (10, 11)),
        gpu=tuple(gpu_time(rank, step) for rank in numbers for step in (None, 10, 11)),
        launches=tuple(Launches(rank, 140, 2, 1, RunAhead(5_000, 90_000, 1_200_000), 0) for rank in numbers),
        flops=flops_section(tuple(numbers)),
        findings=(
            Finding("work_without_launch", Severity.WARNING, "1 kernel has no launch", 1, 0, None, ("modules",)),
            Finding("work_without_launch", Severity.WARNING, "1 kernel has no launch", 1, 1, None, ("modules",)),
            Finding("clipped", Severity.NOTE, "3 spans cross others and were clipped", 3, 0),
        ),
    )


def cpu_run() -> Analysis:
    """One rank without a GPU, of a file that does not say its rank."""
    return analysis(
        inputs=(input_row(None),),
        modules=modules(None, gpu=False),
        ops=(op("aten::mm", 30, None, gpu=False),),
        steps=(step_time(None, gpu=False),),
        flops=flops_section((None,), gpu=False),
    )
