"""What was wrong with a file, counted by rule. In: a rule's name each time it fires. Out: one `Finding` per rule."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from tracetools.findings import Finding, Severity


class _Rule(NamedTuple):
    severity: Severity
    message: str
    affects: tuple[str, ...] = ("inputs",)


_ALL: Final = ("modules", "ops", "steps", "gpu", "launches", "flops", "collectives")

RULES: Final[dict[str, _Rule]] = {
    "truncated": _Rule(
        Severity.ERROR,
        "the file ends early, so totals are lower bounds; record again or use a rank whose file is whole",
        ("inputs", *_ALL),
    ),
    "bad_compression": _Rule(
        Severity.ERROR,
        "the compressed data is damaged; what came before the damage was read; copy the file again",
        ("inputs", *_ALL),
    ),
    "trailing_garbage": _Rule(Severity.NOTE, "bytes follow the end of the trace; they were skipped"),
    "bad_escape": _Rule(Severity.WARNING, "{n} events with a backslash that is no legal escape; it was kept as it is"),
    "control_character": _Rule(Severity.WARNING, "{n} events with raw control bytes inside a string; they were kept"),
    "invalid_utf8": _Rule(Severity.WARNING, "{n} events with bytes that are not UTF-8; they became U+FFFD"),
    "unescaped_quote": _Rule(Severity.WARNING, "{n} events with unescaped quotes inside a string; they were kept"),
    "not_a_number": _Rule(Severity.WARNING, "{n} events with a bare inf or nan; those values count as missing"),
    "stray_comma": _Rule(Severity.WARNING, "{n} events with a missing or surplus comma; it was put right"),
    "deep_nesting": _Rule(Severity.WARNING, "{n} events with values nested without end; those values count as missing"),
    "unreadable_event": _Rule(
        Severity.ERROR, "{n} places where no event could be made out; what stood there is lost", ("inputs", *_ALL)
    ),
    "not_an_object": _Rule(Severity.WARNING, "{n} entries of traceEvents are no objects; they were left out"),
    "missing_time": _Rule(Severity.ERROR, "{n} events without a readable start time; they were left out", _ALL),
    "time_overflow": _Rule(Severity.ERROR, "{n} events at a time beyond 64-bit ns; they were left out", _ALL),
    "missing_duration": _Rule(
        Severity.WARNING, "{n} events without a readable length; they were kept at length 0", _ALL
    ),
    "negative_duration": _Rule(Severity.WARNING, "{n} events with a negative length; they were kept at length 0", _ALL),
    "unknown_phase": _Rule(Severity.NOTE, "{n} events of a kind (ph) that is not used here; they were left out"),
    "open_begin_end": _Rule(
        Severity.WARNING, "{n} begin or end events without their partner; they were left out", _ALL
    ),
    "odd_field": _Rule(
        Severity.WARNING, "{n} events with a field of an unexpected type; the field was turned to text or dropped"
    ),
    "odd_metadata": _Rule(Severity.WARNING, "the file's metadata is damaged or too large; what could be read was kept"),
    "unclosed": _Rule(Severity.WARNING, "the closing bracket is missing; all events before it were read"),
    "many_records": _Rule(Severity.WARNING, "{n} metadata events above the limit; they were left out"),
    "old_list_form": _Rule(
        Severity.WARNING,
        "this is the old list form without metadata: rank and absolute time are unknown; record with a newer torch",
    ),
}


class Faults:
    """Counts of the rules that fired on one file, and how far from whole its reading was."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return self._counts.total() > 0

    def add(self, rule: str, count: int = 1) -> None:
        """Note that `rule` fired `count` times."""
        assert rule in RULES, rule
        if count:
            self._counts[rule] += count

    def count(self, rule: str) -> int:
        """How often `rule` fired so far."""
        return self._counts[rule]

    def findings(self, label: str, rank: int | None) -> tuple[Finding, ...]:
        """One finding per rule that fired, in the order of RULES."""
        return tuple(
            Finding(
                rule=name,
                severity=rule.severity,
                message=f"{label}: {rule.message.format(n=self._counts[name])}",
                count=self._counts[name],
                rank=rank,
                path=label,
                affects=rule.affects,
            )
            for name, rule in RULES.items()
            if self._counts[name]
        )
