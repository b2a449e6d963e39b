"""One rank after the other in this process. In: inputs. Out: one `RankResult` each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tracetools.analysis import analyze_file
from tracetools.ingest import TraceInput
from tracetools.results import RankResult
from tracetools.settings import Settings

Progress = Callable[[str, int, int | None], None]


def map_ranks(
    inputs: Sequence[TraceInput], settings: Settings, workers: int, progress: Progress | None
) -> Iterator[RankResult]:
    """Results in the order of the inputs; memory follows the largest rank. `workers` share the reading of a file."""
    for source in inputs:
        report = _reporter(source.label, progress) if progress else None
        yield analyze_file(source, settings, report, workers)


def _reporter(label: str, progress: Progress) -> Callable[[int], None]:
    return lambda done: progress(label, done, None)
