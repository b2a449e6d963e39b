"""What the analysis answers, as frozen rows in the names of `analysis.json`. In: measured values. Out: rows.

Times are integer ns, sizes bytes; a figure that could not be worked out is None, and a finding says why.
`report/` turns rows into words; nothing here formats.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from tracetools.findings import Finding

SCHEMA_VERSION: Final = 1
UNATTRIBUTED: Final = "(unattributed)"
OPTIMIZER: Final = "(optimizer)"


class Phase(enum.StrEnum):
    """Which part of a training step a piece of work belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class Input(msgspec.Struct, frozen=True):
    """One input file and what became of it.

    events: complete events read. steps: numbers of the steps found. span_ns: first start to last end of all events.
    world_size: ranks of the whole job, where the file says it. structure_path: file of the rank's structure pass, where
    there is one beside this timing pass.
    """

    path: str
    rank: int | None
    host: str | None
    stage: int | None
    coordinates: dict[str, int]
    device: str | None
    status: str
    events: int
    steps: tuple[int, ...]
    span_ns: int | None
    rank_source: str | None
    bytes: int
    world_size: int | None = None
    structure_path: str | None = None


class PhaseTime(msgspec.Struct, frozen=True):
    """What one module cost in one phase, submodules included; self figures leave submodules out.

    cpu_ns: time of its spans on CPU threads (summed over threads), without parts that belong to another phase.
    gpu_busy_ns: union of the GPU work it launched. kernel_ns: plain sum of the same. kernels: number of pieces of GPU
    work (kernels, copies, sets). GPU figures are None where the trace holds no GPU record. calls: entries. flops: what
    its ops did, a multiply and an add being two; None where nothing that multiplies could be counted.
    """

    calls: int
    cpu_ns: int
    self_cpu_ns: int
    gpu_busy_ns: int | None
    self_gpu_busy_ns: int | None
    kernel_ns: int | None
    kernels: int | None
    flops: int | None


class BackwardTime(PhaseTime, frozen=True):
    """Backward of a module, and what goes with it but is in no phase.

    dgrad_flops, wgrad_flops: of its FLOPs, those for gradients of inputs and of weights; unsplit_flops: of one or the
    other, where nothing tells which.
    grad_accumulation_ns: GPU busy time of AccumulateGrad work, grad_accumulation_cpu_ns its CPU time. grad_sync_ns: GPU
    busy time of communication launched from AccumulateGrad (gradient all-reduce), grad_sync_cpu_ns the CPU time of its
    ops there. None of the four is part of the other figures.
    """

    dgrad_flops: int | None
    wgrad_flops: int | None
    unsplit_flops: int | None
    grad_accumulation_ns: int | None
    grad_accumulation_cpu_ns: int
    grad_sync_ns: int | None
    grad_sync_cpu_ns: int


class ModuleTime(msgspec.Struct, frozen=True, rename={"class_": "class"}):
    """One module at one place of the tree of one rank, or a row in brackets for work outside every module.

    path: fully qualified name, or Kineto labels joined by "/". parent: path of the enclosing module, None for a root.
    calls: entries in forward. depth: 0 for a root. source: "fqn", "python_frames" or None for the bracketed rows.
    other: work in none of the three phases (optimizer, data loading); only bracketed rows have any.
    total: all phases together (GPU busy is again a union), gradient accumulation included.
    defined_at: file and line of the module's forward, as `model.py:18`; None without Python stacks.
    """

    rank: int | None
    stage: int | None
    path: str
    parent: str | None
    class_: str | None
    calls: int
    depth: int
    source: str | None
    forward: PhaseTime
    backward: BackwardTime
    recompute: PhaseTime
    other: PhaseTime
    total: PhaseTime
    defined_at: str | None


class OpTime(msgspec.Struct, frozen=True):
    """What all calls of one op cost in one phase, children included; nested calls of the same op are counted once.

    flops: None where nothing that multiplies could be counted.
    """

    rank: int | None
    name: str
    phase: Phase
    calls: int
    cpu_ns: int
    self_cpu_ns: int
    gpu_busy_ns: int | None
    kernel_ns: int | None
    flops: int | None


class AnnotationTime(msgspec.Struct, frozen=True):
    """What happened inside the ranges of one name (`record_function`), on the thread that opened them.

    cpu_ns: length of the outermost ranges, summed. GPU figures: work launched inside, whenever it ran.
    """

    rank: int | None
    name: str
    calls: int
    cpu_ns: int
    gpu_busy_ns: int | None
    kernel_ns: int | None


class AutogradLink(msgspec.Struct, frozen=True):
    """Backward nodes of one kind, the forward op they come from, and by what they were tied.

    forward_op: None where no forward op was found (linked_by "open"), as for AccumulateGrad.
    """

    rank: int | None
    forward_op: str | None
    backward_op: str
    calls: int
    linked_by: str
    gpu_busy_ns: int | None
    cpu_ns: int


class StepTime(msgspec.Struct, frozen=True):
    """One training step of one rank: its wall time, and the CPU time of each phase inside it (summed over threads).

    step: None for the whole recording, where the trace marks no step. gpu_busy_ns: union of the work that was launched
    in the step, whenever it ran; the step's row in `gpu` tells what ran in its window, whoever launched it.
    """

    rank: int | None
    step: int | None
    wall_ns: int
    forward_ns: int
    backward_ns: int
    recompute_ns: int
    optimizer_ns: int
    gpu_busy_ns: int | None


class GpuTime(msgspec.Struct, frozen=True):
    """What one GPU did in a window: the whole rank (step None) or one step.

    busy = compute + exposed communication + exposed copy; busy + idle = window; exactly. In a step's window all work
    that runs there counts; kernels and kernel_ns (plain sum) count what was launched in the step.
    """

    rank: int | None
    device: int
    step: int | None
    window_ns: int
    busy_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_ns: int
    communication_ns: int
    kernels: int
    kernel_ns: int


class RunAhead(msgspec.Struct, frozen=True):
    """How far launches ran ahead of the GPU: start of the work minus end of its launch call, never below 0."""

    p50: int
    p95: int
    max: int


class Launches(msgspec.Struct, frozen=True):
    """Launch calls of one rank and the GPU work they started.

    count: calls that carry a correlation of GPU work, or that always start some (kernel, graph, copy and set launches).
    without_kernel: launches with no GPU record. kernels_without_launch: GPU work with no launch record.
    run_ahead_ns: None where nothing is linked. started_before_launch: work that starts before its launch call does.
    """

    rank: int | None
    count: int
    without_kernel: int
    kernels_without_launch: int
    run_ahead_ns: RunAhead | None
    started_before_launch: int


class RankFlops(msgspec.Struct, frozen=True):
    """What one rank computed in all steps that were asked for, by what it was for.

    dgrad, wgrad: backward, gradients of inputs and of weights; unsplit: of one or the other. optimizer: products of the
    optimizer itself. other: products in no phase, as of inference outside every module. total: the sum of these.
    executed: the same as total; model: without recompute, optimizer and, unless the convention has it otherwise, what
    attention backward spends on scores that it works out once more. causal_masked: what causal masks leave out; part of
    the other figures where causal is "full", taken off them where it is "half". None where nothing that multiplies
    could be counted.
    compute_kernel_ns: sum of all compute kernels; known_kernel_ns: of those whose FLOPs are counted or which have none.
    mfu, hfu: share of the device's peak that model and executed FLOPs are, over the time of the rank's steps.
    """

    rank: int | None
    forward: int | None
    dgrad: int | None
    wgrad: int | None
    unsplit: int | None
    recompute: int | None
    optimizer: int | None
    other: int | None
    total: int | None
    model: int | None
    executed: int | None
    causal_masked: int | None
    compute_kernel_ns: int | None
    known_kernel_ns: int | None
    mfu: float | None
    hfu: float | None


class StepFlops(msgspec.Struct, frozen=True):
    """What one rank computed in one step, and how much of the device that used.

    window_ns: the step's window on the GPU (summed over devices), its wall time without one. ideal_ns: time that the
    executed FLOPs take at the peak of the element types they were made in; model_ideal_ns: that of the model's FLOPs.
    mfu = model_ideal / window, hfu = ideal / window. step: None for the whole recording, where no step is marked.
    """

    rank: int | None
    step: int | None
    window_ns: int
    model: int | None
    executed: int | None
    model_ideal_ns: int | None
    ideal_ns: int | None
    mfu: float | None
    hfu: float | None


class UncountedOp(msgspec.Struct, frozen=True):
    """An op whose FLOPs are not known; kernel_ns: its compute kernels that may multiply, None without GPU records."""

    rank: int | None
    op: str
    calls: int
    kernel_ns: int | None


class Convention(msgspec.Struct, frozen=True):
    """By whose rules the FLOPs are counted.

    causal: "full" counts what a causal mask leaves out, "half" does not. scores_again: whether the model's FLOPs hold
    the scores that an attention backward works out once more. multiply_add: FLOPs of one of them.
    """

    name: str
    causal: str
    scores_again: bool
    multiply_add: int = 2


class Peak(msgspec.Struct, frozen=True):
    """What a device can do at most, dense, in one element type; source: where that is said."""

    device: str
    dtype: str
    flop_per_s: float
    source: str


class FlopsSection(msgspec.Struct, frozen=True):
    """FLOPs of all ranks. mfu, hfu: over all ranks and steps, None where a rank has none."""

    by_rank: tuple[RankFlops, ...]
    by_step: tuple[StepFlops, ...]
    uncounted: tuple[UncountedOp, ...]
    convention: Convention
    mfu: float | None
    hfu: float | None
    peak: tuple[Peak, ...]


class RankResult(msgspec.Struct, frozen=True):
    """Everything measured on one input file."""

    input: Input
    modules: tuple[ModuleTime, ...] = ()
    ops: tuple[OpTime, ...] = ()
    annotations: tuple[AnnotationTime, ...] = ()
    autograd: tuple[AutogradLink, ...] = ()
    steps: tuple[StepTime, ...] = ()
    gpu: tuple[GpuTime, ...] = ()
    launches: tuple[Launches, ...] = ()
    flops: tuple[RankFlops, ...] = ()
    step_flops: tuple[StepFlops, ...] = ()
    uncounted: tuple[UncountedOp, ...] = ()
    peaks: tuple[Peak, ...] = ()
    findings: tuple[Finding, ...] = ()


class Analysis(msgspec.Struct, frozen=True):
    """The whole document: rows of all ranks, ordered by rank and then as each section says."""

    schema_version: int
    tracetools_version: str
    inputs: tuple[Input, ...]
    modules: tuple[ModuleTime, ...]
    ops: tuple[OpTime, ...]
    annotations: tuple[AnnotationTime, ...]
    autograd: tuple[AutogradLink, ...]
    steps: tuple[StepTime, ...]
    gpu: tuple[GpuTime, ...]
    launches: tuple[Launches, ...]
    flops: FlopsSection
    findings: tuple[Finding, ...]
