"""Whose trace it is. In: a file's head, tail and name. Out: rank and host."""

from __future__ import annotations

import re
from pathlib import Path

from tracetools.ingest import streams

_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d+)')
_NAME = re.compile(r"(?<![A-Za-z])rank[-_]?(\d+)(?!\d)")


def peek_rank(path: Path) -> tuple[int | None, str | None, str | None]:
    """Rank by distributedInfo or by name."""
    with streams.open_bytes(path, None) as stream:
        previous = b""
        try:
            for block in streams.blocks(stream):
                if found := _RANK.search(previous + block):
                    return int(found.group(1)), "distributedInfo", None
                previous = block[-4096:]
        except streams.Damaged:
            pass
    if named := _NAME.search(path.name):
        return int(named.group(1)), "name", None
    return None, None, None
