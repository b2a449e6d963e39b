"""The trust report: named doubts about the data or a figure. In: what a stage noticed. Out: `Finding` rows."""

from __future__ import annotations

import enum

import msgspec


class Severity(enum.StrEnum):
    """How far a finding reaches: an error makes figures wrong or missing, a warning limits them, a note explains."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True, order=False):
    """One named doubt: which rule fired, how often, on which rank or file, and which figures it touches."""

    rule: str
    severity: Severity
    message: str
    count: int = 1
    rank: int | None = None
    path: str | None = None
    affects: tuple[str, ...] = ()


def sort_key(finding: Finding) -> tuple[object, ...]:
    """Order in which findings are shown: worst first, then by rank, rule and text."""
    worst_first = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}[finding.severity]
    rank = -1 if finding.rank is None else finding.rank
    return worst_first, rank, finding.rule, finding.path or "", finding.message
