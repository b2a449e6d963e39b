"""Ranks shared out to worker processes on this machine. In: inputs. Out: one `RankResult` each."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence

from tracetools.analysis import analyze_file
from tracetools.engines.serial import Progress
from tracetools.errors import TracetoolsError
from tracetools.ingest import TraceInput
from tracetools.results import RankResult
from tracetools.settings import Settings
from tracetools.workers import Worker, WorkerDied


def map_ranks(
    inputs: Sequence[TraceInput], settings: Settings, workers: int, progress: Progress | None
) -> Iterator[RankResult]:
    """Results as they are done, in any order; `analysis.reduce_results` sorts them. Progress is told per file."""
    waiting: queue.SimpleQueue[TraceInput] = queue.SimpleQueue()
    for source in inputs:
        waiting.put(source)
    done: queue.SimpleQueue[RankResult | Exception] = queue.SimpleQueue()
    with contextlib.ExitStack() as stack:
        for _ in range(min(workers, len(inputs))):
            worker = stack.enter_context(Worker())
            threading.Thread(target=_feed, args=(worker, settings, waiting, done), daemon=True).start()
        for count in range(len(inputs)):
            result = done.get()
            if isinstance(result, Exception):
                raise result
            if progress:
                progress(result.input.path, count + 1, len(inputs))
            yield result


def _feed(
    worker: Worker,
    settings: Settings,
    waiting: queue.SimpleQueue[TraceInput],
    done: queue.SimpleQueue[RankResult | Exception],
) -> None:
    """Give one worker file after file until none is left; what goes wrong reaches the caller through `done`."""
    while True:
        try:
            source = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            worker.submit(analyze_file, source, settings)
            done.put(worker.result())
        except WorkerDied:
            message = f"{source.label}: the process that read it ended early (out of memory?); try --workers 1"
            done.put(TracetoolsError(message))
            return
        except Exception as error:  # raised again in the caller's thread
            done.put(error)
            return
