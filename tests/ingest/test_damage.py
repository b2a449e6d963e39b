"""What real writers got wrong: each kind is put right event by event, and counted in a finding."""

from __future__ import annotations

import gzip
import random
import time
from pathlib import Path

import pytest

from tests.ingest import oracle
from tests.ingest.test_reading import CASES, document, op, read_text
from tracetools.errors import UnreadableTrace
from tracetools.findings import Severity
from tracetools.table import Kind, Trace

HEAD = '{"schemaVersion": 1, "distributedInfo": {"rank": 2}, "baseTimeNanoseconds": 0, "traceEvents": ['
TAIL = '], "traceName": "/tmp/t.json"}'
GOOD = '{"ph": "X", "cat": "cpu_op", "name": "good", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2, "args": {"stream": 7}}'


def names(trace: Trace) -> list[str]:
    return [trace.strings[name] for name in trace.events.name.tolist()]


def faults(trace: Trace) -> dict[str, int]:
    return {finding.rule: finding.count for finding in trace.findings}


def case(name: str, file: str = "trace.json") -> Trace:
    return oracle.read(CASES / name / file)


def between_good(folder: Path, damaged: str | bytes) -> Trace:
    """A trace of two good events with the damaged one between them."""
    middle = damaged.encode() if isinstance(damaged, str) else damaged
    return read_text(folder, (HEAD + GOOD + ",").encode() + middle + ("," + GOOD + TAIL).encode())


def test_bad_escape_backslash():
    trace = case("bad_escape_backslash")
    assert faults(trace) == {"bad_escape": 1}
    assert "torch\\cuda\\__init__.py(219): _lazy_init" in names(trace)
    assert sum(trace.events.dur_ns.tolist()) == 100_000 + 20_000 + 5_000 + 5_000


def test_bare_inf_bandwidth():
    trace = case("bare_inf_bandwidth")
    assert faults(trace) == {"not_a_number": 5}
    copies = trace.events.kind == Kind.MEMCPY
    assert (int(copies.sum()), trace.events.argument("bytes")[copies].sum()) == (6, 1200)
    assert trace.events.dur_ns[copies].sum() == 2000


def test_control_char_name():
    trace = case("control_char_name")
    assert faults(trace) == {"control_character": 1}
    assert len(names(trace)) == 3
    (odd,) = (name for name in names(trace) if not name.isprintable())
    assert {"\x01", "\x1b"} <= set(odd)


def test_invalid_utf8_name():
    trace = case("invalid_utf8_name")
    assert faults(trace) == {"invalid_utf8": 1}
    assert [name for name in names(trace) if "\ufffd" in name] == names(trace)[:1]
    assert "модель.py(3): вперёд" in names(trace)


def test_truncated_json():
    plain, zipped = case("truncated_json", "rank0.json"), case("truncated_json", "rank1.json.gz")
    assert len(plain.events) == 5
    assert plain.events.dur_ns.sum() == 50_000
    assert 210 <= len(zipped.events) <= 219
    for trace in (plain, zipped):
        assert trace.truncated
        (finding,) = trace.findings
        assert (finding.rule, finding.severity) == ("truncated", Severity.ERROR)


def test_negative_duration():
    trace = case("negative_duration")
    assert faults(trace) == {"negative_duration": 1}
    assert sorted(trace.events.dur_ns.tolist()) == [0, 10_000, 20_000]


def test_string_ts():
    trace = case("string_ts")
    assert (trace.events.ts_ns[0], trace.events.dur_ns[0]) == (1764550074000100123, 5250)
    assert faults(trace) == {}


def test_list_form_legacy():
    trace = case("list_form_legacy")
    by_kind = {kind: trace.events.dur_ns[trace.events.kind == kind].sum() for kind in (Kind.CPU_OP, Kind.KERNEL)}
    assert by_kind == {Kind.CPU_OP: 134_490 + 54_000, Kind.KERNEL: 134_176}
    assert faults(trace) == {"old_list_form": 1}
    assert (trace.base_ns, trace.metadata) == (0, {})


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("interleaved_writers", "trace.json", ["schemaVersion", "file of its own"]),
        ("premerged_input", "merged-by-another-tool.json", ["[TP00] 83", "[TP01] 83", "files that the ranks wrote"]),
        ("metadata_only", "rank3.json", ["empty", "torch.profiler"]),
        ("metadata_only", "rank4.json", ["no traceEvents"]),
    ],
)
def test_what_is_beyond_use_is_refused_in_one_line(name: str, file: str, words: list[str]):
    with pytest.raises(UnreadableTrace) as caught:
        case(name, file)
    message = str(caught.value)
    assert message.startswith(str(CASES / name / file))
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


def test_files_without_events_are_traces():
    assert [len(case("metadata_only", f"rank{rank}.json").events) for rank in (0, 1, 2)] == [3, 0, 0]


@pytest.mark.parametrize(
    ("name", "written", "rule"),
    [
        ('print("hello")', b'print("hello")', "unescaped_quote"),
        ('f("a", "b")[0]', b'f("a", "b")[0]', "unescaped_quote"),
        ("C:\\Users\\x", b"C:\\Users\\x", "bad_escape"),
        ("\\u12", b"\\u12", "bad_escape"),
        ("a\x00b\x1fc", b"a\x00b\x1fc", "control_character"),
        ("tab\tline\nend", b"tab\tline\nend", "control_character"),
        ("a\ufffdb", b"a\xffb", "invalid_utf8"),
        ("a\ufffdb", b"a\\ud800b", "invalid_utf8"),
        ("pair \U0001f600 lone \ufffd", b"pair \\ud83d\\ude00 lone \\ude00", "invalid_utf8"),
    ],
)
def test_names_are_put_right(tmp_path: Path, name: str, written: bytes, rule: str):
    trace = between_good(tmp_path, GOOD.encode().replace(b"good", written))
    assert names(trace) == ["good", name, "good"]
    assert faults(trace) == {rule: 1}
    assert trace.events.argument("stream").tolist() == [7, 7, 7]
    assert trace.metadata["traceName"] == "/tmp/t.json"


@pytest.mark.parametrize("word", ["inf", "-inf", "nan", "Infinity", "-Infinity", "NaN", "-nan"])
def test_bare_words_are_missing_values(tmp_path: Path, word: str):
    trace = between_good(tmp_path, GOOD.replace('"stream": 7', f'"memory bandwidth (GB/s)": {word}, "stream": {word}'))
    assert faults(trace) == {"not_a_number": 1}
    assert trace.events.argument("stream").tolist()[::2] == [7, 7]
    assert len(trace.events.arguments["stream"].rows) == 2


def test_a_name_that_is_a_bare_word_stays(tmp_path: Path):
    trace = between_good(tmp_path, GOOD.replace("good", "inf").replace("7}", "7,}"))
    assert names(trace)[1] == "inf"
    assert faults(trace) == {"stray_comma": 1}


@pytest.mark.parametrize(
    ("field", "rule"),
    [
        ('"ts": null', "missing_time"),
        ('"ts": "soon"', "missing_time"),
        ('"ts": inf', "missing_time"),
        ('"ts": 1e300', "time_overflow"),
        ('"ts": 99999999999999999999', "time_overflow"),
    ],
)
def test_events_without_a_time_are_lost_and_counted(tmp_path: Path, field: str, rule: str):
    trace = between_good(tmp_path, GOOD.replace('"ts": 1.5', field))
    assert names(trace) == ["good", "good"]
    assert {key: n for key, n in faults(trace).items() if key != "not_a_number"} == {rule: 1}


@pytest.mark.parametrize("field", ['"dur": null', '"dur": "x"', '"other": 2', '"dur": 1e300'])
def test_events_without_a_length_have_length_zero(tmp_path: Path, field: str):
    trace = between_good(tmp_path, GOOD.replace('"dur": 2', field))
    assert trace.events.dur_ns.tolist() == [2000, 0, 2000]
    assert faults(trace) == {"missing_duration": 1}


@pytest.mark.parametrize(
    ("written", "name", "lane"),
    [
        ('"name": 17', "17", (1, 1)),
        ('"name": ["a"]', '["a"]', (1, 1)),
        ('"name": null', "", (1, 1)),
        ('"name": "good", "pid": 1.5', "good", ("1.5", 1)),
        ('"name": "good", "tid": {"a": 1}', "good", (1, '{"a": 1}')),
    ],
)
def test_fields_of_other_types_become_text(tmp_path: Path, written: str, name: str, lane: tuple[object, object]):
    event = GOOD.replace('"name": "good"', written)
    for key in ("pid", "tid"):
        if key in written:
            event = event.replace(f'"{key}": 1, ', "")
    trace = between_good(tmp_path, event)
    assert names(trace) == ["good", name, "good"]
    kept = trace.lanes[int(trace.events.lane[1])]
    assert (kept.pid, kept.tid) == lane
    assert faults(trace) == {"odd_field": 1}


@pytest.mark.parametrize("entry", ["17", "null", '"text"', "[1, 2]", "[]"])
def test_entries_that_are_no_objects_are_left_out(tmp_path: Path, entry: str):
    trace = between_good(tmp_path, entry)
    assert names(trace) == ["good", "good"]
    assert faults(trace) == {"not_an_object": 1}


def test_phases_of_no_use_are_counted(tmp_path: Path):
    trace = read_text(tmp_path, document(op(), op(ph="N"), op(ph="D"), op(ph=""), op(ph="long")))
    assert names(trace) == ["aten::mm"]
    assert faults(trace) == {"unknown_phase": 4}


@pytest.mark.parametrize(
    "tail", ["", "]", "],", "]}", ",]}", ', ], "traceName": "t"}', '], "traceName": "t"', "]}\0\0", "]} x"]
)
def test_ends_of_all_kinds_keep_all_events(tmp_path: Path, tail: str):
    trace = read_text(tmp_path, HEAD + GOOD + "," + GOOD + tail)
    assert names(trace) == ["good", "good"]
    assert trace.truncated == (tail == "")
    expected = {"": "truncated", ",]}": "stray_comma", ', ], "traceName": "t"}': "stray_comma"}
    expected |= {"]": "unclosed", "],": "unclosed", '], "traceName": "t"': "unclosed"}
    expected |= {"]}\0\0": "trailing_garbage", "]} x": "trailing_garbage"}
    assert list(faults(trace)) == ([expected[tail]] if tail in expected else [])
    assert trace.metadata["distributedInfo"] == {"rank": 2}


def test_a_file_cut_anywhere_keeps_its_whole_events(tmp_path: Path):
    text = HEAD + ",".join(GOOD.replace("good", f"op{k}") for k in range(4)) + TAIL
    start = len(HEAD)
    for cut in range(start, len(text)):
        trace = read_text(tmp_path, text[:cut])
        whole = min(4, (cut - start + 1) // (len(GOOD.replace("good", "op0")) + 1))
        assert names(trace) == [f"op{k}" for k in range(whole)], cut
        assert trace.truncated or "unclosed" in faults(trace)


def test_gzip_cut_and_flipped(tmp_path: Path):
    random_names = random.Random(1)
    events = [op(name=f"{random_names.random()}", ts=n, dur=1) for n in range(3000)]
    packed = gzip.compress(document(*events).encode())
    cut = read_text(tmp_path, packed[: len(packed) * 6 // 10])
    assert cut.truncated
    assert 1500 < len(cut.events) < 2000
    wrong_sum = packed[:-8] + b"\0\0\0\0" + packed[-4:]
    trace = read_text(tmp_path, wrong_sum)
    assert len(trace.events) == 3000
    assert faults(trace) == {"bad_compression": 1}
    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 0xFF
    trace = read_text(tmp_path, bytes(flipped))
    assert 0 < len(trace.events) < 3000
    assert trace.truncated
    trace = read_text(tmp_path, packed + b"\0" * 100)
    assert (len(trace.events), trace.truncated) == (3000, False)


def test_deep_nesting_costs_one_value(tmp_path: Path):
    deep = "[" * 100_000 + "]" * 100_000
    trace = between_good(tmp_path, GOOD.replace('"stream": 7', f'"Input Dims": {deep}, "stream": 5'))
    assert trace.events.argument("stream").tolist() == [7, 5, 7]
    assert faults(trace) == {"deep_nesting": 1}


def test_nesting_without_end_is_lost(tmp_path: Path):
    trace = between_good(tmp_path, GOOD.replace("7", "[" * 100_000))
    assert names(trace)[0] == "good"
    assert trace.findings


def test_an_event_without_end_costs_itself(tmp_path: Path):
    endless = '{"ph": "X", "name": "' + "x" * (40 << 20)
    text = HEAD + GOOD + "," + endless + "," + ",".join([GOOD] * 20) + TAIL
    trace = read_text(tmp_path, text)
    assert names(trace).count("good") >= 20
    assert faults(trace)["unreadable_event"] >= 1


def test_one_bad_event_in_many_is_found_and_fast(tmp_path: Path):
    text = HEAD + ",".join([GOOD] * 20_000 + [GOOD.replace("good", 'say("x")')] + [GOOD] * 20_000) + TAIL
    path = oracle.write(tmp_path / "trace.json", text)
    start = time.process_time()
    trace = oracle.read(path)
    assert time.process_time() - start < 2
    assert len(trace.events) == 40_001
    assert faults(trace) == {"unescaped_quote": 1}


@pytest.mark.parametrize(
    "unit",
    [
        "[",
        "{",
        '"',
        "\\",
        '\\"',
        ",",
        " ",
        "}",
        "]",
        "1",
        "{},",
        "1,",
        '},{"ph":',
        '{"ph":',
        '}],"a":',
        'a", ',
        '{"ph": "X"}, ',
    ],
)
def test_hostile_text_takes_no_longer_than_it_is_long(tmp_path: Path, unit: str):
    path = oracle.write(tmp_path / "trace.json", HEAD + GOOD + ", " + '{"name": "' + unit * ((3 << 20) // len(unit)))
    start = time.process_time()
    trace = oracle.read(path)
    assert time.process_time() - start < 5
    assert names(trace)[0] == "good"
    assert trace.findings


def test_a_missing_comma_or_bracket_costs_no_neighbour(tmp_path: Path):
    broken = GOOD.replace('"pid": 1, ', '"pid": 1 ')
    trace = between_good(tmp_path, broken)
    assert names(trace)[0] == names(trace)[-1] == "good"
    assert faults(trace) == {"unreadable_event": 1}
    open_ended = between_good(tmp_path, GOOD[:60] + GOOD)
    assert names(open_ended) == ["good"] * 3
    assert faults(open_ended) == {"unreadable_event": 1}


def test_duplicate_keys_mean_the_last(tmp_path: Path):
    trace = between_good(tmp_path, GOOD.replace('"ts": 1.5', '"ts": 1.5, "ts": 9, "name": "twice"'))
    assert names(trace)[1] == "twice"
    assert trace.events.ts_ns.tolist()[1] == 9000


def test_damaged_metadata_keeps_what_can_be_read(tmp_path: Path):
    head = '{"schemaVersion": 1, "baseTimeNanoseconds": 1000, "path": "C:\\cuda", "bandwidth": inf, "traceEvents": ['
    trace = read_text(tmp_path, head + GOOD + TAIL)
    assert (trace.base_ns, trace.metadata["path"], trace.metadata["bandwidth"]) == (1000, "C:\\cuda", None)
    assert faults(trace) == {"odd_metadata": 1}


def test_a_base_time_without_sense_is_left_out(tmp_path: Path):
    trace = read_text(tmp_path, HEAD.replace('Nanoseconds": 0', 'Nanoseconds": 99999999999999999999') + GOOD + TAIL)
    assert trace.base_ns == 0
    assert faults(trace) == {"odd_metadata": 1}


def test_two_traces_in_one_file_are_refused(tmp_path: Path):
    text = HEAD + GOOD + TAIL
    for both in (text + text, text + "\n" + text, HEAD + GOOD + "," + text):
        with pytest.raises(UnreadableTrace, match="second"):
            read_text(tmp_path, both)


@pytest.mark.parametrize(
    "text", ["", "  \n", "{}", "[", "nonsense", '{"a": 1}', "\x1f\x8b", "\x1f\x8b\x08", "\0" * 100, "[]"]
)
def test_what_is_no_trace(tmp_path: Path, text: str):
    if text in ("[", "[]"):
        assert len(read_text(tmp_path, text).events) == 0
        return
    with pytest.raises(UnreadableTrace, match=r"trace\.json"):
        read_text(tmp_path, text.encode("latin-1"))


def test_findings_name_rule_file_and_way_out(tmp_path: Path):
    trace = between_good(tmp_path, GOOD.replace("good", 'say("x")'))
    (finding,) = trace.findings
    assert finding.path == trace.path
    assert trace.path in finding.message
    assert finding.affects
