"""Simulated traces are Kineto to others as well: HTA and Perfetto's real trace processor read them."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from tests import peers
from tests.simulator.presets import PRESETS
from tests.simulator.run import simulate

KINDS = (
    "te_small_batch",
    "pipeline_4x8",
    "pipeline_recompute",
    "tp_plain",
    "moe",
    "graphs",
    "straggler",
)
pytestmark = pytest.mark.slow


@peers.needs_hta
@pytest.mark.parametrize("preset", KINDS)
def test_hta_reads_it(tmp_path: Path, preset: str):
    # HTA leaves the last step out and divides by zero where a stream then has one record.
    simulate(replace(PRESETS[preset], steps=3), tmp_path)
    rows = peers.hta_breakdown(tmp_path / "traces")
    assert [row["rank"] for row in rows] == list(range(PRESETS[preset].ranks))
    assert all(row["compute_time(us)"] > 0 for row in rows)


@peers.needs_perfetto
@pytest.mark.parametrize("preset", KINDS)
def test_perfetto_reads_every_slice(tmp_path: Path, preset: str):
    truth = simulate(PRESETS[preset], tmp_path)
    packed = tmp_path / "traces" / "rank-00000.trace.json.gz"
    plain = tmp_path / "plain.json"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    query = "select count(*) n, sum(dur) ns from slice where category in ('kernel', 'gpu_memcpy')"
    rows, complaints = peers.perfetto_rows(plain, query)
    whole = next(row for row in truth["gpu"] if row["rank"] == 0 and row["step"] is None)
    assert rows == [[whole["kernels"], whole["kernel_ns"]]]
    assert complaints == []
