"""Writes what happened as Kineto does. In: spans and work with their times. Out: `rank-00000.trace.json.gz`.

Names, categories and argument keys are those of real traces; `test_simulator_vocabulary` holds them to that.
"""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.simulator.tape import Kind, Meeting, Span, Work

PERIOD_S = 7_889_238
BASE_NS = 223 * PERIOD_S * 10**9
FIRST_NS = 5_250_000_000_000_000
"""Start of the simulation, ns after the base."""
_CBID = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cuLaunchKernelEx": 652,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaGraphLaunch": 311,
    "cudaEventRecordWithFlags": 370,
    "cudaStreamWaitEvent": 147,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
}


_FORWARD_THREAD = 1


class Origin(NamedTuple):
    """The call that launched some work: thread, begin, op around it, its number, and that of the collective."""

    tid: int
    begun: int
    external: int | None
    correlation: int
    seq: int


class Writer:
    """One rank's trace, written event by event. device: number of the GPU in that process."""

    def __init__(self, path: Path, rank: int, pid: int, device: int, head: dict[str, Any], frames: bool) -> None:
        self.pid, self.device, self.frames = pid, device, frames
        self.events = 0
        self.muted = False
        self._name = path.name
        self._external = 0
        self._flow = 0
        self._labels: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._python = 0
        self._raw = path.open("wb")
        self._gzip = gzip.GzipFile(filename="", fileobj=self._raw, mode="wb", compresslevel=1, mtime=0)
        self._text = io.BufferedWriter(self._gzip, 1 << 20)
        self._write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        labels = (("process_name", "name", "python"), ("process_labels", "labels", "CPU"))
        records = [self._record(*each) for each in (*labels, ("process_sort_index", "sort_index", pid))]
        self._write(",\n".join(records))

    def _record(self, name: str, key: str, value: str | int) -> str:
        event = {"name": name, "ph": "M", "ts": _us(FIRST_NS), "pid": self.pid, "tid": 0, "args": {key: value}}
        return json.dumps(event)

    def _write(self, text: str) -> None:
        self._text.write(text.encode())

    def _add(self, text: str) -> None:
        if self.muted:
            return
        self.events += 1
        self._text.write(b",\n" + text.encode())

    def external(self) -> int:
        """A new External id."""
        self._external += 1
        return self._external

    def span(
        self, span: Span, tid: int, begin: int, end: int, external: int, sequence: int | None, seq: int = 0
    ) -> None:
        """A CPU op, range or module frame; sequence: of its autograd node, seq: of its collective."""
        if span.kind is Kind.MODULE and self.frames:
            self._frame(span, tid, begin, end)
            return
        name, category = span.name, span.kind.value
        if span.kind is Kind.MODULE:
            category = Kind.OP.value
            name = f"tracetools.module {name} {span.place.class_name if span.place else ''}"
        if self.muted:
            return
        thread = 0 if span.uses is None else _FORWARD_THREAD
        numbers = "" if sequence is None else f'"Sequence number": {sequence}, "Fwd thread id": {thread}, '
        arguments = f'"External id": {external}, {numbers}"Record function id": 0{span.detail}'
        arguments += f'{_collective(span.meeting, seq)}, "Ev Idx": {external}'
        length, begin = end - begin, begin + FIRST_NS
        self.events += 1
        text = (
            f',\n{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": {self.pid}, "tid": {tid}, '
            f'"ts": {begin // 1000}.{begin % 1000:03d}, "dur": {length // 1000}.{length % 1000:03d}, '
            f'"args": {{{arguments}}}}}'
        )
        self._text.write(text.encode())

    def _frame(self, span: Span, tid: int, begin: int, end: int) -> None:
        """A module as with_stack shows it: class and a counter of instances by first call."""
        class_name = (span.place.class_name if span.place else None) or "Module"
        short = class_name.rpartition(".")[2]
        key = short, span.name
        if key not in self._labels:
            number = self._counts.get(short, 0)
            self._counts[short] = number + 1
            self._labels[key] = f"{short}_{number}"
        label = self._labels[key]
        self._python += 1
        self._add(
            f'{{"ph": "X", "cat": "python_function", "name": "nn.Module: {label}", "pid": {self.pid}, "tid": {tid}, '
            f'"ts": {_us(FIRST_NS + begin)}, "dur": {_us(end - begin)}, "args": {{"Python parent id": null, '
            f'"Python id": {self._python}, "Python module id": {label.rpartition("_")[2]}, "Ev Idx": {self._python}}}}}'
        )

    def label(self, class_name: str, path: str) -> str:
        """Label under which a module's frames were written."""
        short = class_name.rpartition(".")[2]
        return self._labels[short, path]

    def call(self, name: str, tid: int, begin: int, end: int, external: int | None, correlation: int) -> None:
        """A runtime or driver call."""
        category = "cuda_driver" if name.startswith("cu") and not name.startswith("cuda") else "cuda_runtime"
        outer = "" if external is None else f'"External id": {external}, '
        self._add(
            f'{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": {self.pid}, "tid": {tid}, '
            f'"ts": {_us(FIRST_NS + begin)}, "dur": {_us(end - begin)}, '
            f'"args": {{{outer}"cbid": {_CBID[name]}, "correlation": {correlation}}}}}'
        )

    def overhead(self, begin: int, end: int) -> None:
        """The profiler wanted a buffer; Kineto puts such records on no thread of the job."""
        self._add(
            f'{{"ph": "X", "cat": "overhead", "name": "Activity Buffer Request", "pid": -1, "tid": 0, '
            f'"ts": {_us(FIRST_NS + begin)}, "dur": {_us(end - begin)}}}'
        )

    def launch(self, name: str, end: int, origin: Origin) -> None:
        """A call that starts work: however many kernels it has, the arrow begins once."""
        self.call(name, origin.tid, origin.begun, end, origin.external, origin.correlation)
        self._arrow_end("s", "ac2g", origin.correlation, self.pid, origin.tid, origin.begun)

    def work(self, work: Work, begin: int, end: int, origin: Origin) -> None:
        """A kernel, copy or set, with the head of the arrow from its launch call."""
        outer = "" if origin.external is None else f'"External id": {origin.external}, '
        common = f'"device": {self.device}, "context": 1, "stream": {work.stream}, "correlation": {origin.correlation}'
        graph = f'"graph id": {work.graph[0]}, "graph node id": {work.graph[1]}'
        if work.category == "kernel":
            shape = '"registers per thread": 128, "shared memory": 0, "blocks per SM": 1.0, "warps per SM": 8.0, '
            shape += '"grid": [132, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 25'
            detail = f'{outer}"queued": 0, {common}, {shape}, {graph}{_collective(work.meeting, origin.seq)}'
        else:
            rate = f'"bytes": {work.bytes}, "memory bandwidth (GB/s)": {work.bytes / max(end - begin, 1):.3f}'
            detail = f"{outer}{common}, {rate}, {graph}"
        self._add(
            f'{{"ph": "X", "cat": "{work.category}", "name": "{work.name}", "pid": {self.device}, '
            f'"tid": {work.stream}, "ts": {_us(FIRST_NS + begin)}, "dur": {_us(end - begin)}, "args": {{{detail}}}}}'
        )
        self._arrow_end("f", "ac2g", origin.correlation, self.device, work.stream, begin)

    def forward_backward(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        """The arrow from a forward op to its node; both as (thread, begin)."""
        self._flow += 1
        self._arrow_end("s", "fwdbwd", self._flow, self.pid, *source)
        self._arrow_end("f", "fwdbwd", self._flow, self.pid, *target)

    def _arrow_end(self, phase: str, name: str, number: int, pid: int, tid: int, ts: int) -> None:
        more = ', "bp": "e"' if phase == "f" else ""
        self._add(
            f'{{"ph": "{phase}", "id": {number}, "pid": {pid}, "tid": {tid}, "ts": {_us(FIRST_NS + ts)}, '
            f'"cat": "{name}", "name": "{name}"{more}}}'
        )

    def close(self) -> None:
        self._write(f'\n], "traceName": "{self._name}"}}\n')
        self._text.close()
        self._gzip.close()
        self._raw.close()


def _collective(meeting: Meeting | None, seq: int) -> str:
    """Arguments of a collective, as `record_param_comms` has them and NCCL's kernels repeat them."""
    if meeting is None:
        return ""
    ranks = list(meeting.ranks[:30])
    listed = str(ranks)[:-1] + (", ...]" if len(meeting.ranks) > 30 else "]")
    values: dict[str, Any] = {
        "Collective name": meeting.kind,
        "In msg nelems": meeting.elements_in,
        "Out msg nelems": meeting.elements_out,
        "Group size": len(meeting.ranks),
        "dtype": meeting.dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": meeting.group_name,
        "Process Group Description": meeting.description,
        "Process Group Ranks": listed,
        "Seq": seq,
    }
    if meeting.peer:
        values |= {"Src Rank": meeting.peer[0], "Dst Rank": meeting.peer[1]}
    return ", " + json.dumps(values)[1:-1]


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
