"""Public traces of real jobs: what always holds, and figures worked out a second time from the raw JSON.

The traces are not part of the project. They are looked for in the folder that TRACETOOLS_REAL_TRACES names, else in
`shared/traces` beside the repository; without them these tests are skipped.
"""

from __future__ import annotations

import functools
import gzip
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import tracetools
from tests import raw_trace
from tests.raw_trace import Event
from tests.test_invariants import check_invariants
from tracetools.results import Analysis

FOLDER = Path(os.environ.get("TRACETOOLS_REAL_TRACES") or Path(__file__).resolve().parents[2] / "shared" / "traces")
FILES = sorted(path for path in FOLDER.rglob("*") if path.name.endswith((".json", ".json.gz")))
BIG = 3_000_000

NOT_THERE = f"no traces under {FOLDER}; set TRACETOOLS_REAL_TRACES to the folder that holds them"
pytestmark = pytest.mark.skipif(not FILES, reason=NOT_THERE)


def raw_size(path: Path) -> int:
    """Size of the JSON text, from the end of a gzip file where it is one."""
    data = path.read_bytes()
    return int.from_bytes(data[-4:], "little") if data[:2] == b"\x1f\x8b" else len(data)


def named(*names: str) -> list[object]:
    """Parameters for the given files, all of them without a name; big ones are slow."""
    chosen = [path for path in FILES if not names or path.name in names]
    return [
        pytest.param(path, id=path.name, marks=[pytest.mark.slow] if raw_size(path) > BIG else []) for path in chosen
    ]


@functools.lru_cache(maxsize=1)
def analyse(path: Path) -> Analysis:
    return tracetools.load(path).analysis


@functools.lru_cache(maxsize=1)
def raw_events(path: Path) -> list[Event]:
    events = raw_trace.read_raw(path)
    raw_trace.hang_kernels_on_spans(events)
    return events


def device(event: Event) -> int:
    return int(event.args.get("device", event.lane[0]))


@pytest.mark.parametrize("path", named())
def test_invariants_hold(path: Path):
    check_invariants(analyse(path))
    (row,) = analyse(path).inputs
    assert row.status == "read"


@pytest.mark.parametrize("path", named())
def test_events_and_gpu_busy_time(path: Path):
    events, analysis = raw_events(path), analyse(path)
    (row,) = analysis.inputs
    assert row.events == len(events)
    by_device = defaultdict(list)
    for event in raw_trace.gpu_work(events):
        by_device[device(event)].append(event)
    assert {
        row.device: (row.busy_ns, row.window_ns, row.kernels, row.kernel_ns) for row in analysis.gpu if row.step is None
    } == {
        number: (
            raw_trace.busy(work),
            max(event.end for event in work) - min(event.start for event in work),
            len(work),
            sum(event.length for event in work),
        )
        for number, work in by_device.items()
    }


@pytest.mark.parametrize("path", named())
def test_calls_and_kernel_time_of_top_ops(path: Path):
    calls = raw_trace.calls_by_name(raw_events(path))
    expected = {
        name: (len(spans), sum(kernel.length for span in spans for kernel in span.kernels))
        for name, spans in calls.items()
    }
    top = sorted(expected, key=lambda name: (expected[name][1], expected[name][0], name))[-12:]
    measured: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in analyse(path).ops:
        count, kernel_ns = measured[row.name]
        measured[row.name] = count + row.calls, kernel_ns + (row.kernel_ns or 0)
    assert {name: measured[name] for name in top} == {name: expected[name] for name in top}


@pytest.mark.parametrize("path", named())
def test_kernel_time_inside_backward(path: Path):
    events = raw_events(path)
    inside = {id(kernel): kernel.length for span in raw_trace.backward_nodes(events) for kernel in span.kernels}
    roots = [row for row in analyse(path).modules if row.parent is None]
    measured = sum(
        (row.total.kernel_ns or 0) - (row.forward.kernel_ns or 0) - (row.other.kernel_ns or 0) for row in roots
    )
    assert measured == sum(inside.values())


WITH_MODULES = (
    "log__transformer__dc3b0e7228dd_851.1752215573993169006.pt.trace.json.gz",
    "traces__b200__eager_trace.json.gz",
    "traces__h100__gaunernst_bert-small-uncased__1016001.json.gz",
    "traces__mi300__gaunernst_bert-small-uncased__1016001.json.gz",
    "perf_model__normalization__normalization_layer_test.json.gz",
    "traces__mi300__resnet_act_checkpoint.json.gz",
)


@pytest.mark.parametrize("path", named(*WITH_MODULES))
def test_forward_of_modules(path: Path):
    frames = raw_trace.module_frames(raw_events(path))
    assert frames
    expected = {
        label: (
            len(calls),
            sum(kernel.length for call in calls for kernel in call.kernels),
            raw_trace.busy(kernel for call in calls for kernel in call.kernels),
        )
        for label, calls in frames.items()
    }
    measured = {
        row.path: (row.calls, row.forward.kernel_ns, row.forward.gpu_busy_ns)
        for row in analyse(path).modules
        if row.source == "python_frames"
    }
    assert measured == expected


@pytest.mark.parametrize("path", named("traces__mi300__resnet_act_checkpoint.json.gz"))
def test_recompute_shows_by_module(path: Path):
    analysis = analyse(path)
    again = [row for row in analysis.modules if row.source is not None and (row.recompute.gpu_busy_ns or 0) > 0]
    assert again
    # What is computed again was computed before.
    assert all(row.forward.kernels > 0 for row in again)
    assert sum(step.recompute_ns for step in analysis.steps) > 0


@pytest.mark.slow
def test_four_ranks_of_one_job():
    folder = FOLDER / "multirank_megatron_tp8"
    analysis = tracetools.load(folder).analysis
    check_invariants(analysis)
    assert [row.rank for row in analysis.inputs] == [0, 1, 2, 3]
    assert {row.rank: row.communication_ns > 0 for row in analysis.gpu if row.step is None} == dict.fromkeys(
        range(4), True
    )
    one_by_one = [tracetools.load(path).analysis for path in sorted(folder.glob("*.json.gz"))]
    assert analysis.ops == tuple(row for alone in one_by_one for row in alone.ops)
    assert analysis.gpu == tuple(row for alone in one_by_one for row in alone.gpu)


@pytest.mark.parametrize("path", named("llama_trace_4layers0_with_annotations.json.gz"))
def test_packed_and_plain_files_read_alike(path: Path, tmp_path: Path):
    plain = tmp_path / path.name.removesuffix(".gz")
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    unpacked, packed = tracetools.load(plain).analysis, analyse(path)
    for section in ("modules", "ops", "annotations", "autograd", "steps", "gpu", "launches"):
        assert msgspec.json.encode(getattr(unpacked, section)) == msgspec.json.encode(getattr(packed, section)), section


@pytest.mark.parametrize("path", named())
def test_flops_are_reasonable(path: Path, record_property: Callable[[str, object], None]) -> None:
    """No op does more than its device can, unless a finding says so; how much of the time the count covers is told."""
    analysis = analyse(path)
    for row in analysis.flops.by_rank:
        share = (row.known_kernel_ns or 0) / row.compute_kernel_ns if row.compute_kernel_ns else None
        record_property("known_share", share)
        print(f"{path.name}: FLOPs {row.total}, known for {share}")
        uncounted = sum(each.kernel_ns or 0 for each in analysis.flops.uncounted if each.rank == row.rank)
        assert uncounted == (row.compute_kernel_ns or 0) - (row.known_kernel_ns or 0)
    peaks = {peak.dtype: peak.flop_per_s for peak in analysis.flops.peak}
    fastest = max(peaks.values(), default=None)
    if fastest is None or any(finding.rule == "above_peak" for finding in analysis.findings):
        return
    for op in analysis.ops:
        if op.flops and op.kernel_ns and op.name.startswith("aten::"):
            assert op.flops / op.kernel_ns * 1e9 <= 1.05 * fastest, op
