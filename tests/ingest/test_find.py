"""Which files are taken for traces, and which rank each gets."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.oracle import write
from tests.ingest.test_reading import CASES, document, op
from tracetools.errors import NothingReadable, UnreadableTrace, UsageError
from tracetools.findings import Severity
from tracetools.ingest import Discovery, find_inputs, read_trace


def ranked(rank: int, name: str = "op", **top: Any) -> str:
    return document(op(name), distributedInfo={"backend": "nccl", "pg_config": [{"rank": 99}], "rank": rank}, **top)


def found(discovery: Discovery) -> dict[str, tuple[int | None, str | None]]:
    return {
        Path(each.label).name if each.member is None else each.member: (each.rank, each.rank_source)
        for each in discovery.inputs
    }


def rules(discovery: Discovery) -> list[str]:
    return sorted(finding.rule for finding in discovery.findings)


def tar(path: Path, mode: str, members: dict[str, str]) -> None:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, text in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


def test_a_folder_is_searched_and_its_other_files_do_not_disturb(tmp_path: Path):
    write(tmp_path / "b.json", ranked(1))
    (tmp_path / "deep" / "er").mkdir(parents=True)
    write(tmp_path / "deep" / "er" / "a.pt.trace.json.gz", gzip.compress(ranked(0).encode()))
    for name in ("README.md", "run.log", ".hidden.json", "c.json.tmp", "model.py", "weights.bin", "merged.pftrace"):
        write(tmp_path / name, ranked(7))
    write(tmp_path / "package.json", '{"name": "thing"}')
    write(tmp_path / "analysis.json", '{"schema_version": 1, "inputs": [{"path": "a"}]}')
    write(tmp_path / "list.json", "[1, 2, 3]")
    (tmp_path / "trace").mkdir()
    (tmp_path / ".git").mkdir()
    write(tmp_path / ".git" / "x.json", ranked(8))
    discovery = find_inputs([tmp_path])
    assert found(discovery) == {"a.pt.trace.json.gz": (0, "distributedInfo"), "b.json": (1, "distributedInfo")}
    assert rules(discovery) == ["not_a_trace"] * 3
    assert {finding.severity for finding in discovery.findings} == {Severity.NOTE}


def test_inputs_come_by_rank_then_path(tmp_path: Path):
    for name, rank in (("a", 11), ("b", 2), ("c", 10)):
        write(tmp_path / f"{name}.json", ranked(rank))
    assert [each.rank for each in find_inputs([tmp_path]).inputs] == [2, 10, 11]
    backwards = find_inputs([tmp_path / f"{name}.json" for name in "cba"])
    assert backwards.inputs == find_inputs([tmp_path]).inputs


def test_patterns_and_repeated_paths(tmp_path: Path):
    for rank in range(3):
        write(tmp_path / f"x{rank}.json", ranked(rank))
    assert len(find_inputs([str(tmp_path / "x[01].json")]).inputs) == 2
    assert len(find_inputs([str(tmp_path / "*.json"), tmp_path, tmp_path / "x1.json"]).inputs) == 3
    os.symlink(tmp_path / "x1.json", tmp_path / "same.json")
    assert len(find_inputs([tmp_path]).inputs) == 3


def test_size_host_and_label(tmp_path: Path):
    path = write(tmp_path / "t.json", ranked(4, host_name="node-a"))
    (source,) = find_inputs([path]).inputs
    assert (source.path, source.label, source.member) == (path, str(path), None)
    assert (source.size_bytes, source.host, source.rank) == (path.stat().st_size, "node-a", 4)


@pytest.mark.parametrize("packed", [False, True])
def test_rank_after_many_events(tmp_path: Path, packed: bool):
    events = ",".join(json.dumps(op(ts=n)) for n in range(60_000))
    text = '{"traceEvents": [' + events + '], "host_name": "h", "distributedInfo": {"rank": 6, "ranks": [1]}}'
    path = write(tmp_path / "t.json", gzip.compress(text.encode(), 1) if packed else text)
    (source,) = find_inputs([path]).inputs
    assert (source.rank, source.rank_source, source.host) == (6, "distributedInfo", "h")


def test_a_large_process_group_table_after_the_events(tmp_path: Path):
    groups = [{"pg_name": str(n), "ranks": list(range(64))} for n in range(20_000)]
    tail = json.dumps({"distributedInfo": {"pg_config": groups, "rank": 3}, "traceName": "x"})
    path = write(tmp_path / "t.json", '{"traceEvents": [' + json.dumps(op()) + "], " + tail[1:])
    assert len(tail) > 4 << 20
    assert find_inputs([path]).inputs[0].rank == 3


def test_rank_from_our_own_metadata(tmp_path: Path):
    path = write(tmp_path / "t.json", document(op(), tracetools={"rank": 9, "host": "node-b"}))
    (source,) = find_inputs([path]).inputs
    assert (source.rank, source.rank_source, source.host) == (9, "metadata", "node-b")


def test_our_own_merged_file_is_passed_over_in_a_folder(tmp_path: Path):
    write(tmp_path / "a.json", ranked(0))
    write(tmp_path / "merged.json", document(op(), tracetools={"merged": True}))
    assert found(find_inputs([tmp_path])) == {"a.json": (0, "distributedInfo")}


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json", 34),
        ("rank_00012_trace.json", 12),
        ("rank-00003.trace.json", 3),
        ("run_rank7.json", 7),
        ("Rank 5.json", 5),
        ("node-a_4000.1764550000000000002.pt.trace.json", None),
        ("worker0.1623143089861.pt.trace.json", None),
        ("frank3.json", None),
        ("tp_rank0_pp_rank1.json", None),
        ("local_rank1.json", None),
        ("rank1_of_rank8.json", None),
        ("trace_3.json", None),
    ],
)
def test_rank_from_the_name_where_the_file_does_not_say(tmp_path: Path, name: str, rank: int | None):
    discovery = find_inputs([write(tmp_path / name, document(op()))])
    assert found(discovery) == {name: (rank, None if rank is None else "name")}
    assert rules(discovery) == ([] if rank is None else ["rank_from_name"])


def test_rank_from_the_folder_s_name(tmp_path: Path):
    for rank in (0, 1):
        (tmp_path / f"rank_{rank}").mkdir()
        write(tmp_path / f"rank_{rank}" / "trace.json", document(op()))
    assert [each.rank for each in find_inputs([tmp_path]).inputs] == [0, 1]


def test_the_user_s_pattern_wins_over_the_automatic_one(tmp_path: Path):
    path = write(tmp_path / "rank3_w8.json", document(op()))
    assert found(find_inputs([path], rank_from_name=r"w(\d+)")) == {"rank3_w8.json": (8, "name")}
    stated = write(tmp_path / "rank4_w9.json", ranked(2))
    assert find_inputs([stated], rank_from_name=r"w(\d+)").inputs[0].rank == 2


@pytest.mark.parametrize(
    ("pattern", "words"), [("rank", "no group"), ("(", "no regular expression"), ("(ra)nk", "no number")]
)
def test_patterns_without_sense(tmp_path: Path, pattern: str, words: str):
    path = write(tmp_path / "rank3.json", document(op()))
    with pytest.raises(UsageError, match=words):
        find_inputs([path], rank_from_name=pattern)


def test_the_user_s_map_wins_over_all(tmp_path: Path):
    path = write(tmp_path / "a.json", ranked(1))
    other = write(tmp_path / "b.json", document(op()))
    given = find_inputs([tmp_path], rank_of={str(path): 5, "b.json": 6})
    assert found(given) == {"a.json": (5, "option"), "b.json": (6, "option")}
    assert other.name == "b.json"
    with pytest.raises(UsageError, match=r"--rank nowhere\.json=5 names no input"):
        find_inputs([tmp_path], rank_of={"nowhere.json": 5})


def test_one_rank_in_two_files(tmp_path: Path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.json", ranked(3))
    with pytest.raises(UsageError) as caught:
        find_inputs([tmp_path])
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    assert str(caught.value) == f"rank 3 appears in two files: {first}, {second}; delete one or pass --rank FILE=N"


def test_no_rank_two_files():
    folder = CASES / "no_rank_two_files"
    unnamed = "node-a_4000.1764550000000000002.pt.trace.json"
    with pytest.raises(UsageError, match=r"no rank is known for .*node-a_4000.*--rank FILE=N .*--rank-from-name REGEX"):
        find_inputs([folder])
    discovery = find_inputs([folder], rank_of={unnamed: 0})
    assert found(discovery) == {
        unnamed: (0, "option"),
        "rank3_trace.json": (3, "name"),
        "rank7_trace.json": (7, "name"),
    }
    assert {finding.rank for finding in discovery.findings if finding.rule == "rank_from_name"} == {3, 7}


def test_metadata_only():
    discovery = find_inputs([CASES / "metadata_only"])
    assert [each.rank for each in discovery.inputs] == [0, 1, 2, 3, 4]
    for source in discovery.inputs[3:]:
        with pytest.raises(UnreadableTrace):
            read_trace(source)


def test_an_empty_file_takes_no_rank_away_and_needs_none(tmp_path: Path):
    write(tmp_path / "a.json", ranked(3))
    write(tmp_path / "b.json", ranked(4))
    write(tmp_path / "rank3.json", "")
    write(tmp_path / "more_trace.json", "{}")
    discovery = find_inputs([tmp_path])
    assert [each.rank for each in discovery.inputs] == [3, 4, None, None]


def test_a_file_named_outright_is_never_dropped(tmp_path: Path):
    for name, text in (("a.txt", "hello"), ("b.json", '{"x": 1}'), ("empty", "")):
        (source,) = find_inputs([write(tmp_path / name, text)]).inputs
        with pytest.raises(UnreadableTrace, match=name):
            read_trace(source)


def test_paths_that_lead_nowhere(tmp_path: Path):
    with pytest.raises(UsageError, match="no such file or folder"):
        find_inputs([tmp_path / "missing.json"])
    with pytest.raises(UsageError, match="no such file or folder"):
        find_inputs([str(tmp_path / "*.json")])
    with pytest.raises(NothingReadable, match="no trace in"):
        find_inputs([tmp_path])
    with pytest.raises(NothingReadable):
        find_inputs([])


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_archives_of_traces(tmp_path: Path, kind: str):
    members = {
        "run/r1.json": ranked(1, "one"),
        "run/r0.json": ranked(0, "zero"),
        "run/README.md": "x",
        "../up.json": ranked(2),
    }
    path = tmp_path / f"traces.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in members.items():
                archive.writestr(name, text)
    else:
        tar(path, "w:" + kind.partition(".")[2], members)
    discovery = find_inputs([path])
    assert found(discovery) == {
        name: (rank, "distributedInfo") for rank, name in enumerate(["run/r0.json", "run/r1.json", "../up.json"])
    }
    assert discovery.inputs[0].label == f"{path}!run/r0.json"
    trace = read_trace(discovery.inputs[1])
    assert "one" in trace.strings
    assert trace.path == f"{path}!run/r1.json"
    assert not (tmp_path.parent / "up.json").exists()


def test_gzip_inside_zip_and_zip_inside_a_folder(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("r0.json.gz", gzip.compress(ranked(0).encode()))
    discovery = find_inputs([tmp_path])
    assert found(discovery) == {"r0.json.gz": (0, "distributedInfo")}
    assert len(read_trace(discovery.inputs[0]).events) == 1


@pytest.mark.parametrize("data", [b"PK\x03\x04" + b"\0" * 50, b"\0" * 257 + b"ustar" + b"\xff" * 300])
def test_broken_archives_are_named(tmp_path: Path, data: bytes):
    (source,) = find_inputs([write(tmp_path / "t.zip", data)]).inputs
    with pytest.raises(UnreadableTrace, match=r"t\.zip"):
        read_trace(source)


def test_gz_multi_member():
    discovery = find_inputs([CASES / "gz_multi_member"])
    traces = [read_trace(each) for each in discovery.inputs]
    assert [(len(trace.events), int(trace.events.dur_ns.sum())) for trace in traces] == [
        (6, 60_000),
        (1, 5_000),
        (0, 0),
    ]
    assert [trace.findings for trace in traces] == [(), (), ()]


def test_a_gzip_bomb_is_not_swallowed_whole(tmp_path: Path):
    bomb = gzip.compress(b'{"a": "' + b" " * (80 << 20), 1)
    (source,) = find_inputs([write(tmp_path / "t.json.gz", bomb)]).inputs
    with pytest.raises(UnreadableTrace, match="no traceEvents"):
        read_trace(source)


def test_files_that_vanish_or_may_not_be_read(tmp_path: Path):
    path = write(tmp_path / "t.json", ranked(0))
    (source,) = find_inputs([path]).inputs
    shutil.move(path, tmp_path / "gone.json")
    with pytest.raises(UnreadableTrace, match=r"t\.json"):
        read_trace(source)


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path):
    (tmp_path / "lost.json").symlink_to(tmp_path / "gone.json")
    for given in (tmp_path / "lost.json", tmp_path / "l*.json"):
        (source,) = find_inputs([given]).inputs
        with pytest.raises(UnreadableTrace, match="No such file"):
            read_trace(source)


def test_a_pipe_is_refused_and_does_not_hang(tmp_path: Path):
    pipe = tmp_path / "trace.json"
    os.mkfifo(pipe)
    write(tmp_path / "good.json", ranked(0))
    for given in (pipe, tmp_path):
        source = next(each for each in find_inputs([given]).inputs if each.path == pipe)
        with pytest.raises(UnreadableTrace, match="a pipe or a device"):
            read_trace(source)
