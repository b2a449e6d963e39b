"""Which files are traces, and whose. In: paths, folders, patterns, archives. Out: `TraceInput`s by rank."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracetools.errors import NothingReadable
from tracetools.findings import Finding


@dataclass(frozen=True, slots=True)
class TraceInput:
    """One trace to read. label is what users see; member is its name inside an archive."""

    path: Path
    label: str
    size_bytes: int
    member: str | None = None
    rank: int | None = None
    rank_source: str | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Discovery:
    """The traces found, by rank then path, and what was noticed on the way."""

    inputs: tuple[TraceInput, ...]
    findings: tuple[Finding, ...]


def find_inputs(
    paths: Sequence[str | os.PathLike[str]], *, rank_of: Mapping[str, int] = {}, rank_from_name: str | None = None
) -> Discovery:
    """Every trace among `paths`."""
    from tracetools.ingest.rank import peek_rank

    found: list[TraceInput] = []
    for each in map(Path, paths):
        files = sorted(each.rglob("*.json*")) if each.is_dir() else [each]
        for path in files:
            rank, source, host = peek_rank(path)
            found.append(TraceInput(path, str(path), path.stat().st_size, None, rank, source, host))
    if not found:
        raise NothingReadable("no trace among the paths given")
    found.sort(key=lambda each: (-1 if each.rank is None else each.rank, each.label))
    return Discovery(tuple(found), ())
