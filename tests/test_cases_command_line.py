"""Cases at the command line: exit codes, and names that must not reach the terminal or a table as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.case import CASES, strict_json
from tracetools.cli import run


@pytest.mark.parametrize(
    ("name", "code", "strict_code"),
    [
        ("bad_escape_backslash", 0, 0),
        ("control_char_name", 0, 0),
        ("interleaved_writers", 2, 2),
        ("invalid_utf8_name", 0, 0),
        ("metadata_only", 0, 1),
        ("no_rank_two_files", 2, 2),
        ("two_streams_overlap", 0, 0),
        ("truncated_json", 0, 1),
    ],
)
def test_exit_codes(name: str, code: int, strict_code: int, capsys: pytest.CaptureFixture[str]):
    assert run(["analyze", str(CASES / name)]) == code
    assert run(["analyze", str(CASES / name), "--strict"]) == strict_code
    assert "Traceback" not in capsys.readouterr().err


def test_bare_inf_bandwidth_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["analyze", str(CASES / "bare_inf_bandwidth"), "--format", "json", "--out", str(tmp_path)]) == 0
    assert strict_json(capsys.readouterr().out.encode()) == strict_json((tmp_path / "analysis.json").read_bytes())


def test_control_characters_and_newlines_in_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """An op named as the frames of control_char_name and bad_escape_backslash are."""
    text = (CASES / "control_char_name" / "trace.json").read_bytes()
    text = text.replace(b"aten::relu", b"a\x01b\x1b[31mc").replace(b"aten::gelu", rb"C:\new\table.py")
    (tmp_path / "trace.json").write_bytes(text)
    assert run(["analyze", str(tmp_path / "trace.json"), "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert not {"\x01", "\x1b", "\t", "\r"} & set(shown)
    rows = (tmp_path / "ops.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + 2
    assert len({row.count(",") for row in rows}) == 1
    assert not any(byte < 0x20 and byte != 0x0A for byte in (tmp_path / "analysis.json").read_bytes())
