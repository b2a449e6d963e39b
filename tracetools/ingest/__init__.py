"""Bytes to columns. In: paths. Out: `Trace`. Its two doors are `find_inputs` and `read_trace`."""

from tracetools.ingest.inputs import Discovery, TraceInput, find_inputs
from tracetools.ingest.read import read_trace

__all__ = ["Discovery", "TraceInput", "find_inputs", "read_trace"]
