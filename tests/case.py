"""The traces under `cases/`, and short words to state in one line what must come out of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

import tracetools
from tracetools.ingest import find_inputs, read_trace
from tracetools.results import Analysis, ModuleTime
from tracetools.table import Trace
from tracetools.timeline.tree import Tree, build_tree

CASES = Path(__file__).resolve().parent / "cases"
NAMES = sorted(folder.name for folder in CASES.iterdir() if folder.is_dir())

T0 = 1764550074000000000
"""Time 0 of nearly every case, ns: base 1759300074 s + ts 5250000000000.000 µs."""


def us(*times: float | None) -> Any:
    """Times in µs as ns: one number, or a tuple of several.

    >>> us(12.5), us(3, None)
    (12500, (3000, None))
    """
    ns = tuple(None if time is None else round(time * 1000) for time in times)
    return ns if len(ns) > 1 else ns[0]


def at(time: float) -> int:
    """A time of a case's text (µs after t = 0) as ns since the epoch."""
    return T0 + round(time * 1000)


@functools.cache
def load(name: str) -> tracetools.Run:
    """Everything measured on one case."""
    return tracetools.load(CASES / name)


def analyse(name: str) -> Analysis:
    return load(name).analysis


def trace(name: str, file: str = "trace.json") -> Trace:
    return read(CASES / name / file)


def read(path: Path) -> Trace:
    """The event table of one file."""
    (source,) = find_inputs([path]).inputs
    return read_trace(source)


def table(rows: Iterable[Any], key: str, *columns: str) -> dict[Any, Any]:
    """Columns of result rows by a key (dots reach into a phase); the key must tell the rows apart."""
    names, values = attrgetter(*key.split()), attrgetter(*columns)
    listed = [(names(row), values(row)) for row in rows]
    assert len(dict(listed)) == len(listed), f"{key} repeats: {listed}"
    return dict(listed)


def modules(analysis: Analysis) -> list[ModuleTime]:
    """Rows of real modules; those in brackets hold the rest."""
    return [row for row in analysis.modules if row.source is not None]


def unattributed(analysis: Analysis, rank: int | None = 0) -> ModuleTime:
    (row,) = (row for row in analysis.modules if row.path == "(unattributed)" and row.rank == rank)
    return row


def ops(analysis: Analysis, *columns: str, rank: int | None = 0) -> dict[Any, Any]:
    """Columns of one rank's ops by name; each op must have one phase."""
    return table((row for row in analysis.ops if row.rank == rank), "name", *columns)


def findings(analysis: Analysis, *words: str, **where: Any) -> list[Any]:
    """Findings that have all the given values, and whose rule or message holds all the given words."""
    return [
        finding
        for finding in analysis.findings
        if all(word in f"{finding.rule} {finding.message}" for word in words)
        and all(getattr(finding, name) == value for name, value in where.items())
    ]


def file_of(path: str | None) -> str | None:
    """Name of a file without the folders before it."""
    return None if path is None else Path(path).name


def tree_by_name(trace: Trace) -> tuple[Tree, dict[str, int]]:
    """The nesting of a trace whose event names are all different, and the row of each name."""
    rows = {trace.strings[name]: row for row, name in enumerate(trace.events.name.tolist())}
    assert len(rows) == len(trace.events)
    return build_tree(trace), rows


def parents(trace: Trace) -> dict[str, str | None]:
    """Name of each event's parent in the tree, None for a root."""
    tree, rows = tree_by_name(trace)
    names = {row: name for name, row in rows.items()}
    return {name: names.get(int(tree.parent[row])) for name, row in rows.items()}


def self_times(trace: Trace) -> dict[str, int]:
    """Self time of each CPU span, ns."""
    tree, rows = tree_by_name(trace)
    return {name: int(tree.self_ns[row]) for name, row in rows.items() if tree.in_tree[row]}


def texts(trace: Trace, column: str) -> list[str]:
    """The values of a text argument, in the order of the file."""
    sparse = trace.events.arguments[column]
    return [trace.strings[value] for value in np.asarray(sparse.values).tolist()]


def strict_json(text: bytes) -> Any:
    """Decode JSON, refusing the bare words inf and nan that Python would take."""

    def refuse(word: str) -> float:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)
