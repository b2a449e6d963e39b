"""A small writer of traces for tests: say what happened, in µs, and get the analysis of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tracetools
from tracetools.results import Analysis, ModuleTime
from tracetools.trace_file import module_range_name

MAIN, AUTOGRAD = 100, 200


class Builder:
    """Collects events; every method returns the builder's next correlation or nothing, times are in whole µs."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.correlation = 0
        self.arrows = 0
        self.header: dict[str, Any] = {
            "schemaVersion": 1,
            "baseTimeNanoseconds": 10**18,
            "distributedInfo": {"rank": 0},
        }

    def span(self, category: str, name: str, start: float, length: float, tid: int = MAIN, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": length, "args": args}
        )

    def module(self, qualified: str, start: float, length: float, tid: int = MAIN, class_name: str = "my.Net") -> None:
        """A range as our collectors write it."""
        self.span("cpu_op", module_range_name(qualified, class_name), start, length, tid)

    def frame(self, name: str, start: float, length: float, tid: int = MAIN) -> None:
        self.span("python_function", name, start, length, tid, **{"Python id": len(self.events)})

    def op(self, name: str, start: float, length: float, seq: int | None = None, tid: int = MAIN) -> None:
        """A forward op, with a Sequence number of its own if it takes part in autograd."""
        args = {} if seq is None else {"Sequence number": seq, "Fwd thread id": 0}
        self.span("cpu_op", name, start, length, tid, **args)

    def node(self, name: str, start: float, length: float, seq: int | None = None, thread: int = 1) -> None:
        """A backward node on the autograd thread, with the inner op in it."""
        args = {} if seq is None else {"Sequence number": seq, "Fwd thread id": thread}
        prefix = "autograd::engine::evaluate_function: "
        self.span("cpu_op", prefix + name, start, length, AUTOGRAD, **args)
        self.span("cpu_op", name, start, length, AUTOGRAD, **args)

    def arrow(self, source: float, target: float, source_tid: int = MAIN) -> None:
        self.arrows += 1
        common = {"cat": "fwdbwd", "name": "fwdbwd", "pid": 1, "id": self.arrows}
        self.events.append({"ph": "s", "tid": source_tid, "ts": source, **common})
        self.events.append({"ph": "f", "bp": "e", "tid": AUTOGRAD, "ts": target, **common})

    def kernel(
        self, launched: float, start: float, length: float, name: str = "gemm", tid: int = MAIN, stream: int = 7
    ) -> None:
        """A launch of 1 µs and the work it started."""
        self.correlation += 1
        self.span("cuda_runtime", "cudaLaunchKernel", launched, 1, tid, correlation=self.correlation)
        self.events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "pid": 0,
                "tid": stream,
                "ts": start,
                "dur": length,
                "args": {"device": 0, "stream": stream, "correlation": self.correlation},
            }
        )

    def step(self, number: int, start: float, length: float) -> None:
        self.span("user_annotation", f"ProfilerStep#{number}", start, length)

    def write(self, path: Path) -> Path:
        document = {**self.header, "traceEvents": self.events, "traceName": "t"}
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def run(self, folder: Path, **options: Any) -> Analysis:
        return tracetools.load(self.write(folder / "trace.json"), **options).analysis


def by_path(analysis: Analysis) -> dict[str, ModuleTime]:
    """Module rows by path; a path under two parents is written `parent > path`."""
    paths = [row.path for row in analysis.modules]
    return {row.path if paths.count(row.path) == 1 else f"{row.parent} > {row.path}": row for row in analysis.modules}
