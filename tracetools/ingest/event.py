"""One record of `traceEvents`, decoded no further than needed. In: whole events as JSON text. Out: `RawEvent`s.

    {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "pid": 25738, "tid": "25738", "ts": 1623142623460111…}
    {"ph": "s", "id": 1, "pid": 44077, "tid": 44077, "ts": 6869181218001.421, "cat": "ac2g", "name": "ac2g"}
    {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 1712195496004644.2}

Another decoder, a compiled one say, has to offer just `decode_events`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

_NOTHING = msgspec.Raw(b"")
_NULL = msgspec.Raw(b"null")


class RawEvent(msgspec.Struct, gc=False):
    """An event's own fields; times, id and args stay JSON text, for they are read column by column."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING
    args: msgspec.Raw = _NULL
    id: msgspec.Raw = _NOTHING


class NotEvents(Exception):
    """The text is no list of well-formed events."""


_DECODER = msgspec.json.Decoder(list[RawEvent])


def decode_events(text: bytes | memoryview) -> list[RawEvent]:
    """Events separated by commas, as written between the brackets of `traceEvents`."""
    try:
        return _DECODER.decode(b"".join((b"[", text, b"]")))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise NotEvents(str(error)) from error


@contextmanager
def undisturbed() -> Iterator[None]:
    """Batches of thousands of events make no cycles, and looking for some takes a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
