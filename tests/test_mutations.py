"""Small traces, mutated: out comes an analysis whose invariants hold, or a clear error, never anything else."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from tests.ingest import oracle
from tests.ingest.test_reading import CASES
from tests.test_invariants import check_invariants
from tracetools.analysis import analyze_trace, reduce_results
from tracetools.errors import UnreadableTrace
from tracetools.ingest import find_inputs, read_trace
from tracetools.report import terminal
from tracetools.report.view import Section, View
from tracetools.settings import Settings
from tracetools.table import ABSENT, INTEGER_ARGUMENTS, Trace

SEEDS = [path for path in sorted(CASES.rglob("*.json*")) if path.parent.name != "truncated_json"]
ROUND = 500
ODD = [
    None, True, 0, -5, 2**70, 1e300, 0.5, "", "12.5", "nan", "abc", "9" * 40, {}, {"a": [1]}, [], [1], "[red]",
    "\x1b[31m", "ProfilerStep#2", "ProfilerStep#" + "9" * 40, "nn.Module: ", "python_function", "kernel", "gpu_memcpy",
    "E", "B",
]  # fmt: skip
WORDS = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"inf", b"-nan", b"1e999", b"-", b"0.5", b"9" * 40,
    b"\xff\xfe", b"\x00", b"\\u", b"\\ud800", b'"ph": "E",', b'"ph": 3', b'{"ph": "X"}', b'"traceEvents": [',
    b'"schemaVersion": 1', b"true", b"\n", b"\xef\xbb\xbf", b"-9223372036854775808", b"18446744073709551616",
    b'"ts": "x"', b"[" * 300,
]  # fmt: skip
UNPRINTABLE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def mutated(text: bytes, chance: random.Random) -> bytes:
    """The text after one to four changes: bytes flipped, cut, doubled or spliced in, numbers replaced."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text) + 1)
        end = min(len(text), at + chance.choice([1, 1, 2, 8, 60, 400]))
        kind = chance.randrange(6)
        if kind == 0:
            text = text[:at] + bytes(chance.randrange(256) for _ in range(end - at)) + text[end:]
        elif kind == 1:
            text = text[:at] + text[end:]
        elif kind == 2:
            text = text[:at] + chance.choice(WORDS) + text[chance.choice([at, end]) :]
        elif kind == 3:
            text = text[:end] + text[at:]
        elif kind == 4:
            text = text[:at] if chance.random() < 0.5 else text[:at] + text[chance.randrange(len(text) + 1) :]
        else:
            digit = next((spot for spot in range(at, end) if text[spot : spot + 1].isdigit()), at)
            text = text[:digit] + chance.choice(WORDS) + text[digit + 1 :]
    return text


def reshaped(text: bytes, chance: random.Random) -> bytes:
    """The trace after one to eight values of its events or of its head are replaced, removed or moved."""
    try:
        document = json.loads(text, strict=False)
    except ValueError:
        return mutated(text, chance)
    head = {} if isinstance(document, list) else document
    events = document if isinstance(document, list) else document.get("traceEvents", [])
    for _ in range(chance.randint(1, 8)):
        event = chance.choice(events) if events else {}
        inner = event.get("args") if isinstance(event, dict) else None
        target = chance.choice([event, inner if isinstance(inner, dict) else event, head])
        if chance.random() < 0.1:
            chance.shuffle(events)
        elif isinstance(target, dict) and (key := chance.choice([*target, "id", "dur"])) != "traceEvents":
            target[key] = chance.choice(ODD) if chance.random() < 0.9 else target.pop(key, None)
    return json.dumps(document).encode("utf-8", "surrogatepass")


def survives(path: Path) -> bool:
    """Whether there was an analysis; everything that was read and printed is checked."""
    (source,) = find_inputs([path]).inputs
    try:
        trace = read_trace(source)
    except UnreadableTrace:
        return False
    check(trace)
    analysis = reduce_results([analyze_trace(trace, source, Settings())], Settings())
    check_invariants(analysis)
    assert not UNPRINTABLE.search(terminal.render(analysis, View(sections=tuple(Section))))
    return True


def check(trace: Trace) -> None:
    """What holds for every trace, however damaged its file is."""
    events = trace.events
    for table in (events, trace.instants, trace.counters, trace.flows):
        assert {len(table.ts_ns), len(table.category), len(table.lane)} == {len(table)}
        for ids, names in ((table.category, trace.strings), (table.lane, trace.lanes)):
            assert not len(ids) or 0 <= ids.min() <= ids.max() < len(names)
    assert len(events.name) == len(events.dur_ns) == len(events.kind) == len(events)
    assert not len(events) or (events.dur_ns.min() >= 0 and (events.ts_ns + events.dur_ns >= events.ts_ns).all())
    for column, sparse in events.arguments.items():
        assert (np.diff(sparse.rows) > 0).all()
        assert (sparse.values != ABSENT).all()
        assert column in INTEGER_ARGUMENTS or 0 <= sparse.values.min() <= sparse.values.max() < len(trace.strings)


def run(folder: Path, first: int) -> None:
    outcomes = set()
    for seed in range(first, first + ROUND):
        chance = random.Random(seed)
        text = oracle.text_of(chance.choice(SEEDS))
        changed = (reshaped if seed % 3 == 0 else mutated)(text, chance)
        packed = mutated(gzip.compress(text), chance) if seed % 10 == 0 else changed
        path = oracle.write(folder / "trace.json", packed)
        try:
            outcomes.add(survives(path))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}") from error
    assert outcomes == {True, False}


@pytest.mark.parametrize("first", range(0, 2000, ROUND))
def test_two_thousand_mutations(tmp_path: Path, first: int):
    run(tmp_path, first)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2000, 102_000, ROUND))
def test_a_hundred_thousand_mutations(tmp_path: Path, first: int):
    run(tmp_path, first)
