"""Calls in other processes: results, errors, and a process that dies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tracetools
from tracetools.engines import processes
from tracetools.errors import TracetoolsError, UsageError
from tracetools.ingest import find_inputs
from tracetools.settings import Settings
from tracetools.workers import Worker, WorkerDied

SAMPLES = Path(__file__).parents[1] / "samples"


def test_results_come_in_the_order_of_the_calls():
    with Worker() as worker:
        worker.submit(divmod, 7, 3)
        worker.submit(len, "four")
        assert (worker.result(), worker.result()) == ((2, 1), 4)


def test_an_error_is_raised_where_the_result_is_asked_for():
    with Worker() as worker:
        worker.submit(int, "no number")
        with pytest.raises(ValueError, match="no number"):
            worker.result()
        worker.submit(int, "5")
        assert worker.result() == 5


def test_what_the_call_prints_does_not_mix_with_the_answer(capfd: pytest.CaptureFixture[str]):
    with Worker() as worker:
        worker.submit(print, "hello")
        assert worker.result() is None
    assert capfd.readouterr().out == ""


def test_a_dead_process_is_named():
    with Worker() as worker:
        worker.submit(os._exit, 1)
        with pytest.raises(WorkerDied):
            worker.result()


def dies(*_: object) -> None:
    os._exit(1)


def test_a_rank_whose_process_dies_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "analyze_file", dies)
    inputs = find_inputs([SAMPLES / "llama_tp2"]).inputs
    with pytest.raises(TracetoolsError, match=r"ended early.*--workers 1"):
        list(processes.map_ranks(inputs, Settings(), 2, None))


def test_processes_give_the_same_bytes_as_one():
    one = tracetools.load(SAMPLES / "llama_tp2", workers=1)
    two = tracetools.load(SAMPLES / "llama_tp2", workers=2)
    assert one.to_json() == two.to_json()


def test_workers_must_be_positive():
    with pytest.raises(UsageError, match="workers is 0"):
        tracetools.load(SAMPLES / "llama_tp2", workers=0)
