"""The event table: a trace as typed columns, declared once. In: columns from `ingest`. Out: `Trace`.

Three lines of what a row stands for, as Kineto writes them (times in µs, three decimals):

    {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 4000, "tid": 4000, "ts": 522997898.017, "dur": 388.075}
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", …, "args": {"External id": 7, "correlation": 16}}
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, …, "args": {"stream": 7, "correlation": 16}}
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tracetools.findings import Finding

IntArray: TypeAlias = npt.NDArray[np.int64]
IdArray: TypeAlias = npt.NDArray[np.int32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

ABSENT: Final[int] = int(np.iinfo(np.int64).min)
"""What a dense integer column holds where the trace has no value; it never leaves the package."""


class Kind(enum.IntEnum):
    """What an event is, decided by its category alone (never by name, pid or tid)."""

    OTHER = 0
    CPU_OP = 1
    ANNOTATION = 2
    PYTHON = 3
    RUNTIME = 4
    DRIVER = 5
    OVERHEAD = 6
    KERNEL = 7
    MEMCPY = 8
    MEMSET = 9
    GPU_ANNOTATION = 10
    GPU_SYNC = 11


KIND_OF_CATEGORY: Final[dict[str, Kind]] = {
    "cpu_op": Kind.CPU_OP,
    "Operator": Kind.CPU_OP,
    "user_annotation": Kind.ANNOTATION,
    "python_function": Kind.PYTHON,
    "cuda_runtime": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "mtia_runtime": Kind.RUNTIME,
    "glow_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "Runtime": Kind.RUNTIME,
    "cuda_driver": Kind.DRIVER,
    "xpu_driver": Kind.DRIVER,
    "privateuse1_driver": Kind.DRIVER,
    "overhead": Kind.OVERHEAD,
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "mtia_ccp_events": Kind.KERNEL,
    "collective_comm": Kind.OTHER,
    "gpu_memcpy": Kind.MEMCPY,
    "Memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "cuda_sync": Kind.GPU_SYNC,
    "cuda_event": Kind.GPU_SYNC,
}

GPU_WORK: Final = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
CALLS: Final = (Kind.RUNTIME, Kind.DRIVER)

INTEGER_ARGUMENTS: Final[dict[str, str]] = {
    "correlation": "correlation",
    "external_id": "External id",
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "python_id": "Python id",
    "python_parent_id": "Python parent id",
    "python_module_id": "Python module id",
    "stream": "stream",
    "device": "device",
    "graph_id": "graph id",
    "graph_node_id": "graph node id",
    "bytes": "bytes",
    "in_nelems": "In msg nelems",
    "out_nelems": "Out msg nelems",
    "group_size": "Group size",
    "source_rank": "Src Rank",
    "destination_rank": "Dst Rank",
    "collective_sequence": "Seq",
    "wait_on_stream": "wait_on_stream",
    "wait_on_event": "wait_on_cuda_event_id",
    "wait_on_event_correlation": "wait_on_cuda_event_record_corr_id",
}
"""Column name → argument name, for arguments kept as exact int64 (ABSENT where missing or not an integer)."""

TEXT_ARGUMENTS: Final[dict[str, str]] = {
    "input_dims": "Input Dims",
    "input_types": "Input type",
    "input_strides": "Input Strides",
    "concrete_inputs": "Concrete Inputs",
    "collective_name": "Collective name",
    "dtype": "dtype",
    "in_split": "In split size",
    "out_split": "Out split size",
    "group_name": "Process Group Name",
    "group_description": "Process Group Description",
    "group_ranks": "Process Group Ranks",
    "comms_id": "Comms Id",
    "sync_kind": "cuda_sync_kind",
}
"""Column name → argument name, for arguments kept as interned text: the JSON as written, or a plain string's content.

Lists stay raw JSON text (decode when asked); a number, as `Comms Id` above 2**63, keeps every digit.
"""


@dataclass(frozen=True, slots=True)
class Sparse:
    """A column that few rows have: `values[k]` (int64 or string id) belongs to row `rows[k]`; rows ascend."""

    rows: IdArray
    values: IntArray


@dataclass(frozen=True, slots=True)
class Lane:
    """Where an event sits, exactly as the trace names it: process and thread, or device and stream."""

    pid: int | str
    tid: int | str


@dataclass(frozen=True, slots=True)
class Events:
    """Complete events (`ph` X), one row each, in the order of the file.

    ts_ns: start, ns since the epoch (base + ts·1000, exact). dur_ns: length, ns, never negative.
    name, category: ids into `Trace.strings`. lane: index into `Trace.lanes`. kind: see `Kind`.
    arguments: the columns of INTEGER_ARGUMENTS and TEXT_ARGUMENTS that occur.
    """

    ts_ns: IntArray
    dur_ns: IntArray
    name: IdArray
    category: IdArray
    lane: IdArray
    kind: npt.NDArray[np.uint8]
    arguments: dict[str, Sparse] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ts_ns)

    def argument(self, column: str) -> IntArray:
        """One argument as a dense column; ABSENT where the event has none."""
        if column not in INTEGER_ARGUMENTS and column not in TEXT_ARGUMENTS:
            raise KeyError(column)
        dense = np.full(len(self), ABSENT, np.int64)
        if (sparse := self.arguments.get(column)) is not None:
            dense[sparse.rows] = sparse.values
        return dense


@dataclass(frozen=True, slots=True)
class Marks:
    """Events without a length: instants (`ph` i, I) and counters (`ph` C). args: id of the raw JSON text, or ABSENT."""

    ts_ns: IntArray
    name: IdArray
    category: IdArray
    lane: IdArray
    args: IntArray

    def __len__(self) -> int:
        return len(self.ts_ns)


@dataclass(frozen=True, slots=True)
class Flows:
    """Ends of arrows (`ph` s, t, f). flow: id of the arrow's own id as text, unique with its category."""

    ts_ns: IntArray
    lane: IdArray
    category: IdArray
    flow: IdArray
    is_start: BoolArray

    def __len__(self) -> int:
        return len(self.ts_ns)


@dataclass(frozen=True, slots=True)
class Trace:
    """One rank's file as columns. Nothing here is ever changed.

    metadata: every top-level value but traceEvents, decoded. base_ns: baseTimeNanoseconds, or 0.
    records: metadata events (`ph` M) as {"name", "pid", "tid", "args"}.
    resolution_ns: 1, or 1000 where the file holds whole µs only.
    bytes_read: size of the JSON text. truncated: the file ends early, so totals are lower bounds.
    """

    path: str
    metadata: dict[str, Any]
    base_ns: int
    resolution_ns: int
    events: Events
    instants: Marks
    counters: Marks
    flows: Flows
    records: tuple[dict[str, Any], ...]
    strings: tuple[str, ...]
    lanes: tuple[Lane, ...]
    findings: tuple[Finding, ...]
    truncated: bool
    bytes_read: int

    def named(self, matches: Callable[[str], object]) -> BoolArray:
        """Event rows whose name satisfies a test; each distinct name is tried once."""
        used = np.zeros(len(self.strings), bool)
        used[self.events.name] = True
        for at in np.flatnonzero(used).tolist():
            used[at] = bool(matches(self.strings[at]))
        return used[self.events.name]
