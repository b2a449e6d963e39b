"""A second, slow and obvious reading of a trace, to compare with: json and Decimal, nothing of the package.

Only good JSON is read. Times become ns since the epoch without passing through a float.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

GPU_WORK = {"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"}
OPS = {"cpu_op", "Operator"}
CALLS = {"cuda_runtime", "cuda_driver", "Runtime"}
BACKWARD = "autograd::engine::evaluate_function"
OLD_BACKWARD = re.compile(r"\w+Backward\d*|torch::autograd::AccumulateGrad", re.ASCII)
MODULE = "nn.Module: "


@dataclass(eq=False)
class Event:
    name: str
    category: str
    lane: tuple[Any, Any]
    start: int
    end: int
    args: dict[str, Any]
    kernels: list[Event] = field(default_factory=list)
    """GPU work launched while this span was open on its thread."""

    @property
    def length(self) -> int:
        return self.end - self.start


def read_raw(path: Path) -> list[Event]:
    """Complete events of a file, in its order."""
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, parse_float=Decimal)
    if isinstance(document, list):
        document = {"traceEvents": document}
    base = int(document.get("baseTimeNanoseconds", 0))
    return [
        Event(
            name=event["name"],
            category=event["cat"],
            lane=(event["pid"], event["tid"]),
            start=base + to_ns(event["ts"]),
            end=base + to_ns(event["ts"]) + to_ns(event["dur"]),
            args=event.get("args", {}),
        )
        for event in document["traceEvents"]
        if event.get("ph") == "X"
    ]


def to_ns(time: Decimal | int) -> int:
    ns = Decimal(time) * 1000
    assert ns == int(ns)
    return int(ns)


def gpu_work(events: list[Event]) -> list[Event]:
    return [event for event in events if event.category in GPU_WORK]


def union(spans: Iterable[tuple[int, int]]) -> int:
    """Length of the union of spans."""
    total, reach = 0, None
    for start, end in sorted(spans):
        if reach is None or start > reach:
            total, reach = total + end - start, end
        elif end > reach:
            total, reach = total + end - reach, end
    return total


def busy(events: Iterable[Event]) -> int:
    return union((event.start, event.end) for event in events)


def hang_kernels_on_spans(events: list[Event]) -> None:
    """Give each piece of GPU work to every CPU span that was open, on the same thread, when its launch call began."""
    work = defaultdict(list)
    for event in gpu_work(events):
        if event.args.get("correlation"):
            work[event.args["correlation"]].append(event)
    lanes = defaultdict(list)
    for event in events:
        if event.category in OPS | CALLS | {"python_function"}:
            lanes[event.lane].append(event)
    for spans in lanes.values():
        open_spans: list[Event] = []
        # Of what starts together the call comes last, so that all around it is open by then.
        for span in sorted(spans, key=lambda span: (span.start, span.category in CALLS, -span.end)):
            open_spans = [other for other in open_spans if other.end > span.start]
            open_spans.append(span)
            if span.category in CALLS:
                for other in open_spans:
                    other.kernels += work.get(span.args.get("correlation"), [])


def backward_nodes(events: list[Event]) -> list[Event]:
    """Spans of the autograd engine; traces of 2021 and before have only the nodes inside them."""
    nodes = [event for event in events if event.name.startswith(BACKWARD)]
    return nodes or [event for event in events if event.category in OPS and OLD_BACKWARD.fullmatch(event.name)]


def outermost(spans: list[Event]) -> list[Event]:
    """Spans of one thread that lie in no other of the list."""
    found: list[Event] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if not found or span.start >= found[-1].end:
            found.append(span)
    return found


def calls_by_name(events: list[Event]) -> dict[str, list[Event]]:
    """Outermost calls of each op."""
    named: dict[tuple[str, Any], list[Event]] = defaultdict(list)
    for event in events:
        if event.category in OPS:
            named[event.name, event.lane].append(event)
    calls: dict[str, list[Event]] = defaultdict(list)
    for (name, _), spans in named.items():
        calls[name] += outermost(spans)
    return calls


def module_frames(events: list[Event]) -> dict[str, list[Event]]:
    """Calls of modules by path of labels, for those outside backward; frames of one thread nest."""
    lanes = defaultdict(list)
    for event in events:
        if event.name.startswith((MODULE, BACKWARD)):
            lanes[event.lane].append(event)
    frames: dict[str, list[Event]] = defaultdict(list)
    for spans in lanes.values():
        open_spans: list[Event] = []
        for span in sorted(spans, key=lambda span: (span.start, -span.end, int(span.args.get("Python id", 0)))):
            open_spans = [other for other in open_spans if other.end > span.start]
            open_spans.append(span)
            if all(other.name.startswith(MODULE) for other in open_spans):
                frames["/".join(other.name.removeprefix(MODULE) for other in open_spans)].append(span)
    return frames
