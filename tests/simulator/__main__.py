"""`python -m tests.simulator SCENARIO --out DIR`: writes a synthetic run and the truth about it."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from tests.simulator.presets import PRESETS
from tests.simulator.run import simulate


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("scenario", choices=sorted(PRESETS), metavar="SCENARIO", help=", ".join(sorted(PRESETS)))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for traces and truth.json")
    parser.add_argument("--seed", type=int, default=1, help="of the noise in CPU times")
    parser.add_argument("--steps", type=int, help="how many steps instead of the preset's")
    given = parser.parse_args(arguments)
    job = replace(PRESETS[given.scenario], seed=given.seed)
    job = replace(job, steps=given.steps) if given.steps else job
    started = time.perf_counter()
    simulate(job, given.out)
    spent = time.perf_counter() - started
    print(f"synthetic {job.name}: {job.ranks} ranks, {job.steps} steps in {spent:.1f} s → {given.out}")


if __name__ == "__main__":
    main(sys.argv[1:])
