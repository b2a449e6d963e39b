"""What a rank says while it records, and the manifest that keeps it. In: messages, facts. Out: stderr, a manifest."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from collectors.folder import Folder
from collectors.launcher import Process
from tracetools.trace_file import SCHEMA_VERSION


class Journal:
    """Messages of one rank. speaks: whether this rank says what holds for all of them.

    passes: one entry for each trace written. notes: all that was said.
    """

    def __init__(self, process: Process, speaks: bool) -> None:
        self._process = process
        self._speaks = speaks
        self.passes: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def say(self, message: str) -> None:
        """Something of this rank."""
        who = f"rank {self._process.rank}: " if self._process.world_size > 1 else ""
        self.notes.append(message)
        _print(f"{who}{message}")

    def say_once(self, message: str) -> None:
        """As `say`, unless it has been said."""
        if message not in self.notes:
            self.say(message)

    def say_for_all(self, message: str) -> None:
        """Something that holds for all ranks; one of them says it."""
        self.notes.append(message)
        if self._speaks:
            _print(message)

    def write(self, folder: Folder, facts: dict[str, Any]) -> None:
        """Write the manifest; where that fails, there is only the message."""
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "rank": self._process.rank,
            "world_size": self._process.world_size,
            **facts,
            "passes": self.passes,
            "notes": self.notes,
        }
        try:
            folder.write_manifest(manifest)
        except OSError as error:
            self.say(f"no manifest could be written to {folder.path}: {error.strerror}")


def _print(message: str) -> None:
    # In one write: all ranks share the launcher's output, and print() may write a line and its end apart.
    # An output that is closed or full is no reason to stop a training.
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"tracetools: {message}\n")
        sys.stderr.flush()


def readable_bytes(size: int) -> str:
    """Size in powers of 1000.

    >>> readable_bytes(950), readable_bytes(118_629), readable_bytes(2_500_000_000)
    ('950 B', '119 kB', '2.5 GB')
    """
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit in ("B", "kB") else f"{value:.1f} {unit}"
