"""Archives of traces. In: a file. Out: the members that may be traces, as streams; nothing is unpacked to disk."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from tracetools.ingest import streams

_TAR_MAGIC: Final = slice(257, 262)
FAILED: Final = (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, NotImplementedError, RuntimeError)


def is_archive(path: Path) -> bool:
    """Whether a file is a zip, a tar or a compressed tar, by its first bytes."""
    with streams.open_file(path) as stream:
        first = stream.read(512)
        if first[:4] == streams.ZIP:
            return True
        stream.seek(0)
        try:
            text = next(streams.blocks(stream, 512), b"")
        except streams.Damaged:
            return False
    return text[_TAR_MAGIC] == b"ustar"


def members(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, stored size and bytes of each file in an archive, in the archive's order."""
    with streams.open_file(path) as stream:
        is_zip = stream.read(4) == streams.ZIP
    yield from _zip_members(path) if is_zip else _tar_members(path)


def _zip_members(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if not entry.is_dir():
                with archive.open(entry) as inside:
                    yield entry.filename, entry.compress_size, inside


def _tar_members(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    with tarfile.open(path, "r:*") as archive:
        for entry in archive:
            if entry.isfile() and (inside := archive.extractfile(entry)) is not None:
                yield entry.name, entry.size, inside
