"""Cases about reading: damaged text, odd clocks, ranks that no file names."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

import tracetools
from tests.case import CASES, T0, analyse, at, file_of, findings, ops, strict_json, table, texts, trace, us
from tracetools.errors import TracetoolsError
from tracetools.findings import Severity


def event_names(name: str) -> list[str]:
    read = trace(name)
    return [read.strings[at] for at in read.events.name.tolist()]


def test_abs_ns_precision():
    events = trace("abs_ns_precision").events
    start, end = events.ts_ns.tolist(), (events.ts_ns + events.dur_ns).tolist()
    assert start == [1764550074000000000, 1764550075445637603, 1764550075922013490]
    assert end[1] == 1764550075922013441
    assert start[2] - end[1] == 49
    assert ops(analyse("abs_ns_precision"), "calls", "cpu_ns", "self_cpu_ns") == {
        "A": (1, 34670882955, 34670882955 - 476375838 - 300492826),
        "B": (1, 476375838, 476375838),
        "C": (1, 300492826, 300492826),
    }


def test_bad_escape_backslash():
    analysis = analyse("bad_escape_backslash")
    assert table(analysis.inputs, "rank", "status", "events") == {0: ("read", 4)}
    (repaired,) = findings(analysis, rule="bad_escape")
    assert (file_of(repaired.path), repaired.count, repaired.severity) == ("trace.json", 1, Severity.WARNING)
    assert event_names("bad_escape_backslash")[2] in (
        "torch\\cuda\\__init__.py(219): _lazy_init",
        "torch/cuda/__init__.py(219): _lazy_init",
    )
    assert ops(analysis, "calls", "cpu_ns") == {"aten::add": (1, us(20))}


def test_bare_inf_bandwidth():
    analysis = analyse("bare_inf_bandwidth")
    (gpu,) = analysis.gpu
    assert (gpu.busy_ns, gpu.exposed_copy_ns, gpu.compute_ns) == us(2, 2, 0)
    assert (gpu.kernels, gpu.kernel_ns) == (6, us(2))
    assert trace("bare_inf_bandwidth").events.arguments["bytes"].values.sum() == 1200
    (missing,) = findings(analysis, rule="not_a_number")
    assert missing.count == 5
    assert strict_json(msgspec.json.encode(analysis))["schema_version"] == 1


def test_base_time_differs():
    first, second = (trace("base_time_differs", f"rank{rank}.json").events for rank in (0, 1))
    assert first.ts_ns.tolist() == [1759300073900000000]
    assert second.ts_ns.tolist() == [1759300074100000000]
    assert int(second.ts_ns[0] + second.dur_ns[0] - first.ts_ns[0]) == us(200_020)
    assert table(analyse("base_time_differs").inputs, "rank", "status", "span_ns") == {
        0: ("read", us(20)),
        1: ("read", us(20)),
    }


def test_control_char_name():
    analysis = analyse("control_char_name")
    assert table(analysis.inputs, "rank", "status", "events") == {0: ("read", 3)}
    assert ops(analysis, "calls", "cpu_ns") == {"aten::relu": (1, us(7)), "aten::gelu": (1, us(9))}
    (repaired,) = findings(analysis, rule="control_character")
    assert (file_of(repaired.path), repaired.count, repaired.severity) == ("trace.json", 1, Severity.WARNING)
    assert not any(byte < 0x20 for byte in msgspec.json.encode(analysis))


def test_display_unit_trap():
    analysis = analyse("display_unit_trap")
    assert ops(analysis, "cpu_ns", "gpu_busy_ns", "kernel_ns") == {"aten::mm": us(100, 50, 50)}


def test_gz_multi_member():
    analysis = analyse("gz_multi_member")
    assert table(analysis.inputs, "rank", "status", "events") == {0: ("read", 6), 1: ("read", 1), 2: ("read", 0)}
    assert ops(analysis, "cpu_ns", rank=0) == {f"aten::op{k}": us(10) for k in range(6)}
    assert ops(analysis, "cpu_ns", rank=1) == {"aten::mul": us(5)}
    assert ops(analysis, "cpu_ns", rank=2) == {}


def test_interleaved_writers():
    with pytest.raises(TracetoolsError, match='a second "schemaVersion"'):
        tracetools.load(CASES / "interleaved_writers")


def test_interleaved_writers_beside_a_good_file(tmp_path: Path):
    shutil.copy(CASES / "interleaved_writers" / "trace.json", tmp_path / "mixed.json")
    shutil.copy(CASES / "flow_id_collision" / "rank1.json", tmp_path / "rank1.json")
    analysis = tracetools.load(tmp_path).analysis
    assert {file_of(row.path): row.status for row in analysis.inputs} == {
        "mixed.json": "unreadable",
        "rank1.json": "read",
    }
    assert ops(analysis, "kernel_ns", rank=1) == {"aten::mm": us(40)}
    (damage,) = findings(analysis, severity=Severity.ERROR)
    assert file_of(damage.path) == "mixed.json"


def test_invalid_utf8_name():
    analysis = analyse("invalid_utf8_name")
    assert table(analysis.inputs, "rank", "status", "events") == {0: ("read", 3)}
    damaged, op, legal = event_names("invalid_utf8_name")
    assert "\ufffd" in damaged
    assert damaged.endswith("(0): f")
    assert (op, legal) == ("aten::relu", "модель.py(3): вперёд")
    assert trace("invalid_utf8_name").events.dur_ns.tolist() == list(us(10, 7, 11))
    (repaired,) = findings(analysis, rule="invalid_utf8")
    assert (file_of(repaired.path), repaired.count, repaired.severity) == ("trace.json", 1, Severity.WARNING)


def test_list_form_legacy():
    analysis = analyse("list_form_legacy")
    assert table(analysis.inputs, "rank", "status", "events") == {None: ("read", 3)}
    assert (
        ops(analysis, "calls", "cpu_ns", rank=None).items()
        >= {
            "aten::add": (1, us(134.490)),
            "aten::mul": (1, us(54)),
        }.items()
    )
    assert table(analysis.gpu, "rank", "busy_ns", "kernels") == {None: (us(134.176), 1)}
    assert findings(analysis, rule="old_list_form")


def test_metadata_only():
    analysis = analyse("metadata_only")
    assert {file_of(row.path): (row.status, row.events) for row in analysis.inputs} == {
        "rank0.json": ("read", 4 - 1),
        "rank1.json": ("read", 0),
        "rank2.json": ("read", 0),
        "rank3.json": ("unreadable", 0),
        "rank4.json": ("unreadable", 0),
    }
    assert ops(analysis, "cpu_ns", "kernel_ns") == {"aten::mm": us(20, 30)}
    assert {row.rank for row in analysis.ops} == {0}
    damaged = findings(analysis, severity=Severity.ERROR)
    assert sorted(file_of(finding.path) for finding in damaged) == ["rank3.json", "rank4.json"]


def test_negative_duration():
    analysis = analyse("negative_duration")
    assert sum(row.cpu_ns for row in analysis.ops) == us(30)
    assert ops(analysis, "cpu_ns").items() >= {"aten::mm": us(20), "aten::add": us(10)}.items()
    assert table(analysis.inputs, "rank", "span_ns") == {0: us(50)}
    assert trace("negative_duration").events.dur_ns.min() >= 0
    (negative,) = findings(analysis, rule="negative_duration")
    assert negative.count == 1


UNNAMED = "node-a_4000.1764550000000000002.pt.trace.json"


def test_no_rank_two_files():
    # The digits of the third file's name are a pid and a time.
    with pytest.raises(TracetoolsError, match="no rank is known") as refusal:
        tracetools.load(CASES / "no_rank_two_files")
    assert UNNAMED in str(refusal.value)
    assert "rank3_trace.json" not in str(refusal.value)
    assert "--rank" in str(refusal.value)


def test_no_rank_two_files_given_a_map():
    analysis = tracetools.load(CASES / "no_rank_two_files", rank_of={UNNAMED: 5}).analysis
    assert table(analysis.ops, "rank name", "cpu_ns") == {
        (3, "aten::add"): us(13),
        (5, "aten::add"): us(10),
        (7, "aten::add"): us(17),
    }
    assert table(analysis.inputs, "rank", "rank_source") == {3: "name", 5: "option", 7: "name"}
    assert [finding.rank for finding in findings(analysis, rule="rank_from_name")] == [3, 7]


def test_old_abs_us():
    new, old = (trace("old_abs_us", f"rank{rank}.json") for rank in (0, 1))
    assert new.events.ts_ns.tolist() == [T0, at(5), at(15)]
    assert old.events.ts_ns.tolist() == [at(80), at(85), at(100)]
    assert old.events.dur_ns.tolist() == list(us(20, 5, 300))
    assert (new.resolution_ns, old.resolution_ns) == (1, 1000)
    assert [finding.rank for finding in findings(analyse("old_abs_us"), rule="coarse_clock")] == [1]


def test_premerged_input():
    with pytest.raises(TracetoolsError, match=r"(?i)merged"):
        tracetools.load(CASES / "premerged_input")


def test_string_ts():
    events = trace("string_ts").events
    assert (events.ts_ns[0], events.dur_ns[0]) == (1764550074000100123, 5250)
    assert ops(analyse("string_ts"), "cpu_ns") == {"aten::mm": us(5.250), "aten::add": us(4)}


def test_truncated_json():
    analysis = analyse("truncated_json")
    assert table(analysis.inputs, "rank", "status") == {0: "partial", 1: "partial"}
    assert ops(analysis, "calls", "cpu_ns", rank=0) == {f"aten::op{k}": (1, us(10)) for k in range(5)}
    whole = ops(analysis, "cpu_ns", rank=1)
    assert 215 <= len(whole) <= 219
    assert whole == {f"aten::op{k}": us(10) for k in range(len(whole))}
    assert trace("truncated_json", "rank0.json").truncated
    damaged = findings(analysis, severity=Severity.ERROR)
    assert {file_of(finding.path) for finding in damaged} == {"rank0.json", "rank1.json.gz"}


def test_uint64_comms_id():
    for file in ("rank0.json", "rank1.json"):
        # Op and kernel of each collective carry the id.
        assert (
            texts(trace("uint64_comms_id", file), "comms_id")
            == ["17806456780113468321"] * 2 + ["17806456780113468322"] * 2
        )
    assert table(analyse("uint64_comms_id").gpu, "rank", "communication_ns") == {0: us(60), 1: us(54)}
