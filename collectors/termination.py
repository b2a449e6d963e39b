"""SIGTERM unwinds the script like an exception, so that what was recorded is written before the process dies of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Terminated(SystemExit):
    """SIGTERM came."""


class Termination:
    """The first SIGTERM raises `Terminated` in the main thread; another one saves what there is and ends the process.

    save: writes what was recorded. unwinds: whether `Terminated` has been raised: who still runs then has caught it.

    Python acts on a signal between two of its instructions: a process that waits inside a collective does not.
    """

    def __init__(self, save: Callable[[], None]) -> None:
        self.unwinds = False
        self._save = save
        self._held = 0
        self._waits = False
        self._process_id = os.getpid()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the block SIGTERM is acted on, unless the script has a handler of its own."""
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            yield
            return
        handler = self._act
        signal.signal(signal.SIGTERM, handler)
        try:
            yield
        finally:
            # Only the main thread may set a handler; from another one it stays, and still ends the process.
            in_main = threading.current_thread() is threading.main_thread()
            if in_main and signal.getsignal(signal.SIGTERM) is handler:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """A signal that comes inside the block is acted on at its end: a file that is being written is written."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if self._waits and not self._held:
                self._waits = False
                # To itself and not raised: the block may have been entered in another thread than the main one.
                os.kill(os.getpid(), signal.SIGTERM)

    def _act(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process_id:  # a child that was forked
            die_of_sigterm()
        elif self._held:
            self._waits = True
        elif self.unwinds:
            self._save()
            die_of_sigterm()
        else:
            self.unwinds = True
            raise Terminated(128 + number)


def die_of_sigterm() -> None:
    """End as a process ends that never caught the signal."""
    for stream in (sys.stdout, sys.stderr):
        # Closed, full, or in the middle of a write that a signal has interrupted.
        with suppress(OSError, ValueError, AttributeError, RuntimeError):
            stream.flush()
    # Elsewhere only the handler, which runs in the main thread, can do this; it is told by the signal.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
