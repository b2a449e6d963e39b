"""Measures tracetools against HolisticTraceAnalysis as whole processes. Out: a table, also in build/bench/results.md.

Both run on the same files in the same environment (build/bench-venv, made here), in turns, so that a busy moment of the
machine meets both. Inputs are repeated real traces, cached in build/bench. Only the standard library is imported here,
because the peak memory of a child counts what its parent held (see measure.py).

    python benchmarks/run.py                    100 and 500 MB, a small trace, many ranks: about 10 minutes
    python benchmarks/run.py --quick            100 MB only, every command once: a minute
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from measure import Cost, Summary, measure, summarize

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
CACHE: Final = ROOT / "build" / "bench"
ENVIRONMENT: Final = ROOT / "build" / "bench-venv"
PYTHON: Final = ENVIRONMENT / "bin" / "python"
REQUIREMENTS: Final = ("HolisticTraceAnalysis==0.5.0", "pandas>=2.2,<3")
REAL_TRACES: Final = Path(os.environ.get("TRACETOOLS_REAL_TRACES", ROOT.parent / "shared" / "traces"))
SMALL: Final = ROOT / "samples/llama_tp2/llama_trace_4layers0_with_annotations.json.gz"
RANKS: Final = 8
REPEATS: Final = 3
COLUMNS: Final = (
    *("file", "MB", "events", "tool", "runs", "wall s, median", "least", "CPU s"),
    *("peak MiB", "all processes MiB"),
)


class Source(NamedTuple):
    """A real trace that is repeated to the wanted size."""

    label: str
    what: str
    path: Path


SOURCES: Final = (
    Source(
        "checkpoint",
        "training with modules, MI300X",
        ROOT / "samples/resnet_checkpoint_mi300x/resnet_act_checkpoint.json.gz",
    ),
    Source(
        "plain",
        "training without stacks, V100",
        REAL_TRACES / "hta/data__ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    ),
    Source("stacks", "inference with stacks, B200", REAL_TRACES / "tracelens/traces__b200__eager_trace.json.gz"),
)


class Row(NamedTuple):
    """One line of the table."""

    file: str
    megabytes: float
    events: int
    tool: str
    runs: int
    cost: Summary


def make_environment() -> None:
    """Make build/bench-venv with both tools, once."""
    if not PYTHON.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    # HTA comes first and alone: it pins nothing, and tracetools then checks what it got.
    for wanted in (REQUIREMENTS, ("--editable", str(ROOT))):
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted], check=True)


def json_size(path: Path) -> tuple[float, int]:
    """Megabytes of JSON and complete events of a trace, counted in its text."""
    size, events, rest = 0, 0, b""
    with gzip.open(path) as stream:
        while block := stream.read(1 << 22):
            size += len(block)
            text = rest + block
            events += text.count(b'"ph": "X"') + text.count(b'"ph":"X"')
            rest = text[-8:]  # shorter than either spelling, so nothing is counted twice
    return size / 1e6, events


def repeated(source: Source, megabytes: int) -> Path:
    """The source repeated to about that many megabytes of JSON."""
    target = CACHE / f"{source.label}-{megabytes}.json.gz"
    if not target.exists():
        count = max(1, round(megabytes / json_size(source.path)[0]))
        subprocess.run([sys.executable, HERE / "repeat_trace.py", source.path, str(count), target], check=True)
    return target


def many_ranks() -> Path:
    """A folder with eight ranks of 30 MB each."""
    folder = CACHE / f"ranks-{RANKS}"
    if len(list(folder.glob("rank-*.json.gz"))) < RANKS:
        subprocess.run([sys.executable, HERE / "scale.py", folder, "--ranks", str(RANKS)], check=True)
    return folder


def hta(path: Path) -> list[str]:
    return [str(PYTHON), str(HERE / "hta_run.py"), str(path)]


def tracetools(path: Path, *options: str) -> list[str]:
    return [str(ENVIRONMENT / "bin" / "tracetools"), "analyze", str(path), "--format", "json", *options]


def in_turns(commands: dict[str, list[str]], repeats: int) -> dict[str, Summary]:
    """Run every command once per round, the order turned round each time."""
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for number in range(repeats):
        for name in list(commands)[:: 1 if number % 2 == 0 else -1]:
            costs[name].append(measure(commands[name]))
    return {name: summarize(found) for name, found in costs.items()}


def against_hta(path: Path, repeats: int) -> list[Row]:
    """Both tools on one file."""
    size, events = json_size(path)
    commands = {"HTA 0.5.0": hta(path), "tracetools": tracetools(path)}
    measured = in_turns(commands, repeats)
    return [Row(path.name, size, events, tool, repeats, cost) for tool, cost in measured.items()]


def rank_rows(folder: Path, repeats: int) -> list[Row]:
    """One rank alone, all ranks in one process, all ranks as a user runs them."""
    files = sorted(folder.glob("rank-*.json.gz"))
    size, events = json_size(files[0])
    commands = {
        "tracetools, 1 rank": tracetools(files[0], "--workers", "1"),
        f"tracetools, {len(files)} ranks, --workers 1": tracetools(folder, "--workers", "1"),
        f"tracetools, {len(files)} ranks": tracetools(folder),
    }
    measured = in_turns(commands, repeats)
    counts = dict(zip(commands, (1, len(files), len(files)), strict=True))
    return [
        Row(folder.name, size * counts[tool], events * counts[tool], tool, repeats, cost)
        for tool, cost in measured.items()
    ]


def table(rows: Iterable[Row], base: str) -> list[str]:
    """Markdown; the ratios compare each row with the row of tool `base` of the same file."""
    rows = list(rows)
    bases = {row.file: row.cost for row in rows if row.tool == base}
    lines = [
        f"| {' | '.join(COLUMNS)} | {base} / this: wall | CPU | memory |",
        "|---" * (len(COLUMNS) + 3) + "|",
    ]
    for row in rows:
        cost, against = row.cost, bases[row.file]
        lines.append(
            f"| {row.file} | {row.megabytes:.0f} | {row.events:,} | {row.tool} | {row.runs} | {cost.wall_s:.2f} | "
            f"{cost.least_wall_s:.2f} | {cost.cpu_s:.2f} | {cost.peak_mib:.0f} | {cost.tree_mib:.0f} | "
            f"{against.wall_s / cost.wall_s:.1f} | {against.cpu_s / cost.cpu_s:.1f} | "
            f"{against.tree_mib / cost.tree_mib:.1f} |"
        )
    return lines


def environment_lines() -> list[str]:
    """What was measured with what."""
    command = [str(PYTHON), "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check"]
    frozen = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    named = ("holistictraceanalysis", "pandas=", "numpy=", "orjson=", "msgspec=", "isal=", "tracetools")
    versions = [line for line in frozen if line.lower().startswith(named)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = f"{cores} cores, {platform.machine()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    return [
        f"{machine}; {', '.join(versions)}.",
        "Whole processes on .json.gz, in turns.",
        "HTA: load, temporal, idle and kernel breakdown, launch statistics; nothing drawn.",
        "tracetools: `analyze FILE --format json`.",
        "Peak: the largest process; all processes: their sum, sampled.",
        "On a busy machine CPU time is the steadier figure.",
        "A repeated trace has no more distinct names and shapes than its source: kinder to both tools than a real one.",
    ]


def report(sizes: Sequence[int], repeats: int) -> list[str]:
    """Measure everything; print each table when it is there."""
    sources = [source for source in SOURCES if source.path.exists()]
    against = [row for size in sizes for source in sources for row in against_hta(repeated(source, size), repeats)]
    small = against_hta(SMALL, repeats + 2)
    ranks = rank_rows(many_ranks(), repeats)
    return [
        *("# Benchmark", "", *environment_lines(), ""),
        *(f"- {source.label}: {source.what}, repeated" for source in sources),
        *("", *table([*against, *small], "HTA 0.5.0"), "", "## Many ranks", ""),
        *table(ranks, "tracetools, 1 rank"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", help="megabytes of JSON, comma-separated; default 100,500, or 100 with --quick")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--quick", action="store_true", help="one size, every command once")
    arguments = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    make_environment()
    wanted = arguments.sizes or ("100" if arguments.quick else "100,500")
    sizes = [int(size) for size in wanted.split(",")]
    lines = report(sizes, 1 if arguments.quick else arguments.repeats)
    (CACHE / "results.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
