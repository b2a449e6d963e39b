"""Jobs with a name. Each is as small as shows its point."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.simulator.clock import Clock
from tests.simulator.faults import Fault
from tests.simulator.job import Job
from tests.simulator.machine import Machine
from tests.simulator.recorder import Sizes, Style

_SMALL = Sizes(batch=1, sequence=256, hidden=512, heads=8, vocabulary=1024)
_MEDIUM = Sizes(batch=1, sequence=2048, hidden=2048, heads=16, vocabulary=8192)
_PIPELINE = Job("pipeline_4x8", sizes=_MEDIUM, layers=8, micro_batches=8, pipeline=4)
_LINEARS = Job(
    "te_small_batch",
    sizes=replace(_SMALL, sequence=64),
    style=Style("te", module_ns=140_000),
    layers=12,
    steps=3,
    shape="linears",
)

_ALL = (
    _LINEARS,
    replace(_LINEARS, name="te_small_batch_after", style=Style("te", module_ns=115_000)),
    replace(_LINEARS, name="plain_small_batch", style=Style("torch", module_ns=74_000)),
    _PIPELINE,
    replace(_PIPELINE, name="pipeline_interleaved", schedule="interleaved", chunks=2),
    replace(_PIPELINE, name="zero_bubble", schedule="zero_bubble"),
    replace(
        _PIPELINE, name="pipeline_recompute", style=Style(checkpoint="reentrant"), pipeline=2, layers=8, micro_batches=4
    ),
    replace(
        _PIPELINE,
        name="pipeline_recompute_non_reentrant",
        style=Style(checkpoint="non_reentrant"),
        pipeline=2,
        layers=4,
    ),
    replace(_PIPELINE, name="gpipe", schedule="gpipe", pipeline=2, layers=4, micro_batches=4),
    replace(_PIPELINE, name="slow_stage", slow={2: 1.5}),
    replace(_PIPELINE, name="te_pipeline", style=Style("te"), pipeline=2, layers=4, micro_batches=4),
    Job(
        "two_hosts_skewed",
        sizes=_SMALL,
        layers=2,
        data=4,
        hosts=2,
        clocks=(Clock(), Clock(-5_000_000, 40)),
        machine=Machine(noise=0.05),
        steps=3,
        opens={3: 11},
    ),
    Job(
        "straggler",
        sizes=_SMALL,
        layers=2,
        data=4,
        slow={3: 1.3},
        machine=Machine(noise=0.05, pause_every=500, pause_ns=200_000),
        steps=3,
    ),
    Job("tp_sequence_parallel", sizes=_MEDIUM, style=Style("te", sequence_parallel=True), layers=2, tensor=2),
    Job("tp_plain", sizes=_MEDIUM, layers=2, tensor=2, frames=True),
    Job("moe", sizes=replace(_SMALL, experts=4), layers=2, data=2),
    Job("te_fp8", sizes=_SMALL, style=Style("te", fp8=True), layers=2, micro_batches=2),
    Job("dependent_launch", sizes=_MEDIUM, style=Style("te", overlap_ns=1_000), layers=2),
    Job("profiler_stops", sizes=_SMALL, layers=2, machine=Machine(buffer_every=40, buffer_ns=900_000)),
    Job("graphs", sizes=_MEDIUM, shape="graphs", optimizer=False),
    Job(
        "frozen", sizes=_SMALL, layers=2, style=Style(frozen=("blocks.0.attn.qkv", "blocks.0.mlp.fc1")), micro_batches=2
    ),
    Job(
        "faulty",
        sizes=_SMALL,
        layers=2,
        data=8,
        steps=3,
        opens={7: 11},
        faults={rank: (fault,) for rank, fault in enumerate(Fault)},
    ),
    Job("full_queue", sizes=_MEDIUM, layers=4, machine=Machine(queue_depth=16)),
)

PRESETS: Final[dict[str, Job]] = {job.name: job for job in _ALL}
