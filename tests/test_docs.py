"""The documents say what is true: each command shown runs, each output shown is real, each field is explained.

```console      commands after `$ `, and their output; a line `...` stands for any number of lines
```sh           commands that change the machine (make, pip): only the make verbs are checked
```python       runs; where it has `>>>`, the output shown is compared
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from tracetools import results
from tracetools.findings import Finding, Severity

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)(?P<target>[^)#]+)")


def blocks(kind: str) -> list[tuple[str, str]]:
    """(where it stands, text) of every block of a kind."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if match["kind"] == kind:
                line = text.count("\n", 0, match.start()) + 1
                found.append((f"{path.relative_to(ROOT)}:{line}", match["text"]))
    return found


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block with the lines shown below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command, shown


def matches(shown: list[str], real: list[str]) -> bool:
    """Whether the lines are the same, a shown `...` standing for any number of real ones."""
    if not shown:
        return not real
    if shown[0] == "...":
        return any(matches(shown[1:], real[start:]) for start in range(len(real) + 1))
    return bool(real) and shown[0] == real[0] and matches(shown[1:], real[1:])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder with the samples in it, where examples may write."""
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    return tmp_path


def environment() -> dict[str, str]:
    """The tools of this interpreter first, and nothing that changes the width or colour of the output."""
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONUTF8": "1"}


@pytest.mark.parametrize(("where", "block"), blocks("console"), ids=[where for where, _ in blocks("console")])
def test_commands_shown_run_and_print_what_is_shown(where: str, block: str, place: Path) -> None:
    for command, shown in commands(block):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=place,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            timeout=120,
        )
        assert matches(shown, done.stdout.splitlines()), f"{where}: `{command}` prints\n{done.stdout}"


@pytest.mark.parametrize(("where", "block"), blocks("python"), ids=[where for where, _ in blocks("python")])
def test_python_shown_runs(where: str, block: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    if ">>>" not in block:
        exec(compile(block, where, "exec"), {"__name__": "__doc__"})
        return
    test = doctest.DocTestParser().get_doctest(block, {}, where, where, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    assert runner.run(test, out=report.append).failed == 0, "".join(report)


def test_make_verbs_shown_exist() -> None:
    verbs = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    everything = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    shown = set(re.findall(r"(?:^|`)make ([a-z-]+)", everything, re.MULTILINE))
    assert shown
    assert shown <= verbs


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for match in LINK.finditer(path.read_text(encoding="utf-8")):
            assert (path.parent / match["target"]).exists(), f"{path.name}: {match['target']}"


def fields_of(row: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(row)}


def sections_of_the_document() -> dict[str, type[msgspec.Struct]]:
    sections = {}
    for field in msgspec.structs.fields(results.Analysis):
        rows = [row for row in get_args(field.type) if isinstance(row, type) and issubclass(row, msgspec.Struct)]
        if rows:
            sections[field.encode_name] = rows[0]
    return sections


@pytest.mark.parametrize("section", sections_of_the_document())
def test_every_field_of_the_document_is_explained(section: str) -> None:
    text = (ROOT / "docs" / "output.md").read_text(encoding="utf-8")
    chapter = re.search(rf"^## `{section}`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert chapter is not None, f"no chapter on {section}"
    explained = set(re.findall(r"`([a-z_0-9]+)`", chapter[1]))
    row = sections_of_the_document()[section]
    assert fields_of(row) <= explained, fields_of(row) - explained


def test_figures_of_flops_are_explained() -> None:
    text = (ROOT / "docs" / "output.md").read_text(encoding="utf-8")
    chapter = text[text.index("## `flops`") : text.index("## `findings`")]
    explained = set(re.findall(r"`([a-z_0-9]+)`", chapter))
    rows = results.FlopsSection, results.RankFlops, results.StepFlops, results.UncountedOp, results.Convention
    for row in (*rows, results.Peak):
        assert fields_of(row) - {"step"} <= explained, fields_of(row) - explained


def test_figures_of_a_phase_are_explained() -> None:
    text = (ROOT / "docs" / "output.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`([a-z_0-9]+)`", text))
    assert fields_of(results.BackwardTime) | fields_of(results.RunAhead) | fields_of(Finding) <= explained
    assert {severity.value for severity in Severity} <= explained


def test_every_option_is_in_the_readme() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tracetools", "analyze", "--help"], capture_output=True, text=True, encoding="utf-8"
    )
    options = set(re.findall(r"^  (--[a-z-]+)", done.stdout, re.MULTILINE)) - {"--help"}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {option for option in options if option not in readme} == set()


def test_elision_stands_for_any_number_of_lines() -> None:
    real = ["a", "b", "c"]
    assert matches(["a", "...", "c"], real)
    assert matches(["..."], real)
    assert matches(["a", "b", "...", "c"], real)
    assert not matches(["a", "c"], real)
    assert not matches(["a", "..."], ["b"])
