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
    work (kernels, copies, sets). GPU figures are None where the trace holds no GPU record. calls: entries.
    """

    calls: int
    cpu_ns: int
    self_cpu_ns: int
    gpu_busy_ns: int | None
    self_gpu_busy_ns: int | None
    kernel_ns: int | None
    kernels: int | None


class ModuleTime(msgspec.Struct, frozen=True, rename={"class_": "class"}):
    """One module at one place of the tree of one rank, or a row in brackets for work outside every module.

    path: fully qualified name, or Kineto labels joined by "/". parent: path of the enclosing module, None for a root.
    calls: entries in forward. depth: 0 for a root. source: "fqn", "python_frames" or None for the bracketed rows.
    other: work in none of the three phases (optimizer, data loading); only bracketed rows have any.
    total: all phases together (GPU busy is again a union), gradient accumulation included.
    grad_accumulation_ns: GPU busy time of AccumulateGrad work, grad_accumulation_cpu_ns its CPU time; in neither phase.
    grad_sync_ns: GPU busy time of communication launched from AccumulateGrad (gradient all-reduce), grad_sync_cpu_ns
    the CPU time of its ops there; in neither phase.
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
    backward: PhaseTime
    recompute: PhaseTime
    other: PhaseTime
    total: PhaseTime
    grad_accumulation_ns: int | None
    grad_accumulation_cpu_ns: int
    grad_sync_ns: int | None
    grad_sync_cpu_ns: int
    defined_at: str | None


class OpTime(msgspec.Struct, frozen=True):
    """What all calls of one op cost in one phase; nested calls of the same op are counted once."""

    rank: int | None
    name: str
    phase: Phase
    calls: int
    cpu_ns: int
    self_cpu_ns: int
    gpu_busy_ns: int | None
    kernel_ns: int | None


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
    findings: tuple[Finding, ...]
