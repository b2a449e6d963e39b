"""What all tests share: the folders of the repository, and golden files that `make golden` rewrites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

collect_ignore = ["peers/perfetto_query.py"]  # runs in an environment of its own

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite golden files instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with `tests/golden/<name>`, or write it there under --golden."""
    rewrite = request.config.getoption("--golden")

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if rewrite:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path.name} is not there yet; run `make golden` and look at what it writes"
        assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; if that is meant, run `make golden`"

    return check
