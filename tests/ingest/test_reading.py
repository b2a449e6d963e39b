"""What a well-formed trace becomes, whatever the order of its keys and the size of the pieces it is read in."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ingest import oracle
from tracetools.ingest import streams
from tracetools.table import ABSENT, Kind, Lane, Trace

CASES = Path(__file__).parents[1] / "cases"
TEMPORARY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def document(*events: dict[str, Any], **top: Any) -> str:
    return json.dumps({"schemaVersion": 1, **top, "traceEvents": list(events)}, ensure_ascii=False)


def op(name: str = "aten::mm", ts: Any = 1.5, dur: Any = 2, **fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur} | fields


def read_text(folder: Path, text: str | bytes) -> Trace:
    return oracle.read(oracle.write(folder / "trace.json", text))


def read_in_pieces(monkeypatch: pytest.MonkeyPatch, path: Path, size: int) -> Trace:
    text = oracle.text_of(path)
    with monkeypatch.context() as patch:
        patch.setattr(streams, "blocks", lambda _: iter([text[at : at + size] for at in range(0, len(text), size)]))
        return oracle.read(path)


def test_one_event_walks_through(tmp_path: Path):
    trace = read_text(
        tmp_path,
        '{"baseTimeNanoseconds": 1700000000000000000, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", '
        '"pid": 0, "tid": 7, "ts": 5229978982988.017, "dur": 388.075, '
        '"args": {"stream": 7, "correlation": 16, "External id": "42", "Comms Id": 17806456780113468321, '
        '"grid": [1, 2], "Input Dims": [[64],[4,64]], "dtype": "BFloat16", "device": null}}], "traceName": "/t"}',
    )
    events = trace.events
    assert events.ts_ns.tolist() == [1700000000000000000 + 5229978982988017]
    assert events.dur_ns.tolist() == [388075]
    assert events.kind.tolist() == [Kind.KERNEL]
    assert trace.lanes == (Lane(0, 7),)
    assert trace.metadata == {"baseTimeNanoseconds": 1700000000000000000, "traceName": "/t"}
    assert (trace.resolution_ns, trace.base_ns, trace.truncated, trace.findings) == (1, 1700000000000000000, False, ())
    assert oracle.observed(trace)["events"][0][-1] == {
        "stream": 7,
        "correlation": 16,
        "external_id": 42,
        "comms_id": "17806456780113468321",
        "input_dims": "[[64],[4,64]]",
        "dtype": "BFloat16",
    }
    assert events.argument("device").tolist() == [ABSENT]


def test_dtypes_are_those_of_the_contract(tmp_path: Path):
    trace = read_text(tmp_path, document(op(args={"correlation": 1, "dtype": "Float"})))
    events = trace.events
    assert [column.dtype for column in (events.ts_ns, events.dur_ns)] == [np.int64] * 2
    assert [column.dtype for column in (events.name, events.category, events.lane)] == [np.int32] * 3
    assert events.kind.dtype == np.uint8
    for sparse in events.arguments.values():
        assert (sparse.rows.dtype, sparse.values.dtype) == (np.int32, np.int64)
    assert (trace.flows.flow.dtype, trace.flows.is_start.dtype) == (np.int32, np.bool_)
    assert trace.instants.args.dtype == np.int64


def test_metadata_after_the_events_counts(tmp_path: Path):
    trace = read_text(
        tmp_path,
        '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1}], "baseTimeNanoseconds": 1000000, '
        '"distributedInfo": {"rank": 5}, "deviceProperties": [{"id": 0}, {"id": 1}]}',
    )
    assert trace.events.ts_ns.tolist() == [1001000]
    assert trace.metadata["distributedInfo"] == {"rank": 5}
    assert trace.metadata["deviceProperties"] == [{"id": 0}, {"id": 1}]


def test_begin_and_end_become_one_event(tmp_path: Path):
    begin = {"ph": "B", "cat": "cpu_op", "pid": 1, "tid": 1}
    end = {"ph": "E", "pid": 1, "tid": 1}
    trace = read_text(
        tmp_path,
        document(
            begin | {"name": "outer", "ts": 1, "args": {"External id": 3}},
            begin | {"name": "inner", "ts": 2.5},
            end | {"ts": 4},
            end | {"ts": 10},
            end | {"ts": 11},
        ),
    )
    rows = [(row[4], row[0], row[5]) for row in oracle.observed(trace)["events"]]
    assert rows == [("inner", 2500, 1500), ("outer", 1000, 9000)]
    assert trace.events.argument("external_id").tolist() == [ABSENT, 3]
    assert [(each.rule, each.count) for each in trace.findings] == [("open_begin_end", 1)]


def test_integers_in_strings_and_other_types(tmp_path: Path):
    values = [16, "16", "-3", 16.5, True, None, [16], 2**63, 2**64, -(2**63) + 1, "x", "1" * 30]
    trace = read_text(tmp_path, document(*(op(args={"correlation": value}) for value in values)))
    kept = [16, 16, -3, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, -(2**63) + 1, ABSENT, ABSENT]
    assert trace.events.argument("correlation").tolist() == kept


def test_args_of_other_shapes_leave_the_event(tmp_path: Path):
    odd = [None, [], [1], "text", 7, {}, {"External id": 1}]
    trace = read_text(tmp_path, document(*(op(args=args) for args in odd)))
    assert trace.events.argument("external_id").tolist() == [ABSENT] * 6 + [1]


def test_many_unknown_keys_and_categories(tmp_path: Path):
    events = [op(cat=f"made up {n}", args={f"key {n} {k}": k for k in range(40)} | {"stream": n}) for n in range(200)]
    trace = read_text(tmp_path, document(*events))
    assert trace.events.argument("stream").tolist() == list(range(200))
    assert set(trace.events.kind.tolist()) == {Kind.OTHER}


def test_words_and_numbers_as_lanes(tmp_path: Path):
    trace = read_text(tmp_path, document(op(tid="7"), op(tid=7), op(pid="Spans", tid=2**70), op(pid=None)))
    lanes = [trace.lanes[lane] for lane in trace.events.lane.tolist()]
    assert lanes == [Lane(1, "7"), Lane(1, 7), Lane("Spans", 2**70), Lane("", 1)]


def test_each_distinct_text_is_stored_once(tmp_path: Path):
    trace = read_text(
        tmp_path, document(*(op(args={"Input Dims": [[n % 3, 4]], "dtype": "cpu_op"}) for n in range(50)))
    )
    assert len(trace.strings) == len(set(trace.strings))
    assert len(trace.strings) == 2 + 3
    assert trace.strings[int(trace.events.argument("dtype")[0])] == "cpu_op"


def test_whole_us_make_a_coarse_clock(tmp_path: Path):
    assert read_text(tmp_path, document(op(ts=1, dur=2), op(ts=5, dur=1))).resolution_ns == 1000
    assert read_text(tmp_path, document(op(ts=1, dur=2), op(ts=5, dur=1.5))).resolution_ns == 1


def test_progress_adds_up(tmp_path: Path):
    path = oracle.write(tmp_path / "trace.json", document(*(op(ts=n) for n in range(5000))))
    told: list[int] = []
    trace = oracle.read_trace(oracle.source_of(path), told.append)
    assert sum(told) == trace.bytes_read == path.stat().st_size


words = st.text(st.sampled_from('ab}{][",:\\ \n\tпр\U0001f600')).filter(lambda word: word != "traceEvents")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
times = st.integers(0, 10**16).map(lambda ns: ns / 1000) | st.integers(0, 10**9)
arguments = st.dictionaries(
    st.sampled_from(["correlation", "External id", "stream", "Input Dims", "dtype", "Comms Id", "Ev Idx", "grid"])
    | words,
    json_values,
    max_size=5,
)
lane_words = st.integers(-5, 2**40) | words
events = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XXXXiICstf"),
        "name": words,
        "ts": times,
        "dur": times,
        "pid": lane_words,
        "tid": lane_words,
        "id": st.integers(0, 9) | words,
    },
    optional={"cat": st.sampled_from(["cpu_op", "kernel", "python_function", "Trace", "new"]), "args": arguments},
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A trace as some writer might put it: keys in any order, metadata before or after, any white space."""
    made = [dict(draw(st.permutations(list(event.items())))) for event in draw(st.lists(events, max_size=8))]
    top = draw(st.permutations([("traceEvents", made), ("baseTimeNanoseconds", 10**18), ("meta", draw(json_values))]))
    indent = draw(st.sampled_from([None, 0, 2]))
    return json.dumps(dict(top), ensure_ascii=draw(st.booleans()), indent=indent)


@TEMPORARY
@given(text=texts())
def test_any_writer_is_read_as_json_says(tmp_path: Path, text: str):
    trace = read_text(tmp_path, text)
    assert trace.findings == ()
    oracle.assert_same(trace, text.encode())


@TEMPORARY
@given(text=texts(), size=st.integers(1, 400))
def test_pieces_of_any_size_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, size: int):
    path = oracle.write(tmp_path / "trace.json", text)
    assert_equal(read_in_pieces(monkeypatch, path, size), oracle.read(path))


def test_a_piece_that_ends_before_the_comma_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # `}, {"` among the arguments looks like the border between two events; the real one comes later.
    event = '{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1, "args": {"correlation": [{}, {}]}}'
    text = f'{{"traceEvents": [{event}, {event}, {event}]}}'
    for size in range(1, len(event)):
        trace = read_in_pieces(monkeypatch, oracle.write(tmp_path / "trace.json", text), size)
        assert (len(trace.events), trace.findings) == (3, ()), size


@pytest.mark.parametrize("size", [50, 333, 2000])
def test_damaged_cases_in_pieces_give_the_same(monkeypatch: pytest.MonkeyPatch, size: int):
    for name in ("bad_escape_backslash", "bare_inf_bandwidth", "control_char_name", "invalid_utf8_name"):
        path = CASES / name / "trace.json"
        assert_equal(read_in_pieces(monkeypatch, path, size), oracle.read(path))


def assert_equal(first: Trace, second: Trace) -> None:
    for field in dataclasses.fields(Trace):
        if field.name not in ("events", "instants", "counters", "flows", "strings", "lanes"):
            assert getattr(first, field.name) == getattr(second, field.name), field.name
    assert oracle.observed(first) == oracle.observed(second)
