"""What ran on the GPU: kernels, copies and sets, and what kind of work each is. In: `Trace`. Out: `GpuWork`.

Synchronisation records and GPU annotations lie on the same lanes but are no work. One fault of ROCm tracers is mended
here: a completion stamp that came late makes a kernel seem to last over several later kernels of its stream:

    {"cat": "kernel", "name": "Cijk_…", "ts": 0.000, "dur": 1600000.000, "args": {"stream": 7}}
    {"cat": "kernel", "name": "elementwise", "ts": 50.000, "dur": 10.000, "args": {"stream": 7}}
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracetools.findings import Finding, Severity
from tracetools.table import ABSENT, GPU_WORK, IntArray, Kind, Trace

_COMMUNICATION_KERNEL = re.compile(
    r"nccl|rccl|msccl|nvshmem|rocshmem|deep_?ep::|cross_device_reduce|multimem_|one_shot_all|two_shot_all"
    r"|symm_mem|oneccl|hccl",
    re.IGNORECASE,
)
_LATE_STAMP_COVERS = 2


class Work(enum.IntEnum):
    """Class of a piece of GPU work."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


@dataclass(frozen=True, slots=True)
class GpuWork:
    """GPU work of one trace, ordered by start, then row.

    row: its row in the event table. start_ns, end_ns: on the device, late stamps mended. work: class (see `Work`).
    device, stream: as recorded, else from the lane. findings: what was mended.
    """

    row: IntArray
    start_ns: IntArray
    end_ns: IntArray
    work: npt.NDArray[np.int64]
    device: IntArray
    stream: IntArray
    findings: tuple[Finding, ...]

    def __len__(self) -> int:
        return len(self.row)


def find_gpu_work(trace: Trace) -> GpuWork:
    """All kernels, copies and sets; a kernel is communication by its collective arguments or its name."""
    events = trace.events
    row = np.flatnonzero(np.isin(events.kind, [*GPU_WORK]))
    row = row[np.lexsort((row, events.dur_ns[row], events.ts_ns[row]))]
    start = events.ts_ns[row]
    device, stream = _device_and_stream(trace, row)
    in_graph = events.argument("graph_id")[row] > 0
    end, findings = _mend_late_stamps(start, start + events.dur_ns[row], device, stream, in_graph)
    return GpuWork(row, start, end, _classify(trace, row), device, stream, findings)


def _device_and_stream(trace: Trace, row: IntArray) -> tuple[IntArray, IntArray]:
    """Recorded device and stream; where an argument is missing, the lane's pid and tid."""
    events = trace.events
    lane = events.lane[row]
    lane_pid = np.array([_as_number(lane.pid) for lane in trace.lanes] or [0], np.int64)
    lane_tid = np.array([_as_number(lane.tid) for lane in trace.lanes] or [0], np.int64)
    device, stream = events.argument("device")[row], events.argument("stream")[row]
    return np.where(device == ABSENT, lane_pid[lane], device), np.where(stream == ABSENT, lane_tid[lane], stream)


def _as_number(label: int | str) -> int:
    """Device or stream in a lane's label: the number itself, else the last one in the text, else 0."""
    if isinstance(label, int):
        return label if abs(label) < 2**62 else 0
    digits = re.findall(r"\d+", label)
    return int(digits[-1]) if digits and len(digits[-1]) < 18 else 0


def _classify(trace: Trace, row: IntArray) -> npt.NDArray[np.int64]:
    events = trace.events
    communication = trace.named(_COMMUNICATION_KERNEL.search)[row]
    communication |= events.argument("collective_name")[row] != ABSENT
    copy = events.kind[row] != Kind.KERNEL
    return np.where(copy, Work.COPY, np.where(communication, Work.COMMUNICATION, Work.COMPUTE)).astype(np.int64)


def _mend_late_stamps(
    start: IntArray, end: IntArray, device: IntArray, stream: IntArray, in_graph: npt.NDArray[np.bool_]
) -> tuple[IntArray, tuple[Finding, ...]]:
    """End work at the next start on its stream where it covers two or more later pieces of work wholly.

    Work of one stream runs in order, so a piece that outlasts several later ones has a wrong end. A small overlap
    (programmatic dependent launch) covers none. Kernels of one CUDA graph may run side by side and are left alone.
    """
    end = end.copy()
    mended = raw_ns = 0
    _, place = np.unique(np.stack([device, stream]), axis=1, return_inverse=True)
    order = np.lexsort((np.arange(len(start)), place.ravel()))
    place = place.ravel()[order]
    third = np.arange(len(order)) + _LATE_STAMP_COVERS
    suspects = np.flatnonzero(third < len(order))
    followers = suspects + _LATE_STAMP_COVERS
    covers = (
        (place[followers] == place[suspects])
        & (end[order[followers]] < end[order[suspects]])
        & (end[order[suspects + 1]] < end[order[suspects]])
        & (start[order[suspects + 1]] > start[order[suspects]])
        & ~in_graph[order[suspects]]
    )
    for at in suspects[covers]:
        raw_ns = max(raw_ns, int(end[order[at]] - start[order[at]]))
        end[order[at]] = start[order[at + 1]]
        mended += 1
    if not mended:
        return end, ()
    message = (
        f"{mended} pieces of GPU work end after two or more later ones on their stream (longest as recorded: "
        f"{raw_ns / 1e3:.3f} us): their completion stamps came late; ended at the next start instead; record again if "
        "these kernels matter"
    )
    affects = ("gpu", "modules", "ops")
    return end, (Finding("late_completion_stamp", Severity.WARNING, message, count=mended, affects=affects),)
