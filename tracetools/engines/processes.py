"""Ranks shared out to worker processes on this machine. In: inputs. Out: one `RankResult` each.

Workers are fresh interpreters that speak over pipes (length, then pickle, both ways), so that no `__main__` of the
caller's is run again: it works the same in a script, a notebook and a shell.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import IO, Any

from tracetools.analysis import analyze_file
from tracetools.engines.serial import Progress
from tracetools.errors import TracetoolsError
from tracetools.ingest import TraceInput
from tracetools.results import RankResult
from tracetools.settings import Settings

_LENGTH = struct.Struct("<Q")


def map_ranks(
    inputs: Sequence[TraceInput], settings: Settings, workers: int, progress: Progress | None
) -> Iterator[RankResult]:
    """Results as they are done, in any order; `analysis.reduce_results` sorts them. Progress is told per file."""
    waiting: queue.SimpleQueue[TraceInput] = queue.SimpleQueue()
    for source in inputs:
        waiting.put(source)
    done: queue.SimpleQueue[RankResult | BaseException] = queue.SimpleQueue()
    with contextlib.ExitStack() as stack:
        for _ in range(min(workers, len(inputs))):
            worker = stack.enter_context(_start_worker())
            stack.callback(worker.kill)
            threading.Thread(target=_feed, args=(worker, settings, waiting, done), daemon=True).start()
        for count in range(len(inputs)):
            result = done.get()
            if isinstance(result, BaseException):
                raise result
            if progress:
                progress(result.input.path, count + 1, len(inputs))
            yield result


def _start_worker() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tracetools.engines.processes"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _feed(
    worker: subprocess.Popen[bytes],
    settings: Settings,
    waiting: queue.SimpleQueue[TraceInput],
    done: queue.SimpleQueue[RankResult | BaseException],
) -> None:
    """Give one worker file after file until none is left; what goes wrong reaches the caller through `done`."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    while True:
        try:
            source = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            _send(worker.stdin, (source, settings))
            done.put(_receive(worker.stdout))
        except (OSError, EOFError, pickle.UnpicklingError):
            message = f"{source.label}: the worker process that read it ended early (out of memory?); try --workers 1"
            done.put(TracetoolsError(message))
            return


def _send(pipe: IO[bytes], value: Any) -> None:
    packed = pickle.dumps(value)
    pipe.write(_LENGTH.pack(len(packed)) + packed)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    return pickle.loads(pipe.read(_LENGTH.unpack(head)[0]))


def _serve() -> None:
    """Loop of a worker: a file in, its result out, until the pipe closes."""
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            source, settings = _receive(sys.stdin.buffer)
            try:
                result: RankResult | BaseException = analyze_file(source, settings)
            except Exception as error:  # the caller raises it again, with its own traceback
                result = error
            _send(answers, result)


if __name__ == "__main__":
    _serve()
