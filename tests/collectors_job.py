"""Runs a script under `python -m tracetools.collect`, alone or with torchrun or mpirun, and gives what came of it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "collectors" / "scripts"
LIMIT_S = 240


def script(name: str) -> str:
    return str(SCRIPTS / f"{name}.py")


def environment(**more: str) -> dict[str, str]:
    """Without a launcher of our own caller, and quiet where a library would warn."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    tools = str(Path(sys.executable).parent)
    return {**kept, "PATH": f"{tools}:{kept.get('PATH', '')}", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", **more}


def collect(*arguments: str, ranks: int = 1, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run to the end; ranks above 1 go through torchrun."""
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*launcher, "-m", "tracetools.collect", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=cwd, env=environment(**more)
    )


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What tracetools said on stderr."""
    return [line.partition(": ")[2] for line in done.stderr.splitlines() if line.startswith("tracetools: ")]


def document(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def trace_of(folder: Path, rank: int = 0) -> dict[str, Any]:
    return document(folder / f"rank-{rank:05d}.trace.json.gz")


def manifest_of(folder: Path, rank: int = 0) -> dict[str, Any]:
    return json.loads((folder / f"rank-{rank:05d}.manifest.json").read_text())
