"""What a module range costs a call. Out: a table, us per call of an empty module, profiler off and on.

Plain and ranged calls take turns, so that a busy moment of the machine meets both; the least of many rounds counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile

from collectors.module_ranges import ModuleRanges

MODULES: Final = 400
ROUNDS: Final = 40


class Empty(torch.nn.Module):
    """Costs nothing but its call."""

    def forward(self, x: int) -> int:
        """The input."""
        return x


def us_per_call(modules: list[torch.nn.Module]) -> float:
    started = time.perf_counter()
    for module in modules:
        module(1)
    return (time.perf_counter() - started) / len(modules) * 1e6


def measure(profiled: Callable[[], object]) -> tuple[float, float, float]:
    """Least us per call before, with and after ranges; after is measured in the same turns as before."""
    model = torch.nn.Sequential(*(Empty() for _ in range(MODULES)))
    modules = list(model)
    plain, ranged, after = [], [], []
    for _ in range(ROUNDS):
        with profiled():
            plain.append(us_per_call(modules))
            with ModuleRanges(model):
                us_per_call(modules)  # the first call of a module makes its range, once
                ranged.append(us_per_call(modules))
            after.append(us_per_call(modules))
    return min(plain), min(ranged), min(after)


def main() -> None:
    torch.set_num_threads(1)
    print("| profiler | plain us | with ranges us | more us | afterwards us |\n|---|---|---|---|---|")
    for name, profiled in (("off", nullcontext), ("on", lambda: profile(activities=[ProfilerActivity.CPU]))):
        plain, ranged, after = measure(profiled)
        print(f"| {name} | {plain:.2f} | {ranged:.2f} | {ranged - plain:.2f} | {after:.2f} |", flush=True)


if __name__ == "__main__":
    main()
