"""Works out the figures in the sample READMEs from the raw JSON, slowly and plainly, without the tracetools package.

In: the sample folders. Out: the figures, compared with those in `figures/`; exit code 1 where one differs.
tests/test_samples.py holds tracetools to the same figures, so two programs that share no line must agree.

    python samples/check.py                 compare all samples
    python samples/check.py ddp_gpt_cpu     print the figures of one
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

SAMPLES: Final = Path(__file__).parent
GPU_WORK: Final = ("kernel", "gpu_memcpy", "gpu_memset")
Figures = dict[str, Any]
Interval = tuple[int, int]


class Event(NamedTuple):
    """One record with a time; start and end in ns, exactly as the decimals in the file say."""

    name: str
    category: str
    phase: str
    thread: tuple[Any, Any]
    start: int
    end: int
    id: int | None
    args: dict[str, Any]

    def holds(self, other: Event) -> bool:
        """Whether `other` lies inside this event on the same thread."""
        return self.thread == other.thread and self.start <= other.start and other.end <= self.end


def read(path: Path) -> list[Event]:
    """Every record of a trace that has a time."""
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    return [_event(record) for record in document["traceEvents"] if "ts" in record and record["ph"] != "M"]


def _event(record: dict[str, Any]) -> Event:
    start = int(Decimal(record["ts"]) * 1000)
    end = start + int(Decimal(record.get("dur", 0)) * 1000)
    thread = (record.get("pid"), record.get("tid"))
    args = record.get("args", {})
    return Event(record["name"], record.get("cat", ""), record["ph"], thread, start, end, record.get("id"), args)


def union(intervals: Iterable[Interval]) -> int:
    """Time covered by at least one interval."""
    covered, reached = 0, -1
    for start, end in sorted(intervals):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def spans(events: Iterable[Event]) -> list[Interval]:
    """The intervals of events."""
    return [(event.start, event.end) for event in events]


def gpu_figures(events: list[Event]) -> Figures:
    """The row of the GPU for the whole file: exposed is what remains when the better reason is taken away."""
    work = [event for event in events if event.category in GPU_WORK]
    kernels = [event for event in work if event.category == "kernel"]
    communication = spans(event for event in kernels if event.name.startswith("nccl"))
    compute = spans(event for event in kernels if not event.name.startswith("nccl"))
    window = max(event.end for event in work) - min(event.start for event in work)
    busy = union(spans(work))
    return {
        "window_ns": window,
        "busy_ns": busy,
        "idle_ns": window - busy,
        "compute_ns": union(compute),
        "communication_ns": union(communication),
        "exposed_communication_ns": union(compute + communication) - union(compute),
        "exposed_copy_ns": busy - union(compute + communication),
    }


def launch_figures(events: list[Event]) -> Figures:
    """Launch calls and the GPU work that carries their correlation (here no call starts two pieces of work)."""
    calls = {
        event.args["correlation"]: event
        for event in events
        if event.category in ("cuda_runtime", "cuda_driver") and "correlation" in event.args
    }
    work = [event for event in events if event.category in GPU_WORK]
    linked = [(calls[event.args["correlation"]], event) for event in work if event.args["correlation"] in calls]
    return {
        "count": len(linked),
        "kernels_without_launch": len(work) - len(linked),
        "run_ahead_max_ns": max(0, *(event.start - call.end for call, event in linked)),
        "started_before_launch": sum(event.start < call.start for call, event in linked),
    }


def step_figures(events: list[Event]) -> Figures:
    """Wall time of each ProfilerStep on the CPU."""
    return {
        event.name.removeprefix("ProfilerStep#"): event.end - event.start
        for event in events
        if event.category == "user_annotation" and event.name.startswith("ProfilerStep#")
    }


def module_figures(events: list[Event], label: str) -> Figures:
    """Time inside a module's frames; those inside an autograd node are recompute. Arrows lead to its backward nodes.

    What a node recomputes is no backward: the frames of modules in it, and of a checkpoint's unpack hook around them.
    """
    nodes = [event for event in events if event.name.startswith("autograd::engine::evaluate_function")]
    frames = [event for event in events if event.name == f"nn.Module: {label}"]
    recomputed = [frame for frame in frames if any(node.holds(frame) for node in nodes)]
    entered = [frame for frame in frames if frame not in recomputed]
    backward = _reached_by_arrow(events, entered, nodes)
    again = [event for event in events if _may_recompute(event) and any(node.holds(event) for node in backward)]
    figures = {
        "forward_calls": len(entered),
        "forward_cpu_ns": union(spans(entered)),
        "backward_nodes": len(backward),
        "backward_cpu_ns": union(spans(backward)) - union(spans(again)),
    }
    if recomputed:
        figures |= {"recompute_calls": len(recomputed), "recompute_cpu_ns": union(spans(recomputed))}
    return figures


def _may_recompute(event: Event) -> bool:
    unpacks = "checkpoint.py(" in event.name and event.name.endswith(": unpack_hook")
    return unpacks or event.name.startswith("nn.Module: ")


def _reached_by_arrow(events: list[Event], frames: list[Event], nodes: list[Event]) -> list[Event]:
    """The autograd nodes at the heads of the arrows whose tails lie in `frames`."""
    arrows = [event for event in events if event.category == "fwdbwd"]
    left = {arrow.id for arrow in arrows if arrow.phase == "s" and any(frame.holds(arrow) for frame in frames)}
    heads = [arrow for arrow in arrows if arrow.phase == "f" and arrow.id in left]
    return [node for node in nodes if any(node.holds(arrow) for arrow in heads)]


def node_figures(events: list[Event]) -> Figures:
    """How many autograd nodes ran, by kind."""
    prefix = "autograd::engine::evaluate_function: "
    names = [event.name.removeprefix(prefix) for event in events if event.name.startswith(prefix)]
    return {name: names.count(name) for name in sorted(set(names))}


def count_figures(events: list[Event]) -> Figures:
    """Complete events in the file, and those of the GPU by kind."""
    complete = [event.category for event in events if event.phase == "X"]
    return {"complete_events": len(complete), **{kind: complete.count(kind) for kind in GPU_WORK if kind in complete}}


def ddp_gpt_cpu(events: list[Event]) -> Figures:
    labels = ("GPT_0", "Block_0", "Block_1", "Linear_4", "Linear_12")
    return {
        "steps": step_figures(events),
        "modules": {label: module_figures(events, label) for label in labels},
        "nodes": node_figures(events),
    }


def llama_tp2(events: list[Event]) -> Figures:
    return {"gpu": gpu_figures(events), "launches": launch_figures(events)}


def resnet_checkpoint_mi300x(events: list[Event]) -> Figures:
    labels = ("ResNet_0", "Conv2d_0", "Linear_0", "BasicBlock_0")
    return {
        "steps": step_figures(events),
        "gpu": gpu_figures(events),
        "launches": launch_figures(events),
        "modules": {label: module_figures(events, label) for label in labels},
        "nodes": node_figures(events),
    }


RECIPES: Final[dict[str, Callable[[list[Event]], Figures]]] = {
    recipe.__name__: recipe for recipe in (ddp_gpt_cpu, llama_tp2, resnet_checkpoint_mi300x)
}


def derive(sample: str) -> Figures:
    """All figures of one sample, by file name."""
    figures = {}
    for path in sorted((SAMPLES / sample).glob("*.json.gz")):
        events = read(path)
        figures[path.name] = {"events": count_figures(events), **RECIPES[sample](events)}
    return figures


def recorded(sample: str) -> Figures:
    """The figures that the sample's README explains; apart from the traces, for a folder of traces is read whole."""
    return json.loads((SAMPLES / "figures" / f"{sample}.json").read_text())


def main(names: list[str]) -> int:
    if names:
        print(json.dumps({name: derive(name) for name in names}, indent=2))
        return 0
    wrong = [sample for sample in RECIPES if derive(sample) != recorded(sample)]
    print("\n".join(f"{sample}: {'DIFFERS' if sample in wrong else 'as recorded'}" for sample in RECIPES))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
