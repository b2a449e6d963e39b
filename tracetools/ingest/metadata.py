"""Top-level values of a trace beside its events. In: the text before and after `traceEvents`. Out: them, decoded.

{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100", …}], "distributedInfo": {"rank": 0, …}, …
… "traceName": "/tmp/tmpsnscm.json", "displayTimeUnit": "ms", "baseTimeNanoseconds": 1751410836000000000}
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tracetools.ingest import split
from tracetools.ingest.faults import Faults
from tracetools.ingest.repair import repaired

_FAILED = (msgspec.DecodeError, UnicodeError, RecursionError)
_SPACE: Final = b" \t\r\n\xef\xbb\xbf"
_MAX_REPAIRED: Final = 4 << 20
_LATEST_BASE: Final = 1 << 61


def decode_metadata(head: bytes, tail: bytes, faults: Faults, whole: bool) -> dict[str, Any]:
    """The values of both parts; a key of the tail wins.

    head: from the first brace up to the key `traceEvents`. tail: what follows the list of events, if the file is whole.
    """
    before = head.strip(_SPACE).rstrip(b"," + _SPACE) + b"}"
    after = b"{" + tail.strip(_SPACE).lstrip(b"," + _SPACE)
    values = _decoded(before, faults)
    return {**values, **_decoded(_closed(after, faults), faults)} if whole else values


def note_trailing_garbage(tail: bytes, faults: Faults) -> None:
    """For the list form, which has nothing after its list."""
    if tail.strip(_SPACE):
        faults.add("trailing_garbage")


def base_time(metadata: dict[str, Any], faults: Faults) -> int:
    """`baseTimeNanoseconds`, or 0 where times are absolute."""
    base = metadata.get("baseTimeNanoseconds", 0)
    if isinstance(base, str) and base.isascii() and base.isdigit() and len(base) < 20:
        base = int(base)
    if isinstance(base, int) and 0 <= base < _LATEST_BASE:
        return base
    faults.add("odd_metadata")
    return 0


def _closed(text: bytes, faults: Faults) -> bytes:
    """The object alone: without what follows it, or closed after its last whole value where the file stops before."""
    structure = split.scan(text)
    if len(structure.ends):
        end = int(structure.ends[0])
        if text[end:].strip(_SPACE):
            faults.add("trailing_garbage")
        return text[:end]
    faults.add("unclosed")
    return text.rstrip(b"," + _SPACE) + b"}"


def _decoded(text: bytes, faults: Faults) -> dict[str, Any]:
    try:
        values = msgspec.json.decode(text)
    except _FAILED:
        faults.add("odd_metadata")
        values = _what_can_be_read(text)
    return values if isinstance(values, dict) else {}


def _what_can_be_read(text: bytes) -> Any:
    """Repaired metadata; failing that, the values before the damage."""
    mended = text
    if len(text) <= _MAX_REPAIRED:
        mended, _ = repaired(text)
        try:
            return msgspec.json.decode(mended)
        except _FAILED:
            pass
    positions, depth = split.bracket_depths(mended)
    for end in positions[depth == 1][::-1][:20].tolist():
        try:
            return msgspec.json.decode(mended[: end + 1] + b"}")
        except _FAILED:
            continue
    return {}
