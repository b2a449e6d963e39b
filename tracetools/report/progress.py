"""How far reading has come. In: `progress(label, done, total)`. Out: a bar on a terminal, after a second of work."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from tracetools.report.names import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_QUIET_S: Final = 1.0


class ProgressBar:
    """One bar on stderr for the file being read; nothing at all for work that is over within a second."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._bars: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, label: str, done_bytes: int, total_bytes: int | None) -> None:
        """Take note of how many bytes of `label` are read."""
        if self._bars is None:
            if time.monotonic() - self._started_s < _QUIET_S:
                return
            self._bars = _start_bars()
        if self._task is None:
            self._task = self._bars.add_task("", total=total_bytes, amount="")
        amount = _amount(done_bytes, total_bytes)
        self._bars.update(
            self._task, description=printable(label), completed=done_bytes, total=total_bytes, amount=amount
        )


def _amount(done_bytes: int, total_bytes: int | None) -> str:
    """How far, in words; a packed file does not say how long its text is.

    >>> _amount(2_100_000, None), _amount(1, 4)
    ('2.1 MB', '25%')
    """
    return f"{done_bytes / 1e6:.1f} MB" if not total_bytes else f"{done_bytes / total_bytes:.0%}"


def _start_bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    texts = (TextColumn("{task.description}", markup=False), TextColumn("{task.fields[amount]}", markup=False))
    bars = Progress(texts[0], BarColumn(), texts[1], console=Console(file=sys.stderr), transient=True)
    bars.start()
    return bars
