"""The progress bar: silent while work is short, one bar after that, gone at the end."""

from __future__ import annotations

import pytest

from tracetools.report import progress


def test_short_work_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.ProgressBar() as bar:
        bar("a.json", 1, None)
    assert capsys.readouterr() == ("", "")


def test_long_work_shows_a_bar_on_stderr_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_QUIET_S", 0.0)
    with progress.ProgressBar() as bar:
        bar("[red]a\x1b.json", 2_000_000, None)
        bar("b.json", 1, 4)
    written = capsys.readouterr()
    assert written.out == ""
    assert "\x1b.json" not in written.err
