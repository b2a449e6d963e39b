"""Small traces, mutated: out comes a Trace with its findings or UnreadableTrace, never anything else."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pytest

from tests.ingest import oracle
from tests.ingest.test_reading import CASES
from tracetools.errors import UnreadableTrace
from tracetools.ingest import find_inputs, read_trace
from tracetools.table import ABSENT, INTEGER_ARGUMENTS, Trace

SEEDS = [path for path in sorted(CASES.rglob("*.json*")) if path.parent.name != "truncated_json"]
ROUND = 500
WORDS = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"inf", b"-nan", b"1e999", b"-", b"0.5", b"9" * 40,
    b"\xff\xfe", b"\x00", b"\\u", b"\\ud800", b'"ph": "E",', b'"ph": 3', b'{"ph": "X"}', b'"traceEvents": [',
    b'"schemaVersion": 1', b"true", b"\n", b"\xef\xbb\xbf", b"-9223372036854775808", b"18446744073709551616",
    b'"ts": "x"', b"[" * 300,
]  # fmt: skip


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


def survives(path: Path) -> Trace | None:
    (source,) = find_inputs([path]).inputs
    try:
        trace = read_trace(source)
    except UnreadableTrace:
        return None
    check(trace)
    return trace


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
        changed = mutated(text, chance)
        packed = mutated(gzip.compress(text), chance) if seed % 10 == 0 else changed
        path = oracle.write(folder / "trace.json", packed)
        try:
            outcomes.add(survives(path) is None)
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
