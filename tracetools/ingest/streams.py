"""Blocks of JSON text, whatever the packing. In: a file, or a member of an archive. Out: its text, block by block.

Packing is told by the first bytes, never by the name. Archives are streamed; nothing is unpacked to disk.
"""

from __future__ import annotations

import errno
import io
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, cast

from isal import isal_zlib

BLOCK: Final = 2 << 20
_READ: Final = 1 << 17
_FIRST_STEP: Final = 1 << 14
_STEP: Final = 1 << 18
"""Most text that one bad byte in compressed data can cost; less in a small file, for steps grow from the first on."""

_CORRUPT = cast(type[Exception], isal_zlib.error)
_LONG_HEADER: Final = 1 << 16
GZIP: Final = b"\x1f\x8b"
ZIP: Final = b"PK\x03\x04"


class Damaged(Exception):
    """The compressed data is corrupt; all text before that was given out."""


class CutOff(Damaged):
    """The compressed data ends early."""


def open_file(path: Path) -> IO[bytes]:
    """The stored bytes of a file, unbuffered.

    Raises: OSError where there is none, and for a pipe or a device, which could wait for ever and is read only once.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a file", str(path))
    return path.open("rb", buffering=0)


@contextmanager
def open_bytes(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    """The bytes of a file or of an archive's member, as they are stored."""
    if member is None:
        with open_file(path) as plain:
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
    with open_file(path) as stream:
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
    """Text of one or several gzip members, in small pieces. A wrong checksum is told when all text is out."""
    compressed = first
    wrong_checksum = False
    while compressed[:2] == GZIP:
        member = _Member()
        yield from member.text(compressed, stream)
        wrong_checksum |= member.checksum != int.from_bytes(member.rest[:4], "little")
        compressed = member.rest[8:]
        if len(compressed) < _LONG_HEADER:
            compressed += stream.read(_READ)
    if wrong_checksum:
        raise Damaged("its checksum is wrong")


class _Member:
    """One gzip member, its frame read here so that a wrong checksum does not cost its last text."""

    def __init__(self) -> None:
        self.checksum = 0
        self.rest = b""

    def text(self, compressed: bytes, stream: IO[bytes]) -> Iterator[bytes]:
        """The text; then `rest` begins with the stored checksum and length."""
        compressed = compressed[_header_length(compressed) :]
        inflate = isal_zlib.decompressobj(-15)
        step = _FIRST_STEP
        while not inflate.eof:
            if not compressed:
                compressed = stream.read(_READ)
            try:
                piece = inflate.decompress(compressed, step)
            except _CORRUPT as error:
                raise Damaged(str(error)) from error
            if not piece and not compressed and not inflate.eof:
                raise CutOff
            compressed = inflate.unconsumed_tail
            self.checksum = isal_zlib.crc32(piece, self.checksum)
            step = min(step + _FIRST_STEP, _STEP)
            yield piece
        self.rest = inflate.unused_data
        if len(self.rest) < 8:
            self.rest += stream.read(_READ)


def _header_length(data: bytes) -> int:
    r"""Length of a gzip member's header (RFC 1952): ten bytes, then what the flags announce.

    >>> _header_length(b"\x1f\x8b\x08\x08" + bytes(6) + b"a.json\0" + b"deflated")
    17
    """
    if len(data) < 10:
        raise CutOff
    flags, at = data[3], 10
    if flags & 4:
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (8, 16):
        if flags & flag:
            at = data.find(b"\0", at) + 1 or len(data)
    return at + (2 if flags & 2 else 0)
