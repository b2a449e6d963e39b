"""The walls of the house: which package may import which, and what must never be loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Left to right, as an event walks; a stage imports what stands to its left, never to its right.
LEFT = ["errors", "findings", "trace_file", "settings", "table", "results", "intervals", "workers"]
STAGES = ["ingest", "timeline", "attribution", "flops", "metrics", "analysis", "engines", "run", "report", "cli"]
ORDER = [*LEFT, *STAGES]

# (importer, imported): why this one may look right.
EXCEPTIONS: dict[tuple[str, str], str] = {}

# The public face re-exports from everywhere, `python -m tracetools` starts the command line, and
# `python -m tracetools.collect` hands over to the collectors.
FACES = {"__init__", "__main__", "collect"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def room(module: str) -> str:
    """First part below the package: `tracetools.ingest.scan` stands in `ingest`."""
    return module.split(".")[1] if "." in module else "__init__"


def imported_modules(path: Path) -> Iterator[str]:
    """Every module a file imports, inside functions and under TYPE_CHECKING too."""
    package = module_name(path).split(".") if path.name == "__init__.py" else module_name(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            outer = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*outer, *([node.module] if node.module else [])])
            # `from tracetools import table` names a room only in its last part.
            yield from (f"{base}.{alias.name}" for alias in node.names) if base == "tracetools" else [base]


def imports_to_the_right() -> list[tuple[str, str]]:
    found = set()
    for path in sources("tracetools"):
        importer = room(module_name(path))
        if importer in FACES:
            continue
        for name in imported_modules(path):
            if not name.startswith("tracetools."):
                continue
            imported = room(name)
            if imported in ORDER and ORDER.index(imported) > ORDER.index(importer):
                found.add((importer, imported))
    return sorted(found)


def top_level_imports(package: str) -> set[str]:
    return {name.split(".")[0] for path in sources(package) for name in imported_modules(path)}


def test_every_file_stands_in_a_known_room() -> None:
    rooms = {room(module_name(path)) for path in sources("tracetools")} - FACES
    assert rooms <= set(ORDER)


def test_imports_point_left() -> None:
    assert [pair for pair in imports_to_the_right() if pair not in EXCEPTIONS] == []


def test_no_exception_outlives_its_reason() -> None:
    assert set(EXCEPTIONS) <= set(imports_to_the_right())
    assert all(reason.strip() for reason in EXCEPTIONS.values())


def test_the_analyzer_never_imports_torch() -> None:
    assert "torch" not in top_level_imports("tracetools")


def test_collectors_never_import_pandas_nor_the_analyzer() -> None:
    assert "pandas" not in top_level_imports("collectors")
    from_tracetools = {
        name for path in sources("collectors") for name in imported_modules(path) if name.startswith("tracetools")
    }
    assert from_tracetools <= {"tracetools.trace_file"}


@pytest.mark.parametrize("module", ["tracetools", "tracetools.cli"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    heavy = ["torch", "numba", "pandas", "matplotlib", "plotly", "IPython"]
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_the_command_that_collects_knows_the_collectors() -> None:
    knowing = {
        path.name
        for path in sources("tracetools")
        if any(name.split(".")[0] == "collectors" for name in imported_modules(path))
    }
    assert knowing == {"collect.py"}
    analyzer = {name for name in imported_modules(ROOT / "tracetools" / "collect.py") if name.startswith("tracetools")}
    assert analyzer <= {"tracetools.trace_file"}


def test_wrong_usage_of_the_collecting_command_needs_no_torch() -> None:
    code = "import sys; from tracetools import collect\ntry:\n    collect.main(['--help'])\nexcept SystemExit:\n    "
    code += "sys.stderr.write(str('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "False"


def test_the_contract_of_both_halves_is_standard_library_only() -> None:
    imported = {name.split(".")[0] for name in imported_modules(ROOT / "tracetools" / "trace_file.py")}
    assert imported <= sys.stdlib_module_names
