"""Where tracetools' own time goes on one file, stage by stage. In: a trace. Out: seconds per stage, best of some runs.

Every function that `tracetools.analysis` and `tracetools.attribution.structure` take from another module is a stage,
and so is each metric; a clock around the call is all that is added.

    python benchmarks/stages.py samples/resnet_checkpoint_mi300x/resnet_act_checkpoint.json.gz --repeats 3
"""

from __future__ import annotations

import argparse
import functools
import inspect
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

STARTED: Final = time.perf_counter()

import tracetools.analysis  # noqa: E402  the clock above has to start first
from tracetools.attribution import structure  # noqa: E402
from tracetools.ingest import TraceInput, find_inputs  # noqa: E402
from tracetools.settings import Settings  # noqa: E402

IMPORTED: Final = time.perf_counter()
# A stage that only calls other stages would count them twice in the sum.
PASSES_ON: Final = ("build_structure",)


class Clock:
    """Seconds per stage of one run."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def around(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds[label] = self.seconds.get(label, 0) + time.perf_counter() - started

        return timed


def stages(module: ModuleType) -> Iterator[tuple[ModuleType, str, Callable[..., Any]]]:
    """Where each stage that `module` calls is looked up: (holder, name in it, function)."""
    for name, value in vars(module).items():
        if inspect.ismodule(value) and value.__name__.startswith("tracetools.metrics."):
            yield value, "measure", value.measure
        elif inspect.isfunction(value) and name not in PASSES_ON and _is_from_elsewhere(value, module):
            yield module, name, value


def _is_from_elsewhere(function: Callable[..., Any], module: ModuleType) -> bool:
    return function.__module__.startswith("tracetools.") and function.__module__ != module.__name__


def label(function: Callable[..., Any]) -> str:
    """`timeline.tree.build_tree`."""
    return f"{function.__module__.removeprefix('tracetools.')}.{function.__name__}"


def time_once(source: TraceInput) -> dict[str, float]:
    """Seconds per stage and in total, for one analysis of one file."""
    clock = Clock()
    found = [*stages(tracetools.analysis), *stages(structure)]
    for holder, name, function in found:
        setattr(holder, name, clock.around(label(function), function))
    try:
        clock.around("total", tracetools.analysis.analyze_file)(source, Settings())
    finally:
        for holder, name, function in found:
            setattr(holder, name, function)
    return clock.seconds


def lines(runs: list[dict[str, float]]) -> Iterator[str]:
    """The best time of each stage, in the order in which they ran; what no stage covers is a line too."""
    best = {name: min(run[name] for run in runs) for name in runs[0]}
    total = best.pop("total")
    for name, seconds in best.items():
        yield f"{seconds:8.3f} s {seconds / total:6.1%}  {name}"
    yield f"{total - sum(best.values()):8.3f} s          outside every stage"
    yield f"{total:8.3f} s          analyze_file"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    source = find_inputs([arguments.trace]).inputs[0]
    runs = [time_once(source) for _ in range(arguments.repeats)]
    print("\n".join(lines(runs)))
    print(f"{IMPORTED - STARTED:8.3f} s          imports")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{peak / (2**20 if sys.platform == 'darwin' else 2**10):8.0f} MiB        peak of this process")


if __name__ == "__main__":
    main()
