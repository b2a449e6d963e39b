"""Which files are traces, and whose. In: paths, folders, patterns, archives. Out: `TraceInput`s by rank."""

from __future__ import annotations

import glob
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tracetools import trace_file
from tracetools.errors import NothingReadable, UsageError
from tracetools.findings import Finding, Severity
from tracetools.ingest import archives, streams
from tracetools.ingest.peek import Glance, glance
from tracetools.ingest.rank import RankRules, compiled

_TRACE_ENDINGS: Final = (".json", ".json.gz", ".gz", ".zip", ".tar", ".tgz", ".trace")
_NOT_JSON: Final = (".pftrace", ".perfetto-trace", ".md", ".txt", ".py", ".csv", ".parquet", ".html", ".log", ".tmp")
_AT_MOST: Final = 8
"""So many files are named in a message."""


@dataclass(frozen=True, slots=True)
class TraceInput:
    """One trace to read. label: what users see, the path or `archive.zip!member`. size_bytes: as stored.

    rank_source: "distributedInfo", "metadata", "name", "option", or None where there is no rank. structure: the
    structure pass of the same rank, where this one is its timing pass.
    """

    path: Path
    label: str
    size_bytes: int
    member: str | None = None
    rank: int | None = None
    rank_source: str | None = None
    host: str | None = None
    structure: TraceInput | None = None


@dataclass(frozen=True, slots=True)
class Discovery:
    """The traces found, by rank then path, and what was noticed on the way."""

    inputs: tuple[TraceInput, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A file or an archive's member after a first look. explicit: named by the user, not met in a folder."""

    source: TraceInput
    glance: Glance
    explicit: bool


def find_inputs(
    paths: Sequence[str | os.PathLike[str]],
    *,
    rank_of: Mapping[str, int] = {},  # never changed
    rank_from_name: str | None = None,
) -> Discovery:
    """Every trace among files, folders (searched through), patterns and archives.

    A file named outright is always an input, even one that cannot be read; in a folder, what is no trace is passed by.

    rank_of: rank by path, label or file name. rank_from_name: regular expression whose first group is the rank.

    Raises: UsageError where a path does not exist or ranks clash or lack; NothingReadable where there is no trace.
    """
    rules = RankRules(rank_of, compiled(rank_from_name))
    kept: list[_Candidate] = []
    findings: list[Finding] = []
    for candidate in _candidates(paths):
        if _is_input(candidate):
            kept.append(replace(candidate, source=_with_rank(candidate, rules)))
        elif not candidate.source.path.name.endswith(_NOT_JSON):
            findings.append(_passed_over(candidate.source))
    _check_options(rules, kept)
    if not kept:
        named = ", ".join(map(str, paths)) or "(no path)"
        raise NothingReadable(f"no trace in {named}; pass trace files of torch.profiler, or a folder that holds some")
    kept = _passes_together(kept)
    findings += [_set_aside(each.source.structure) for each in kept if each.source.structure is not None]
    inputs = _checked_ranks(kept)
    findings += [_rank_by_name(each) for each in inputs if each.rank_source == "name"]
    return Discovery(inputs, tuple(findings))


def _candidates(paths: Sequence[str | os.PathLike[str]]) -> Iterator[_Candidate]:
    """Each file once, however often the paths lead to it."""
    seen: set[str] = set()
    for path, explicit in _files(paths):
        if (real := os.path.realpath(path)) not in seen:
            seen.add(real)
            yield from _look(path, explicit)


def _files(paths: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[Path, bool]]:
    for given in paths:
        path = Path(given)
        if path.is_dir():
            yield from ((each, False) for each in _files_below(path))
        elif path.exists() or path.is_symlink():
            yield path, True
        elif matches := sorted(glob.glob(os.fspath(given), recursive=True)):
            yield from _files(matches)
        else:
            raise UsageError(f"{given}: no such file or folder; check the path")


def _files_below(folder: Path) -> Iterator[Path]:
    """What may be a trace by its name, hidden and temporary files left out, in a fixed order."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(files) if _may_be_trace(name))


def _may_be_trace(name: str) -> bool:
    lower = name.lower()
    if lower.startswith(".") or lower.endswith((trace_file.MANIFEST_ENDING, *_NOT_JSON)):
        return False
    return lower.endswith(_TRACE_ENDINGS) or "trace" in lower


def _look(path: Path, explicit: bool) -> Iterator[_Candidate]:
    source = TraceInput(path, str(path), 0)
    try:
        source = replace(source, size_bytes=path.stat().st_size)
        if not archives.is_archive(path):
            with streams.open_file(path) as stream:
                yield _Candidate(source, glance(stream), explicit)
            return
    except OSError:
        yield _Candidate(source, Glance(None), explicit)
        return
    yield from _look_inside(source, explicit)


def _look_inside(archive: TraceInput, explicit: bool) -> Iterator[_Candidate]:
    """The members of an archive; damage ends the search, and what was found before it stays."""
    found = False
    try:
        for name, size, stream in archives.members(archive.path):
            if _may_be_trace(os.path.basename(name)):
                found = True
                source = replace(archive, member=name, label=f"{archive.label}!{name}", size_bytes=size)
                yield _Candidate(source, glance(stream), False)
    except archives.FAILED:
        pass
    if not found:
        yield _Candidate(archive, Glance(None), explicit)


def _is_input(candidate: _Candidate) -> bool:
    """Traces, files named outright, and files that by their name should be traces but hold nothing of one."""
    if candidate.explicit:
        return True
    if candidate.glance.is_trace is None:
        name = os.path.basename(candidate.source.member or candidate.source.path.name).lower()
        return name.endswith((".json", ".json.gz")) or "trace" in name or "rank" in name
    own = candidate.glance.stated.get(trace_file.METADATA_KEY)
    return candidate.glance.is_trace and not (isinstance(own, dict) and own.get("merged"))


def _with_rank(candidate: _Candidate, rules: RankRules) -> TraceInput:
    source, stated = candidate.source, candidate.glance.stated
    name = os.path.basename(source.member or source.path.name)
    paths = (str(source.path),) if source.member is None else (source.member,)
    rank, rank_source = rules.rank((*paths, source.label, name), stated)
    own: Any = stated.get(trace_file.METADATA_KEY)
    host = (own.get("host") if isinstance(own, dict) else None) or stated.get("host_name")
    return replace(source, rank=rank, rank_source=rank_source, host=host if isinstance(host, str) else None)


def _check_options(rules: RankRules, kept: Sequence[_Candidate]) -> None:
    unused = [name for name in rules.of_file if name not in rules.used]
    if unused:
        raise UsageError(
            f"--rank {unused[0]}={rules.of_file[unused[0]]} names no input; the inputs are "
            f"{_listed([each.source.label for each in kept])}"
        )


def _passes_together(kept: Sequence[_Candidate]) -> list[_Candidate]:
    """Each timing pass with the structure pass of its rank, which is then no input of its own."""
    timed = {each.source.rank for each in kept if _pass(each) is trace_file.Pass.TIMING}
    structures = {
        each.source.rank: each.source
        for each in kept
        if _pass(each) is trace_file.Pass.STRUCTURE and each.source.rank in timed
    }
    joined = set(structures.values())
    return [
        replace(each, source=replace(each.source, structure=structures.get(each.source.rank)))
        if _pass(each) is trace_file.Pass.TIMING
        else each
        for each in kept
        if each.source not in joined
    ]


def _pass(candidate: _Candidate) -> trace_file.Pass | None:
    own = candidate.glance.stated.get(trace_file.METADATA_KEY)
    recorded = own.get("pass") if isinstance(own, dict) else None
    return next((each for each in trace_file.Pass if each == recorded), None)


def _checked_ranks(kept: Sequence[_Candidate]) -> tuple[TraceInput, ...]:
    """Inputs by rank then path, no rank twice. A file that is no trace may lack a rank, but never takes one away."""
    traces = [each.source for each in kept if each.glance.is_trace]
    others = [each.source for each in kept if not each.glance.is_trace]
    by_rank: defaultdict[int | None, list[str]] = defaultdict(list)
    for source in traces:
        by_rank[source.rank].append(source.label)
    without = by_rank.pop(None, [])
    if without and len(traces) > 1:
        raise UsageError(
            f"no rank is known for {_listed(without)}; pass --rank FILE=N for each, or --rank-from-name REGEX"
        )
    for rank, labels in sorted((rank, labels) for rank, labels in by_rank.items() if rank is not None):
        if len(labels) > 1:
            raise UsageError(
                f"rank {rank} appears in {_count(len(labels))} files: {_listed(labels)}; "
                "delete one or pass --rank FILE=N"
            )
    taken = set(by_rank)
    for source in others:
        clashes = source.rank is not None and source.rank in taken
        traces.append(replace(source, rank=None, rank_source=None) if clashes else source)
        taken.add(source.rank)
    return tuple(sorted(traces, key=lambda each: (each.rank is None, each.rank or 0, each.label)))


def _count(number: int) -> str:
    return "two" if number == 2 else str(number)


def _listed(labels: Sequence[str]) -> str:
    more = len(labels) - _AT_MOST
    listed = ", ".join(sorted(labels)[:_AT_MOST])
    return listed + (f" and {more} more" if more > 0 else "")


def _passed_over(source: TraceInput) -> Finding:
    return Finding(
        "not_a_trace",
        Severity.NOTE,
        f"{source.label}: no trace; it was passed over",
        path=source.label,
        affects=("inputs",),
    )


def _set_aside(source: TraceInput) -> Finding:
    return Finding(
        "structure_pass",
        Severity.NOTE,
        f"{source.label}: structure pass of rank {source.rank}; it tells where modules are defined, all times are "
        "those of the timing pass; pass this file alone to see its own",
        rank=source.rank,
        path=source.label,
        affects=("inputs",),
    )


def _rank_by_name(source: TraceInput) -> Finding:
    return Finding(
        "rank_from_name",
        Severity.NOTE,
        f"{source.label}: rank {source.rank} was taken from the name; pass --rank FILE=N if that is wrong",
        rank=source.rank,
        path=source.label,
        affects=("inputs",),
    )
