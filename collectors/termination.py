"""SIGTERM unwinds the script like an exception, so that what was recorded is written before the process dies of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(SystemExit):
    """SIGTERM came."""


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Inside the block SIGTERM raises `Terminated` in the main thread, unless the script has a handler of its own.

    Python acts on a signal between two of its instructions: a process that waits inside a collective does not.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    owner = os.getpid()

    def unwind(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            raise Terminated(128 + number)
        die_of_sigterm()  # a child that was forked

    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        # Only the main thread may set a handler; from another one it stays, and still ends the process.
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is unwind:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def die_of_sigterm() -> None:
    """End as a process ends that never caught the signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
