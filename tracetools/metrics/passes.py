"""The structure pass of a rank beside its timing pass. In: the results of both. Out: one result.

A collector records twice where it is asked to: once undisturbed, for times, and once with Python stacks, in other
steps. Times are those of the timing pass alone. From the structure pass comes what only stacks can tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tracetools.findings import Finding, Severity
from tracetools.results import RankResult

_MOST_NAMES = 4


def join_passes(timing: RankResult, structure: RankResult, chosen: tuple[int, ...] | None = None) -> RankResult:
    """The timing pass, with where its modules are defined, and a warning where the passes did different work.

    chosen: steps that the figures of the timing pass are limited to.
    """
    sources = {row.path: row.defined_at for row in structure.modules}
    modules = tuple(
        msgspec.structs.replace(row, defined_at=row.defined_at or sources.get(row.path)) for row in timing.modules
    )
    findings = _damage(structure)
    if _is_whole(timing) and _is_whole(structure):
        findings += _differences(timing, structure, chosen)
    return msgspec.structs.replace(
        timing,
        input=msgspec.structs.replace(timing.input, structure_path=structure.input.path),
        modules=modules,
        findings=(*timing.findings, *findings),
    )


def _is_whole(result: RankResult) -> bool:
    return result.input.status == "read" and all(each.rule != "recording_not_whole" for each in result.findings)


def _damage(structure: RankResult) -> tuple[Finding, ...]:
    """What is wrong with the file of the structure pass; no time depends on it."""
    return tuple(
        msgspec.structs.replace(each, severity=Severity.WARNING, affects=("modules.defined_at",))
        for each in structure.findings
        if each.severity is Severity.ERROR
    )


def _differences(timing: RankResult, structure: RankResult, chosen: tuple[int, ...] | None) -> tuple[Finding, ...]:
    """Modules whose calls per step are not the same in both passes."""
    first, second = _calls_per_step(timing, chosen), _calls_per_step(structure, None)
    if not first or not second:
        return ()
    unlike = [path for path in first if first[path] != second.get(path)] + [
        path for path in second if path not in first
    ]
    if not unlike:
        return ()
    path = unlike[0]
    message = (
        f"{_listed(unlike)} not called as often in both passes ({path}: {first.get(path, 0):g} times a step in the "
        f"timing pass, {second.get(path, 0):g} in the structure pass); their steps did different work"
    )
    return (
        Finding(
            "passes_differ",
            Severity.WARNING,
            message,
            count=len(unlike),
            rank=timing.input.rank,
            path=structure.input.path,
            affects=("modules.defined_at",),
        ),
    )


def _calls_per_step(result: RankResult, chosen: tuple[int, ...] | None) -> dict[str, float]:
    """Of each module, in the trace's reading order; empty where the trace marks no step, or has no names to compare."""
    steps = sum(chosen is None or step in chosen for step in result.input.steps)
    calls: dict[str, float] = {}
    for row in result.modules if steps else ():
        if row.source == "fqn":
            calls[row.path] = calls.get(row.path, 0) + row.calls / steps
    return calls


def _listed(paths: Sequence[str]) -> str:
    more = len(paths) - _MOST_NAMES
    return ", ".join(paths[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
