"""What a collection costs a training: while it waits, while it records, and after it. Out: a table.

Processes that train the same small transformer take turns: one without a collection, one for each pass. All time the
same steps, each as a whole with its `step()`. The ratios are those of one turn, so that a busy moment of the machine
meets both sides; the row "before" compares what cannot differ, which tells the noise.

    python -m benchmarks.collecting             5 turns: about 3 minutes
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from typing import Any, Final

TURNS: Final = 5
STEPS: Final = 150
RECORDED: Final = 20
PHASES: Final = ("before", "waiting", "recorded", "after")
WAYS: Final = ("none", "timing", "structure")


def train(way: str) -> dict[str, Any]:
    """Median ms of a step in each phase, and the last loss."""
    # Here and not above: the parent only starts processes.
    import torch

    import collectors

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(8))
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batch = torch.randn(4, 16, 64)
    loss = torch.zeros(())

    def timed(steps: int, collection: Any) -> float:
        nonlocal loss
        took = []
        for _ in range(steps):
            started = time.perf_counter()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if collection is not None:
                collection.step()
            took.append(time.perf_counter() - started)
        return statistics.median(took) * 1e3

    timed(STEPS // 3, None)  # to warm up
    found = {"before": timed(STEPS, None)}
    with tempfile.TemporaryDirectory() as folder:
        steps = f"{STEPS + 2}-{STEPS + RECORDED + 1}"
        around: Any = (
            nullcontext() if way == "none" else collectors.collect(folder, model=model, steps=steps, passes=way)
        )
        with around as collection:
            found["waiting"] = timed(STEPS, collection)
            timed(2, collection)  # the trial and the warm-up
            found["recorded"] = timed(RECORDED, collection)
        found["after"] = timed(STEPS, None)
    return {**found, "loss": loss.item()}


def turn() -> dict[str, dict[str, Any]]:
    """One process of each way."""
    command = [sys.executable, "-m", "benchmarks.collecting", "--way"]
    return {
        way: json.loads(subprocess.run([*command, way], check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
        for way in WAYS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--way", choices=WAYS, help="train once, and print what was found")
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(train(arguments.way)))
        return
    turns = [turn() for _ in range(arguments.turns)]
    print(
        "| pass | steps | ms without | ms with | with / without: median | least | most |\n|---|---|---|---|---|---|---|"
    )
    for way in WAYS[1:]:
        for phase in PHASES:
            ratios = [each[way][phase] / each["none"][phase] for each in turns]
            ms = [statistics.median(each[which][phase] for each in turns) for which in ("none", way)]
            print(
                f"| {way} | {phase} | {ms[0]:.2f} | {ms[1]:.2f} | "
                f"{statistics.median(ratios):.3f} | {min(ratios):.3f} | {max(ratios):.3f} |"
            )
    losses = {each[way]["loss"] for each in turns for way in WAYS}
    print(f"\nLosses {'equal in all processes' if len(losses) == 1 else f'differ: {sorted(losses)}'}.")


if __name__ == "__main__":
    main()
