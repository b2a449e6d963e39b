"""One file → one `Trace`. In: a `TraceInput`. Out: columns, metadata and findings, or UnreadableTrace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from tracetools.errors import UnreadableTrace
from tracetools.ingest import streams
from tracetools.ingest.columns import EventColumns, TraceColumns
from tracetools.ingest.document import Document, NotATrace
from tracetools.ingest.faults import Faults
from tracetools.ingest.inputs import TraceInput
from tracetools.table import KIND_OF_CATEGORY, Events, Flows, IntArray, Kind, Marks, Trace


def read_trace(source: TraceInput, progress: Callable[[int], None] | None = None) -> Trace:
    """Read one trace file, repairing what can be repaired.

    progress: told the bytes of JSON text handled, block by block.

    Raises: UnreadableTrace where the file is no trace or is damaged beyond use.
    """
    faults = Faults()
    columns = TraceColumns(faults)
    counter = _Counter(progress)
    try:
        with streams.open_bytes(source.path, source.member) as stream:
            document = Document(counter.watch(streams.blocks(stream), faults), faults)
            for batch in document.batches():
                columns.add(batch)
    except NotATrace as error:
        raise UnreadableTrace(f"{source.label}: {error}; pass files that torch.profiler wrote") from error
    except OSError as error:
        raise UnreadableTrace(f"{source.label}: {error.strerror or error}") from error
    metadata = {**_metadata(document.head), **_metadata(b"{" + document.tail.lstrip(b" \t\r\n,"))}
    if not document.whole:
        faults.add("truncated")
    base = metadata.get("baseTimeNanoseconds", 0)
    base_ns = base if isinstance(base, int) else 0
    return _trace(source, columns, metadata, base_ns, document, counter.total)


class _Counter:
    """Counts the bytes that pass, and notes where the compressed data breaks off."""

    def __init__(self, progress: Callable[[int], None] | None) -> None:
        self.total = 0
        self._progress = progress

    def watch(self, blocks: Iterator[bytes], faults: Faults) -> Iterator[bytes]:
        try:
            for block in blocks:
                self.total += len(block)
                if self._progress:
                    self._progress(len(block))
                yield block
        except streams.Damaged:
            faults.add("bad_compression")


def _metadata(text: bytes) -> dict[str, Any]:
    text = re.sub(rb"[\s,]+\Z", b"", text)
    if not text.strip(b"{} \t\r\n"):
        return {}
    try:
        decoded = msgspec.json.decode(text if text.endswith(b"}") else text + b"}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        try:
            decoded = msgspec.json.decode(text + b"}")
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return {}
    return decoded if isinstance(decoded, dict) else {}


def _trace(
    source: TraceInput, columns: TraceColumns, metadata: dict[str, Any], base_ns: int, document: Document, total: int
) -> Trace:
    complete = columns.complete
    ts_ns = complete.parts["ts_ns"].join()
    dur_ns = complete.parts["dur_ns"].join()
    whole_us = len(ts_ns) > 8 and not (ts_ns % 1000).any() and not (dur_ns % 1000).any()
    category = complete.parts["category"].join()
    strings = tuple(columns.strings)
    events = Events(
        ts_ns=ts_ns + base_ns,
        dur_ns=dur_ns,
        name=complete.parts["name"].join(),
        category=category,
        lane=complete.parts["lane"].join(),
        kind=_kinds(strings, category),
        arguments={column: columns.sparse(column) for column in sorted(columns.arguments)},
    )
    instants, counters = _marks(columns.instants, base_ns), _marks(columns.counters, base_ns)
    flows = _flows(columns.flows, base_ns)
    return Trace(
        path=source.label,
        metadata=metadata,
        base_ns=base_ns,
        resolution_ns=1000 if whole_us else 1,
        events=events,
        instants=instants,
        counters=counters,
        flows=flows,
        records=tuple(columns.records),
        strings=tuple(columns.strings),
        lanes=columns.lanes.lanes(),
        findings=columns.faults.findings(source.label, source.rank),
        truncated=not document.whole,
        bytes_read=total,
    )


def _kinds(strings: tuple[str, ...], category: IntArray) -> Any:
    table = np.array([KIND_OF_CATEGORY.get(text, Kind.OTHER) for text in strings], np.uint8)
    return table[category] if len(category) else np.zeros(0, np.uint8)


def _marks(columns: EventColumns, base_ns: int) -> Marks:
    parts = columns.parts
    return Marks(
        ts_ns=parts["ts_ns"].join() + base_ns,
        name=parts["name"].join(),
        category=parts["category"].join(),
        lane=parts["lane"].join(),
        args=parts["args"].join(),
    )


def _flows(columns: EventColumns, base_ns: int) -> Flows:
    parts = columns.parts
    return Flows(
        ts_ns=parts["ts_ns"].join() + base_ns,
        lane=parts["lane"].join(),
        category=parts["category"].join(),
        flow=parts["flow"].join(),
        is_start=parts["is_start"].join(),
    )
