"""Events out of damaged text. In: a stretch of `traceEvents` that does not decode. Out: the events that can be saved.

The stretch is cut where events seem to meet, halved until the damaged pieces stand alone, and only those are repaired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tracetools.ingest.event import NotEvents, RawEvent, decode_events
from tracetools.ingest.faults import Faults
from tracetools.ingest.interning import text_of_raw
from tracetools.ingest.repair import repaired
from tracetools.ingest.split import likely_pieces, likely_starts

_MAX_PIECE: Final = 1 << 20
_MAX_STARTS: Final = 8
_MAX_LOST: Final = 50_000
"""A file with more places beyond repair is garbage; looking at each would take minutes."""
_VALUES = msgspec.json.Decoder(list[msgspec.Raw])
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FAILED = (msgspec.DecodeError, UnicodeError, RecursionError)
_TEXT_FIELDS = ("ph", "cat", "name")
_LANE_FIELDS = ("pid", "tid")
_RAW_FIELDS = ("ts", "dur", "args", "id")


def salvage(text: bytes, faults: Faults, *, cut_off: bool = False) -> list[RawEvent]:
    """All events of a damaged stretch that can be made out; what is repaired or lost is counted.

    cut_off: the text stops in the middle, so that a last piece without an end is no damage of its own.
    """
    pieces = likely_pieces(text)
    if cut_off and not pieces[-1].rstrip(b" \t\r\n,").endswith(b"}"):
        pieces.pop()
    events: list[RawEvent] = []
    parts = _sorted_out(pieces)
    at = 0
    while at < len(parts):
        part = parts[at]
        if not isinstance(part, bytes):
            events += part
        elif at + 1 < len(parts) and (joined := _joined(part, parts[at + 1])) is not None:
            events += joined
            at += 1
        else:
            events += _mended(part, faults)
        at += 1
    return events


def _sorted_out(pieces: Sequence[bytes]) -> list[list[RawEvent] | bytes]:
    """Runs of good events, and the pieces between them that do not decode."""
    if not pieces:
        return []
    try:
        return [decode_events(b",".join(pieces))]
    except NotEvents:
        if len(pieces) == 1:
            return [pieces[0]]
    middle = len(pieces) // 2
    return _sorted_out(pieces[:middle]) + _sorted_out(pieces[middle:])


def _joined(part: bytes, following: list[RawEvent] | bytes) -> list[RawEvent] | None:
    """Two pieces that are one event: the border between them lay inside a string or an argument."""
    if not isinstance(following, bytes):
        return None
    try:
        return decode_events(part + b", " + following)
    except NotEvents:
        return None


def _mended(piece: bytes, faults: Faults) -> list[RawEvent]:
    if len(piece) > _MAX_PIECE or faults.count("unreadable_event") > _MAX_LOST:
        faults.add("unreadable_event")
        return []
    if (events := _odd_events(piece, faults)) is None:
        events = _repaired_events(piece, faults)
    if events is not None:
        return events
    faults.add("unreadable_event")
    for start in [each for each in likely_starts(piece) if each][:_MAX_STARTS]:
        if (events := _repaired_events(piece[start:], faults)) is not None:
            return events
    return []


def _repaired_events(piece: bytes, faults: Faults) -> list[RawEvent] | None:
    text, rules = repaired(piece)
    if (text := text.strip(b" \t\r\n")).strip(b",") != text:
        text = text.strip(b", \t\r\n")
        rules.add("stray_comma")
    try:
        events = decode_events(text)
    except NotEvents:
        found = _odd_events(text, faults)
        if found is None:
            return None
        events = found
    for rule in rules:
        faults.add(rule)
    return events


def _odd_events(text: bytes, faults: Faults) -> list[RawEvent] | None:
    """Events whose JSON is sound but holds fields of other types than events have, or bytes that are not UTF-8."""
    try:
        values = _VALUES.decode(b"[" + text + b"]")
    except _FAILED:
        return None
    events = []
    for value in values:
        try:
            fields = _FIELDS.decode(bytes(value).decode("utf-8", "replace").encode())
        except _FAILED:
            faults.add("not_an_object")
            continue
        if not _is_utf8(value):
            faults.add("invalid_utf8")
        events.append(_event_of_fields(fields, faults))
    return events


def _is_utf8(value: msgspec.Raw) -> bool:
    try:
        bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _event_of_fields(fields: dict[str, msgspec.Raw], faults: Faults) -> RawEvent:
    event: dict[str, Any] = {key: fields[key] for key in _RAW_FIELDS if key in fields}
    for key in (*_TEXT_FIELDS, *_LANE_FIELDS):
        if key not in fields:
            continue
        kind = str if key in _TEXT_FIELDS else int | str | None
        raw = bytes(fields[key])
        try:
            event[key] = msgspec.json.decode(raw, type=kind)
        except _FAILED:
            faults.add("odd_field")
            event[key] = "" if raw == b"null" else text_of_raw(raw)
    return RawEvent(**event)
