"""One file → one `Trace`. In: a `TraceInput`. Out: columns, metadata and findings, or UnreadableTrace."""

from __future__ import annotations

import contextlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator

from tracetools.errors import UnreadableTrace
from tracetools.ingest import streams
from tracetools.ingest.assemble import assemble_events, assemble_flows, assemble_marks
from tracetools.ingest.columns import TraceColumns
from tracetools.ingest.document import Document, NotATrace
from tracetools.ingest.event import undisturbed
from tracetools.ingest.faults import Faults
from tracetools.ingest.inputs import TraceInput
from tracetools.ingest.metadata import base_time, decode_metadata, note_trailing_garbage
from tracetools.ingest.shares import Unusual, processes_worth, read_in_shares
from tracetools.ingest.two_ranks import processes_with_same_correlations
from tracetools.table import Trace


def read_trace(source: TraceInput, progress: Callable[[int], None] | None = None, processes: int = 1) -> Trace:
    """Read one trace file, repairing what can be repaired.

    progress: told the bytes of JSON text handled, block by block. processes: how many may share a large file; the
    result is the same.

    Raises: UnreadableTrace where the file is no trace or is damaged beyond use.
    """
    try:
        if (count := processes_worth(source, processes)) > 1:
            with contextlib.suppress(Unusual):
                return _read_shared(source, progress, count)
        return _read_alone(source, progress)
    except NotATrace as error:
        raise UnreadableTrace(f"{source.label}: {error}; {_way_out(str(error))}") from error
    except (OSError, zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, KeyError) as error:
        fact = getattr(error, "strerror", None) or error
        raise UnreadableTrace(f"{source.label}: {fact}; check the path, or copy the file again") from error


def _read_alone(source: TraceInput, progress: Callable[[int], None] | None) -> Trace:
    columns = TraceColumns(Faults())
    counted = _CountedBlocks(progress, columns.faults)
    with undisturbed(), streams.open_bytes(source.path, source.member) as stream:
        document = Document(counted.of(streams.blocks(stream)), columns.faults)
        for batch in document.batches():
            columns.add(batch)
    return _assembled(source, document, columns, counted.total)


def _read_shared(source: TraceInput, progress: Callable[[int], None] | None, processes: int) -> Trace:
    columns = TraceColumns(Faults())
    counted = _CountedBlocks(progress, columns.faults)
    document = Document((), columns.faults)
    document.head, document.tail = read_in_shares(source, processes, columns, counted.of)
    document.whole = True
    if columns.faults:
        raise Unusual
    return _assembled(source, document, columns, counted.total)


def _way_out(fact: str) -> str:
    if "second" in fact:
        return "let every rank write a file of its own, and record again"
    return "pass trace files that torch.profiler wrote"


class _CountedBlocks:
    """Counts the bytes that pass, and notes where the compressed data breaks off."""

    def __init__(self, progress: Callable[[int], None] | None, faults: Faults) -> None:
        self.total = 0
        self._progress = progress
        self._faults = faults

    def of(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        try:
            for block in blocks:
                self.total += len(block)
                if self._progress:
                    self._progress(len(block))
                yield block
        except streams.CutOff:
            return
        except streams.Damaged:
            self._faults.add("bad_compression")


def _assembled(source: TraceInput, document: Document, columns: TraceColumns, bytes_read: int) -> Trace:
    faults = columns.faults
    columns.finish()
    if document.is_list:
        faults.add("old_list_form")
        note_trailing_garbage(document.tail, faults)
    metadata = {} if document.is_list else decode_metadata(document.head, document.tail, faults, document.whole)
    if not document.whole:
        faults.add("truncated")
    base_ns = base_time(metadata, faults)
    events, resolution_ns = assemble_events(columns, base_ns)
    lanes = columns.lanes.lanes()
    if clash := processes_with_same_correlations(events, lanes):
        raise UnreadableTrace(
            f"{source.label}: processes {clash[0]} and {clash[1]} both launch work under the same correlations, "
            "so it was merged from several ranks; pass the files that the ranks wrote"
        )
    instants, counters = assemble_marks(columns.instants, base_ns), assemble_marks(columns.counters, base_ns)
    return Trace(
        path=source.label,
        metadata=metadata,
        base_ns=base_ns,
        resolution_ns=resolution_ns,
        events=events,
        instants=instants,
        counters=counters,
        flows=assemble_flows(columns.flows, base_ns),
        records=tuple(columns.records),
        strings=tuple(columns.strings),
        lanes=lanes,
        findings=faults.findings(source.label, source.rank),
        truncated=not document.whole,
        bytes_read=bytes_read,
    )
