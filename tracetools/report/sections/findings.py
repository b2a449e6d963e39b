"""The trust report. In: findings. Out: worst first, one paragraph per rule, with its count and the ranks it touches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracetools.findings import Finding, Severity, sort_key
from tracetools.report.figures import plural, ranges, rank_name
from tracetools.report.layout import wrap
from tracetools.report.line import Line, Style, note, plain, title
from tracetools.report.names import printable
from tracetools.report.view import View
from tracetools.results import Analysis

_GROUPS: Final = 12
_STYLES: Final = {Severity.ERROR: Style.ERROR, Severity.WARNING: Style.WARNING, Severity.NOTE: Style.PLAIN}


def render(analysis: Analysis, view: View) -> list[Line]:
    """Every rule that fired; the message is that of its first finding."""
    if not analysis.findings:
        return [title("Findings"), *plain(["None: nothing in these traces puts a figure in doubt."])]
    groups = _by_rule(analysis.findings)
    shown = groups[: view.limit(_GROUPS)]
    lines = [title(f"Findings · {_severities(groups)}")]
    for group in shown:
        lines += _paragraph(group, view.width)
    if len(shown) < len(groups):
        lines.append(note(f"{len(groups) - len(shown)} lesser rules are hidden; --top {len(groups)} shows all"))
    return lines


def _by_rule(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of the same rule and severity together, worst first."""
    groups: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in sorted(findings, key=sort_key):
        groups.setdefault((finding.severity, finding.rule), []).append(finding)
    order = list(Severity)
    return [groups[key] for key in sorted(groups, key=lambda key: (order.index(key[0]), key[1]))]


def _severities(groups: Sequence[Sequence[Finding]]) -> str:
    found = [sum(group[0].severity is severity for group in groups) for severity in Severity]
    return ", ".join(plural(number, severity.value) for number, severity in zip(found, Severity, strict=True) if number)


def _paragraph(group: Sequence[Finding], width: int) -> list[Line]:
    first = group[0]
    head = (
        f"{first.severity.value} {printable(first.rule)} ×{sum(finding.count for finding in group):,}{_where(group)}: "
    )
    affects = sorted({printable(name) for finding in group for name in finding.affects})
    touches = f" [touches {', '.join(affects)}]" if affects else ""
    others = len({finding.message for finding in group}) - 1
    more = f" (and {plural(others, 'message')} more like it)" if others else ""
    text = f"{head}{printable(first.message)}{more}{touches}"
    return [Line(line, _STYLES[first.severity]) for line in wrap(text, width, "", "    ")]


def _where(group: Sequence[Finding]) -> str:
    """The ranks that a group touches, or the file where there is only one and it has no rank."""
    known = sorted({finding.rank for finding in group if finding.rank is not None})
    if len(known) == 1:
        return f" on {rank_name(known[0])}"
    return f" on ranks {ranges(known)}" if known else ""
