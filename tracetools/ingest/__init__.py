"""Bytes to columns. In: paths. Out: `Trace`. Its two doors are `find_inputs` and `read_trace`."""

from tracetools.ingest.inputs import Discovery, TraceInput, find_inputs
from tracetools.ingest.read import read_trace
from tracetools.ingest.shares import estimated_text_bytes

__all__ = ["Discovery", "TraceInput", "estimated_text_bytes", "find_inputs", "read_trace"]
