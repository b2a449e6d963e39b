"""The Python door: load traces, get tables. In: paths. Out: `Run`, whose methods give DataFrames."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from tracetools.analysis import check_steps, reduce_results
from tracetools.engines import processes, serial
from tracetools.engines.serial import Progress
from tracetools.errors import UsageError
from tracetools.flops.convention import check_choices
from tracetools.flops.formulas import registered_here
from tracetools.ingest import TraceInput, estimated_text_bytes, find_inputs
from tracetools.results import Analysis, RankFlops, StepFlops, UncountedOp
from tracetools.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

_WORTH_A_WORKER_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Run:
    """All ranks of one recorded job, analysed.

    `analysis` holds the rows; the methods give the same as DataFrames, one column per field of `tracetools.results`
    (nested fields as `forward_gpu_busy_ns`), times in integer ns, missing figures as <NA>.
    """

    analysis: Analysis

    def inputs(self) -> pd.DataFrame:
        """One row per input file: rank, host, stage, device, status, events, steps, span_ns."""
        return self._table("inputs")

    def modules(self, pattern: str | None = None, depth: int | None = None) -> pd.DataFrame:
        """One row per module and rank, parents before children; see `results.ModuleTime`.

        pattern: keep rows whose path matches this glob. depth: keep rows at most this deep (0: roots).
        """
        table = self._table("modules")
        if pattern is not None:
            table = table[[fnmatch.fnmatchcase(path, pattern) for path in table["path"]]]
        if depth is not None:
            table = table[table["depth"] <= depth]
        return table.reset_index(drop=True)

    def ops(self) -> pd.DataFrame:
        """One row per op, phase and rank; see `results.OpTime`."""
        return self._table("ops")

    def annotations(self) -> pd.DataFrame:
        """One row per named range and rank; see `results.AnnotationTime`."""
        return self._table("annotations")

    def autograd(self) -> pd.DataFrame:
        """One row per forward op, backward node and rank; see `results.AutogradLink`."""
        return self._table("autograd")

    def flops(self) -> pd.DataFrame:
        """One row per rank: FLOPs by what they were for, MFU and HFU; see `results.RankFlops`."""
        return self._frame(self._rows["flops"]["by_rank"], _type_columns(RankFlops))

    def flops_by_step(self) -> pd.DataFrame:
        """One row per rank and step; see `results.StepFlops`."""
        return self._frame(self._rows["flops"]["by_step"], _type_columns(StepFlops))

    def uncounted(self) -> pd.DataFrame:
        """One row per rank and op whose FLOPs are not known; see `results.UncountedOp`."""
        return self._frame(self._rows["flops"]["uncounted"], _type_columns(UncountedOp))

    def steps(self) -> pd.DataFrame:
        """One row per training step and rank; see `results.StepTime`."""
        return self._table("steps")

    def gpu(self) -> pd.DataFrame:
        """One row per device, and one per device and step; see `results.GpuTime`."""
        return self._table("gpu")

    def launches(self) -> pd.DataFrame:
        """One row per rank; see `results.Launches`."""
        return self._table("launches")

    def findings(self) -> pd.DataFrame:
        """One row per named doubt, worst first; see `findings.Finding`."""
        return self._table("findings")

    def to_json(self) -> bytes:
        """The document of `analysis.json`, indented, UTF-8."""
        return msgspec.json.format(msgspec.json.encode(self.analysis), indent=1)

    @cached_property
    def _rows(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self.analysis)
        return built

    def _table(self, section: str) -> pd.DataFrame:
        return self._frame(self._rows[section], _columns_of(section))

    def _frame(self, nested: Sequence[dict[str, Any]], empty: list[str]) -> pd.DataFrame:
        """empty: columns where there is no row."""
        import pandas as pd

        rows = [_flat(row) for row in nested]
        table = pd.DataFrame(rows, columns=list(rows[0]) if rows else empty)
        # Nullable types keep integers exact beside missing figures.
        return table.convert_dtypes(convert_string=False, convert_floating=False)


def load(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    steps: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
    rank_of: Mapping[str, int] | None = None,
    rank_from_name: str | None = None,
    workers: int | None = None,
    convention: str = "torchtitan",
    peaks: Mapping[str, float] | None = None,
    flops: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    progress: Progress | None = None,
) -> Run:
    """Read and analyse the traces of one job.

    paths: a folder, files, globs or archives. steps: pool only these steps. ranks: analyse only these ranks.
    rank_of: rank by file, where a file does not say. rank_from_name: regular expression whose first group is the rank.
    workers: processes; None picks by size, 1 stays in this process. convention: by whose rules FLOPs are counted,
    "torchtitan", "megatron" or "flopcounter". peaks: FLOP/s of the device by element type, as {"bf16": 989e12}, before
    those that are listed. flops: Python files that register formulas of further ops.
    Raises UsageError where the request makes no sense, NothingReadable where no file holds a trace.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    settings = Settings(
        steps=None if steps is None else tuple(steps),
        ranks=None if ranks is None else tuple(ranks),
        rank_of=dict(rank_of or {}),
        rank_from_name=rank_from_name,
        workers=workers,
        convention=convention,
        peaks=dict(peaks or {}),
        flops=tuple(os.fspath(each) for each in ([flops] if isinstance(flops, (str, os.PathLike)) else flops)),
    )
    return analyze(paths, settings, progress)


def analyze(paths: Sequence[str | os.PathLike[str]], settings: Settings, progress: Progress | None = None) -> Run:
    """As `load`, with the choices in one value."""
    check_choices(settings)
    discovery = find_inputs(paths, rank_of=settings.rank_of, rank_from_name=settings.rank_from_name)
    inputs = _chosen(discovery.inputs, settings)
    workers = _workers(inputs, settings)
    alone = workers == 1 or len(inputs) == 1 or registered_here()
    engine = serial.map_ranks if alone else processes.map_ranks
    analysis = reduce_results(
        engine(inputs, settings, workers, progress), settings, discovery.findings, picked=settings.ranks is not None
    )
    check_steps(analysis, settings)
    return Run(analysis)


def _chosen(inputs: Sequence[TraceInput], settings: Settings) -> list[TraceInput]:
    if settings.ranks is None:
        return list(inputs)
    missing = sorted(set(settings.ranks) - {each.rank for each in inputs if each.rank is not None})
    if missing:
        there = ", ".join(str(each.rank) for each in inputs if each.rank is not None) or "none"
        raise UsageError(f"rank {', '.join(map(str, missing))} is in no input; ranks found: {there}")
    return [each for each in inputs if each.rank in settings.ranks]


def _workers(inputs: Sequence[TraceInput], settings: Settings) -> int:
    """As asked for; else one per core, and for many files no more than there is work for.

    One file leaves a core free: where all are busy, sharing a file costs more than it brings.
    """
    if settings.workers is not None:
        if settings.workers < 1:
            raise UsageError(f"workers is {settings.workers}; it must be 1 or more")
        return settings.workers
    if len(inputs) == 1:
        return max(1, _cores() - 1)
    worth = sum(map(estimated_text_bytes, inputs)) // _WORTH_A_WORKER_BYTES
    return max(1, min(len(inputs), _cores(), worth))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested rows of figures as one level; plain dicts (coordinates) and lists stay values."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict) and name != "coordinates":
            flat.update(_flat(value, f"{prefix}{name}_"))
        else:
            flat[prefix + name] = value
    return flat


def _columns_of(section: str) -> list[str]:
    """Columns of an empty section, from the row type."""
    field = next(each for each in msgspec.structs.fields(Analysis) if each.name == section)
    return _type_columns(field.type.__args__[0])


def _type_columns(row: Any, prefix: str = "") -> list[str]:
    columns: list[str] = []
    for each in msgspec.structs.fields(row):
        if isinstance(each.type, type) and issubclass(each.type, msgspec.Struct):
            columns.extend(_type_columns(each.type, f"{prefix}{each.encode_name}_"))
        else:
            columns.append(prefix + each.encode_name)
    return columns
