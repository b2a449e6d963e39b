"""Files of a report: the JSON document, CSV that a spreadsheet opens safely, and writing whole or not at all."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import msgspec
import pytest

from tests.report import made
from tracetools.errors import UsageError
from tracetools.report import files, tables
from tracetools.report import json as document
from tracetools.results import Analysis
from tracetools.run import Run


def reject_constant(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def parsed(content: bytes) -> dict[str, object]:
    result: dict[str, object] = json.loads(content, parse_constant=reject_constant)
    return result


def test_the_document_gives_the_analysis_back() -> None:
    run = made.gpu_run()
    assert msgspec.json.decode(document.render(run), type=Analysis) == run


def test_the_document_is_what_python_gives() -> None:
    assert document.render(made.gpu_run()).strip() == Run(made.gpu_run()).to_json().strip()


def test_the_document_uses_the_agreed_names() -> None:
    content = parsed(document.render(made.cpu_run()))
    assert list(content)[:3] == ["schema_version", "tracetools_version", "inputs"]
    row = content["modules"][0]  # type: ignore[index]
    assert row["class"] == "GPT"
    assert row["forward"]["gpu_busy_ns"] is None


def test_a_file_name_that_is_no_utf8_does_not_stop_the_document() -> None:
    run = made.analysis(inputs=(made.input_row(path="bad\udcff.json"),))
    assert parsed(document.render(run))["inputs"][0]["path"] == "bad\ufffd.json"  # type: ignore[index]


def test_tables_flatten_nested_figures_and_leave_absent_cells_empty() -> None:
    text = tables.render(made.cpu_run())["modules.csv"]
    first = next(csv.DictReader(io.StringIO(text)))
    assert first["path"] == "GPT_0"
    assert first["class"] == "GPT"
    assert first["forward_cpu_ns"] == str(50 * made.MS)
    assert first["backward_gpu_busy_ns"] == ""


def test_every_table_has_a_header_even_without_rows() -> None:
    empty = tables.render(made.analysis())
    assert set(empty) == {
        *(f"{name}.csv" for name in ("modules", "ops", "annotations", "steps", "gpu")),
        *(f"flops_{name}.csv" for name in ("by_rank", "by_step", "uncounted")),
    }
    assert all(text.count("\n") == 1 for text in empty.values())


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-1", "@x", "a\nb", "a\tb", 'a","b', "\x1b[2J"])
def test_no_name_breaks_a_csv_line_or_becomes_a_formula(name: str) -> None:
    text = tables.render(made.analysis(ops=(made.op(name, 1), made.op("aten::mm", 1))))["ops.csv"]
    assert len(text.splitlines()) == 3
    cells = [row["name"] for row in csv.DictReader(io.StringIO(text))]
    assert cells[1] == "aten::mm"
    assert not cells[0].startswith(("=", "+", "-", "@"))
    assert cells[0].isprintable()


def test_writing_replaces_old_files_and_leaves_nothing_beside(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"old")
    files.write_files(tmp_path, {"a.json": b"new", "b.csv": b"x"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.json": b"new", "b.csv": b"x"}


def test_a_failed_write_keeps_the_old_file_whole(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"old")
    with pytest.raises(UsageError, match="cannot be written"):
        files.write_files(tmp_path, {"a.json": b"new", "missing/b.csv": b"x"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.json": b"old"}


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be written \(Not a directory\); name another folder with --out"):
        files.prepare_folder(tmp_path / "file" / "out")
