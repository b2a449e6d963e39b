"""Helper processes on this machine. In: a function and its arguments. Out: its result, or its error raised here.

A worker is a fresh interpreter that speaks over pipes (length, then pickle, both ways): no `__main__` of the caller
runs again and no thread is copied, so it works the same in a script, a notebook and a shell.
"""

from __future__ import annotations

import contextlib
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any

_LENGTH = struct.Struct("<Q")


class WorkerDied(Exception):
    """The worker process ended before it answered, most likely for want of memory."""


class Worker:
    """One process; `submit` starts a call in it, `result` waits for the answer. Leaving the context ends it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tracetools.workers"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        with contextlib.suppress(OSError):
            self._process.communicate()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Start `function(*arguments)`; both must be importable or picklable."""
        assert self._process.stdin is not None
        try:
            _send(self._process.stdin, (function, arguments))
        except OSError as error:
            raise WorkerDied from error

    def result(self) -> Any:
        """What the function returned; raises what it raised, or WorkerDied."""
        assert self._process.stdout is not None
        try:
            succeeded, value = _receive(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise WorkerDied from error
        if not succeeded:
            raise value
        return value


def _send(pipe: IO[bytes], value: Any) -> None:
    packed = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(packed)))
    pipe.write(packed)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    return pickle.loads(pipe.read(_LENGTH.unpack(head)[0]))


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, function(*arguments)
    except Exception as error:  # raised again where the answer is waited for
        return False, error


def _serve() -> None:
    """Loop of a worker: a call in, its answer out, until the pipe closes."""
    calls, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            _send(answers, _answer(*_receive(calls)))


if __name__ == "__main__":
    _serve()
