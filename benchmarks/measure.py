"""What a command costs as a whole process. In: a command. Out: wall time, CPU time and peak memory.

The caller must stay small: Linux counts the memory of a process before exec in its child's peak.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SAMPLE_SECONDS = 0.02


class Cost(NamedTuple):
    """One run. peak: largest single process (exact); tree: all processes together, sampled, so a lower bound."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    tree_mib: float


class Summary(NamedTuple):
    """Several runs of one command: medians, and the least wall time."""

    wall_s: float
    least_wall_s: float
    cpu_s: float
    peak_mib: float
    tree_mib: float


def measure(command: Sequence[str]) -> Cost:
    """Run a command to its end, its output thrown away. Raises CalledProcessError with stderr when it fails."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        sampler = _Sampler(process.pid)
        stderr = process.stderr.read() if process.stderr else b""
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        tree = sampler.stop()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command), stderr=stderr.decode(errors="replace"))
    peak = usage.ru_maxrss / 1024
    return Cost(wall, usage.ru_utime + usage.ru_stime, peak, max(peak, tree))


def summarize(costs: Sequence[Cost]) -> Summary:
    """Medians over runs; memory is the largest of them."""
    walls = [cost.wall_s for cost in costs]
    cpu = statistics.median(cost.cpu_s for cost in costs)
    peak, tree = max(cost.peak_mib for cost in costs), max(cost.tree_mib for cost in costs)
    return Summary(statistics.median(walls), min(walls), cpu, peak, tree)


class _Sampler:
    """Adds up the resident memory of a process and its descendants until stopped (Linux; elsewhere 0)."""

    def __init__(self, pid: int) -> None:
        self._pid, self._largest = pid, 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        self._done.set()
        self._thread.join()
        return self._largest

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self._largest = max(self._largest, sum(_resident_mib(pid) for pid in _tree(self._pid)))


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(found for child in children for found in _tree(int(child)))]


def _resident_mib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, IndexError):
        return 0.0
