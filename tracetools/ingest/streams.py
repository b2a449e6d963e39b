"""Blocks of JSON text, whatever the packing. In: a file, or a member of an archive. Out: its text, block by block.

Packing is told by the first bytes, never by the name. Archives are streamed; nothing is unpacked to disk.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, cast

from isal import isal_zlib

BLOCK: Final = 2 << 20
_READ: Final = 1 << 18
_STEP: Final = 1 << 16
"""Most text that one bad byte in compressed data can cost."""

_CORRUPT = cast(type[Exception], isal_zlib.error)
GZIP: Final = b"\x1f\x8b"
ZIP: Final = b"PK\x03\x04"


class Damaged(Exception):
    """The compressed data ends early or is corrupt; all text before that was given out."""


@contextmanager
def open_bytes(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    """The bytes of a file or of an archive's member, as they are stored."""
    if member is None:
        with path.open("rb", buffering=0) as plain:
            yield plain
    elif _is_zip(path):
        with zipfile.ZipFile(path) as archive, archive.open(member) as inside:
            yield inside
    else:
        with tarfile.open(path, "r:*") as tar:
            extracted = tar.extractfile(member)
            if extracted is None:
                raise FileNotFoundError(f"{member} is no file")
            yield extracted


def _is_zip(path: Path) -> bool:
    with path.open("rb", buffering=0) as stream:
        return stream.read(4) == ZIP


def blocks(stream: IO[bytes], size: int = BLOCK) -> Iterator[bytes]:
    """The text in blocks of about `size` bytes; raises Damaged after the last whole byte of damaged gzip data."""
    first = stream.read(_READ)
    if first[:2] == GZIP:
        return _gathered(_inflated(first, stream), size)
    return _plain(first, stream, size)


def _plain(first: bytes, stream: IO[bytes], size: int) -> Iterator[bytes]:
    yield first
    while block := stream.read(size):
        yield block


def _gathered(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Small pieces joined to blocks; what was gathered before an error comes out before the error does."""
    gathered = io.BytesIO()
    try:
        for piece in pieces:
            gathered.write(piece)
            if gathered.tell() >= size:
                yield gathered.getvalue()
                gathered = io.BytesIO()
    except Damaged:
        yield gathered.getvalue()
        raise
    yield gathered.getvalue()


def _inflated(first: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    """Text of one or several gzip members, in small pieces."""
    compressed = first
    while compressed[:2] == GZIP:
        inflate = isal_zlib.decompressobj(31)
        while not inflate.eof:
            try:
                yield inflate.decompress(compressed, _STEP)
            except _CORRUPT as error:
                raise Damaged(str(error)) from error
            compressed = inflate.unconsumed_tail
            if not compressed and not inflate.eof and not (compressed := stream.read(_READ)):
                raise Damaged("it ends early")
        compressed = inflate.unused_data or stream.read(_READ)
        if len(compressed) == 1:
            compressed += stream.read(_READ)
