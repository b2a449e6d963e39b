"""A file read by several processes gives what one process reads, or is left to one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ingest import oracle
from tracetools.ingest import find_inputs, read_trace, shares
from tracetools.ingest.columns import TraceColumns
from tracetools.ingest.faults import Faults
from tracetools.table import Trace

SAMPLES = Path(__file__).parents[2] / "samples"
FILES = sorted(SAMPLES.glob("*/*.json.gz"))


class InThisProcess:
    """Stands where a worker process would, so that a small stretch length holds for it too."""

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def result(self) -> Any:
        function, arguments = self.call
        return function(*arguments)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(shares, "Worker", InThisProcess)
    monkeypatch.setattr(shares, "STRETCH", 10_007)
    return monkeypatch


def read(path: Path, processes: int) -> Trace:
    return read_trace(find_inputs([path], rank_of={path.name: 0}).inputs[0], processes=processes)


def in_shares(path: Path, processes: int) -> TraceColumns:
    columns = TraceColumns(Faults())
    shares.read_in_shares(find_inputs([path]).inputs[0], processes, columns, iter)
    return columns


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("path", "processes"),
    [*((path, 3) for path in FILES), (FILES[0], 2), (FILES[0], 8)],
    ids=lambda each: str(each)[-30:],
)
def test_same_columns_as_one_process(path: Path, processes: int, monkeypatch: pytest.MonkeyPatch):
    alone = read(path, 1)
    monkeypatch.setattr(shares, "processes_worth", lambda source, most: most)
    monkeypatch.setattr("tracetools.ingest.read.processes_worth", lambda source, most: most)
    monkeypatch.setattr("tracetools.ingest.read._read_alone", lambda *_: pytest.fail("fell back to one process"))
    together = read(path, processes)
    assert oracle.observed(together) == oracle.observed(alone)
    assert (together.metadata, together.bytes_read) == (alone.metadata, alone.bytes_read)
    assert (together.findings, together.truncated) == (alone.findings, alone.truncated)


def write(folder: Path, events: list[dict[str, Any]], **top: Any) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **top}), encoding="utf-8")
    return path


def ops(count: int, **more: Any) -> list[dict[str, Any]]:
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 1}
    return [{**event, "name": f"op {at}", "ts": at * 2.5, **more} for at in range(count)]


@pytest.mark.usefixtures("small")
def test_border_inside_an_argument_is_left_to_one_process(tmp_path: Path):
    path = write(tmp_path, ops(400, args={"odd": [{"ph": "X"}] * 20}))
    with pytest.raises(shares.Unusual):
        in_shares(path, 2)
    assert len(read(path, 2).events) == 400


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"op 7"', '"op \\7"'),
        lambda text: text.replace('"dur": 1', '"dur": -1', 1),
        lambda text: text.replace('"ph": "X"', '"ph": "B"', 1),
        lambda text: text[text.index("[") : text.rindex("]") + 1],
    ],
    ids=["cut", "escape", "negative", "begin", "list"],
)
def test_anything_odd_is_left_to_one_process(tmp_path: Path, damage: Any):
    path = write(tmp_path, ops(1000))
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(shares.Unusual):
        in_shares(path, 3)


def test_metadata_may_follow_the_list_and_real_processes_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shares, "_WORTH_A_PROCESS", 3 * shares.STRETCH)
    events = [{**each, "args": {"External id": at}} for at, each in enumerate(ops(260_000))]
    path = write(tmp_path, events, baseTimeNanoseconds=10**18, distributedInfo={"rank": 5})
    source = find_inputs([path]).inputs[0]
    assert shares.processes_worth(source, 2) == 2
    together, alone = read_trace(source, processes=2), read_trace(source)
    assert together.events.ts_ns.tolist() == [10**18 + at * 2500 for at in range(260_000)]
    assert together.events.argument("external_id").tolist() == list(range(260_000))
    assert (together.strings, together.metadata) == (alone.strings, alone.metadata)
