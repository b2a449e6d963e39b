"""Makes the traces of a large training job of known totals. In: ranks, steps, layers. Out: a trace per rank.

Each layer runs one GEMM forward and two backward, so for every rank and step
    GPU time forward  = layers * 40 us      FLOPs forward  = layers * 2 * 4096 * 1024 * 1024
    GPU time backward = layers * 80 us      FLOPs backward = twice that
and 3 * layers kernels. About 30 MB of JSON for 20 steps of 600 layers.

    python benchmarks/scale.py build/bench/ranks8 --ranks 8 --steps 20 --layers 600
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

BASE_NS: Final = 1_790_857_026_000_000_000
START_US: Final = 5_000_000_000.017  # a fraction, or the clock would look like one of whole us
KERNEL_US: Final = 40
SLOT_US: Final = 50
DIMS: Final = [[1024], [4096, 1024], [1024, 1024]]
KERNEL: Final = "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT"
NODE: Final = "autograd::engine::evaluate_function: AddmmBackward0"


class Writer:
    """Gives each record its thread and ids; knows nothing of training."""

    def __init__(self, rank: int) -> None:
        self.process = 4000 + rank
        self.ids = 0

    def record(self, category: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
        """One complete event on the main thread, times in us from the start of the job."""
        place = {"pid": self.process, "tid": self.process}
        time = {"ts": round(START_US + start, 3), "dur": length}
        return {"ph": "X", "cat": category, "name": name, **place, **time, "args": args}

    def gemm(self, start: float, gpu_start: float, **args: Any) -> Iterator[dict[str, Any]]:
        """An op of 20 us that launches one kernel."""
        self.ids += 1
        link = {"External id": self.ids, "correlation": self.ids}
        yield self.record("cpu_op", "aten::addmm", start, 20, **{"External id": self.ids, "Input Dims": DIMS, **args})
        yield self.record("cuda_runtime", "cudaLaunchKernel", start + 10, 5, **link)
        kernel = self.record("kernel", KERNEL, gpu_start, KERNEL_US, device=0, stream=7, **link)
        yield kernel | {"pid": 0, "tid": 7}

    def arrow(self, phase: str, number: int, start: float) -> dict[str, Any]:
        """One end of a forward-backward arrow."""
        place = {"pid": self.process, "tid": self.process, "ts": round(START_US + start, 3)}
        return {"ph": phase, "cat": "fwdbwd", "name": "fwdbwd", "id": number, **place} | (
            {"bp": "e"} if phase == "f" else {}
        )


def step_records(writer: Writer, step: int, layers: int) -> Iterator[dict[str, Any]]:
    """All events of one step: forward through the layers, then backward the other way."""
    start = step * (3 * layers + 2) * SLOT_US
    yield writer.record("user_annotation", f"ProfilerStep#{step}", start, (3 * layers + 1) * SLOT_US)
    yield writer.record("python_function", "nn.Module: Model_0", start + 1, layers * SLOT_US, **{"Python id": 1})
    for layer in range(layers):
        yield from forward_records(writer, step, layer, layers, start + 2 + layer * SLOT_US)
    for layer in reversed(range(layers)):
        at = start + (layers + 2 * (layers - 1 - layer) + 1) * SLOT_US
        yield from backward_records(writer, step * layers + layer, at)


def forward_records(writer: Writer, step: int, layer: int, layers: int, at: float) -> Iterator[dict[str, Any]]:
    """A module's frame around its GEMM, and the tail of the arrow to its backward."""
    number = step * layers + layer
    frame = {"Python id": layer + 2, "Python parent id": 1, "Python module id": layer}
    yield writer.record("python_function", f"nn.Module: Linear_{layer}", at, 30, **frame)
    yield from writer.gemm(at + 5, at + 25, **{"Sequence number": number, "Fwd thread id": 0})
    yield writer.arrow("s", number, at + 5)


def backward_records(writer: Writer, number: int, at: float) -> Iterator[dict[str, Any]]:
    """An autograd node with the GEMMs of the two gradients."""
    link = {"Sequence number": number, "Fwd thread id": 1}
    yield writer.record("cpu_op", NODE, at, 90, **link)
    yield writer.record("cpu_op", "AddmmBackward0", at + 1, 85, **link)
    yield writer.arrow("f", number, at + 1)
    for half in (0, 1):
        yield from writer.gemm(at + 5 + 40 * half, at + 25 + SLOT_US * half)


def header(rank: int, ranks: int) -> dict[str, Any]:
    """The top of the document, before the events."""
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": ranks}
    world = {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_count": 1}
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}],
        "distributedInfo": {**world, "pg_config": [{**group, "ranks": list(range(ranks))}]},
        "host_name": f"node-{rank // 8}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }


def write_rank(folder: Path, rank: int, ranks: int, steps: int, layers: int) -> int:
    """Write one rank's trace in constant memory; returns the number of records."""
    writer, count = Writer(rank), 0
    path = folder / f"rank-{rank:05d}.trace.json.gz"
    partial = path.with_name("partial-" + path.name)
    with gzip.open(partial, "wt", compresslevel=1) as stream:
        stream.write(json.dumps(header(rank, ranks))[:-1] + ', "traceEvents": [\n')
        for step in range(steps):
            for record in step_records(writer, step, layers):
                stream.write(",\n" * (count > 0) + json.dumps(record))
                count += 1
        stream.write('\n], "traceName": "trace.json"}\n')
    partial.rename(path)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, default in (("ranks", 8), ("steps", 20), ("layers", 600)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for rank in range(arguments.ranks):
        count = write_rank(arguments.folder, rank, arguments.ranks, arguments.steps, arguments.layers)
        print(f"rank {rank}: {count} records")


if __name__ == "__main__":
    main()
