"""Public traces, read twice: every column equals what json and Decimal say, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ingest import oracle
from tracetools.findings import Severity

FOLDER = Path(os.environ.get("TRACETOOLS_REAL_TRACES") or Path(__file__).resolve().parents[3] / "shared" / "traces")
FILES = sorted(path for path in FOLDER.rglob("*") if path.name.endswith((".json", ".json.gz")))
BIG = 3_000_000

pytestmark = pytest.mark.skipif(
    not FILES, reason=f"no traces under {FOLDER}; set TRACETOOLS_REAL_TRACES to the folder that holds them"
)


def raw_size(path: Path) -> int:
    data = path.read_bytes()
    return int.from_bytes(data[-4:], "little") if data[:2] == b"\x1f\x8b" else len(data)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.name, marks=[pytest.mark.slow] if raw_size(path) > BIG else []) for path in FILES],
)
def test_every_column_is_what_the_text_says(path: Path):
    trace = oracle.read(path)
    text = oracle.text_of(path)
    assert trace.bytes_read == len(text)
    assert not trace.truncated
    assert [each for each in trace.findings if each.severity is Severity.ERROR] == []
    oracle.assert_same(trace, text)
