"""Reports as files of one folder. In: names and contents. Out: files that are there whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tracetools.errors import UsageError


def prepare_folder(folder: Path) -> None:
    """Make the folder, and try that it can be written to before hours of work are spent.

    Raises: UsageError where it cannot.
    """
    probe = folder / f".tracetools-{os.getpid()}.probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _unwritable(folder, error) from error


def write_files(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write every file beside its name first, and rename once all are whole; a file of that name is replaced.

    Raises: UsageError where the folder cannot be written.
    """
    beside = {folder / name: folder / f".{name}.{os.getpid()}.part" for name in contents}
    try:
        for part, content in zip(beside.values(), contents.values(), strict=True):
            _write_synced(part, content)
        for path, part in beside.items():
            part.replace(path)
    except OSError as error:
        raise _unwritable(folder, error) from error
    finally:
        for part in beside.values():
            part.unlink(missing_ok=True)
    return list(beside)


def _write_synced(path: Path, content: bytes) -> None:
    """Onto the disk before the rename, or a crash could leave the new name with nothing in it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _unwritable(folder: Path, error: OSError) -> UsageError:
    reason = error.strerror or type(error).__name__
    return UsageError(f"{folder}: cannot be written ({reason}); name another folder with --out")
