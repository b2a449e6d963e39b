"""Clocks of two hosts compared: a skew that is known is found within its bound; who does not answer costs a message."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from collectors.clock_probe import NoProbe, measure_offset
from collectors_job import collect, manifest_of, said, script, trace_of


@pytest.mark.parametrize("skew_ns", [0, 3_000_000_000, -250_000_000])
def test_a_known_skew_is_found(tmp_path: Path, skew_ns: int):
    done = collect("--out", str(tmp_path), "--steps", "3-4", "--clock-probe", script("clocks"), str(skew_ns), ranks=2)
    assert done.returncode == 0, done.stderr
    first, second = (trace_of(tmp_path, rank)["tracetools_measured"]["clock"] for rank in (0, 1))
    assert set(first) == set(second) == {"start", "end"}
    for moment in ("start", "end"):
        assert first[moment] == {"offset_ns": 0, "error_bound_ns": 0, "rounds": 0}
        assert second[moment]["rounds"] > 1
        assert 0 < second[moment]["error_bound_ns"] < 1_000_000_000
        assert abs(second[moment]["offset_ns"] + skew_ns) <= second[moment]["error_bound_ns"]


def test_a_peer_that_is_gone_costs_a_message(tmp_path: Path):
    before = time.monotonic()
    done = collect("--out", str(tmp_path), "--steps", "3-4", "--clock-probe", script("clocks"), "0", "leaves", ranks=2)
    assert time.monotonic() - before < 90
    assert done.stdout.count("trained") == 2
    (told,) = {line for line in said(done) if "clocks were not compared at the start" in line}
    assert "no answer within 5 s; every rank has to record" in told
    assert "key" not in told
    assert manifest_of(tmp_path, 0)["passes"][0]["complete"] is True


def test_without_a_process_group_there_is_nobody_to_ask():
    with pytest.raises(NoProbe, match="no process group is initialized"):
        measure_offset("start", "host")


def test_no_clock_is_compared_unasked(tmp_path: Path):
    done = collect("--out", str(tmp_path), "--steps", "3-4", script("clocks"), ranks=2)
    assert done.returncode == 0
    assert trace_of(tmp_path, 1)["tracetools_measured"]["clock"] == {}
