"""A first look at a file: is it a trace, and what does it say about its rank? In: a stream. Out: `Glance`.

    … "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": […]}, "host_name": "node-a", …

Kineto writes this before the events, on-demand traces after them; so the whole text may have to go by once.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any, Final

import msgspec

from tracetools import trace_file
from tracetools.ingest import split, streams

_SPACE: Final = b"\xef\xbb\xbf \t\r\n"
_LIST_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENT = re.compile(rb'\[\s*(?:\{[^{}]*"ph"\s*:|\])')
_KEYS: Final = ("distributedInfo", trace_file.METADATA_KEY, "host_name")
_VALUE = {key: re.compile(rb'"' + key.encode() + rb'"\s*:\s*(?=[{"])') for key in _KEYS}
_HEAD: Final = 4 << 20
_TAIL: Final = 1 << 20
_MAX_VALUE: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Glance:
    """is_trace: False for JSON that is something else; None for what is empty, `{}` or no JSON at all.

    stated: the values of distributedInfo, of our own metadata and of host_name, as far as the file has them.
    """

    is_trace: bool | None
    stated: dict[str, Any] = field(default_factory=dict)


def glance(stream: IO[bytes]) -> Glance:
    """Look at the head of a file, and on to its tail where the head does not name the rank."""
    is_packed = stream.seekable() and stream.read(2) == streams.GZIP
    if stream.seekable():
        stream.seek(0)
    blocks = _undamaged(streams.blocks(stream))
    head = next(blocks, b"")
    while not _LIST_START.search(head) and len(head) < _HEAD and (block := next(blocks, b"")):
        head += block
    start = head.lstrip(_SPACE)
    if start[:1] == b"[":
        return Glance(bool(_EVENT.match(start)))
    if (events := _LIST_START.search(head)) is None:
        return Glance(False if start[:1] == b"{" and start[1:].strip(_SPACE + b"}") else None)
    stated = _stated(head[: events.start()])
    if not stated.keys() & set(_KEYS[:2]):
        stated |= _stated(_tail(stream, is_packed, head[events.end() :], blocks))
    return Glance(True, stated)


def _undamaged(blocks: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from blocks
    except streams.Damaged:
        return


def _tail(stream: IO[bytes], is_packed: bool, head: bytes, blocks: Iterator[bytes]) -> bytes:
    """The end of the text: as much of it as metadata may take."""
    if is_packed or not stream.seekable():
        last = deque([head], maxlen=_MAX_VALUE // streams.BLOCK)
        last.extend(blocks)
        return b"".join(last)
    size = stream.seek(0, os.SEEK_END)
    for length in (_TAIL, _MAX_VALUE):
        stream.seek(max(0, size - length))
        text = stream.read(length)
        if _names_rank(text):
            break
    return text


def _names_rank(text: bytes) -> bool:
    return any(_VALUE[key].search(text) for key in _KEYS[:2])


def _stated(text: bytes) -> dict[str, Any]:
    stated = {}
    for key in _KEYS:
        if (found := _VALUE[key].search(text)) is not None and (value := _value_at(text, found.end())) is not None:
            stated[key] = value
    return stated


def _value_at(text: bytes, start: int) -> Any:
    """The object or string that begins at `start`, or None where it does not end or decode."""
    if text[start : start + 1] == b'"':
        end = text.find(b'"', start + 1) + 1
    else:
        rest = text[start : start + _MAX_VALUE]
        ends = split.scan(rest).ends
        end = start + int(ends[0]) if len(ends) else 0
    try:
        return msgspec.json.decode(text[start:end])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
