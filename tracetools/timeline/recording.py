"""What a collector said of its own recording. In: metadata of a trace. Out: findings.

"tracetools_measured": {"complete": false, "reason": "SIGTERM came in step 7, …", "never_called": {"count": 2, …}, …}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tracetools import trace_file
from tracetools.findings import Finding, Severity

_MOST_NAMES: Final = 8
_LONGEST: Final = 200


def recording_findings(metadata: Mapping[str, Any]) -> Iterator[Finding]:
    """A recording that is not whole, Python stacks in a trace that times are taken from, modules without a range."""
    own, measured = _mapping(metadata, trace_file.METADATA_KEY), _mapping(metadata, trace_file.MEASURED_KEY)
    if measured.get("complete") is False:
        reason = str(measured.get("reason") or "no reason is given")[:_LONGEST]
        message = f"the recording is not whole: {reason}; the last step may be cut"
        yield Finding("recording_not_whole", Severity.WARNING, message, affects=("steps", "modules"))
    if own.get("stacks") is True:
        message = "recorded with Python stacks, which slow every call down; take times from a timing pass"
        yield Finding("recorded_with_stacks", Severity.NOTE, message, affects=("modules", "ops", "steps"))
    yield from _without_range(_mapping(own, "module_ranges"), _mapping(measured, "never_called"))


def _without_range(ranges: Mapping[str, Any], never_called: Mapping[str, Any]) -> Iterator[Finding]:
    for reason, count in sorted(_mapping(ranges, "left_out").items()):
        if isinstance(count, int):
            message = f"{count} modules have no row of their own: {str(reason)[:_LONGEST]}"
            yield Finding("modules_left_out", Severity.NOTE, message, count=count, affects=("modules",))
    count, names = never_called.get("count"), never_called.get("first")
    if isinstance(count, int) and count > 0 and isinstance(names, list):
        more = f" and {count - _MOST_NAMES} more" if count > _MOST_NAMES else ""
        listed = ", ".join(str(name)[:_LONGEST] for name in names[:_MOST_NAMES])
        message = f"{listed}{more} never called through forward; what they did counts to the module around"
        yield Finding("modules_not_called", Severity.NOTE, message, count=count, affects=("modules",))


def _mapping(within: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = within.get(key)
    return value if isinstance(value, dict) else {}
