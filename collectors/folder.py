"""Where a rank writes: its own names, whole files or none, no two runs in one folder. In: bytes. Out: files.

traces/rank-00003.trace.json.gz
traces/rank-00003.manifest.json
traces/.rank-00003.claim            while it records
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from collectors.claims import Owner, claim_file, make_claim, owner_of, rank_of_claim, remove_claim
from collectors.errors import CollectError
from tracetools.trace_file import MEASURED_KEY, Pass, manifest_name, rank_of_file, trace_file_name

_CHUNK: Final = 1 << 20
_TAIL: Final = 64
_MOST_NAMED: Final = 4
# Level 1 takes a third of the time of the default level, for files a fifth larger.
_LEVEL: Final = 1


class Folder:
    """The folder of one run, as one rank sees it. recording: ranks that write here, None for the whole world."""

    def __init__(self, path: Path, rank: int, world_size: int, recording: Collection[int] | None) -> None:
        self.path = path
        self._rank = rank
        self._recording = range(world_size) if recording is None else recording
        self._claimed = False

    def claim(self, overwrite: bool) -> None:
        """Make the folder, and see that no other run is in it; with overwrite, clear that away.

        Each rank looks for its own files and for those of ranks that do not record in this run, so that every mixture
        is noticed by some rank, and no rank takes a faster one of its own run for a stranger.

        Raises: CollectError where the folder cannot be written to, holds another run, or another run is at work in it.
        """
        try:
            self._make()
            # A claim is a file: a folder can be listed and yet not be written to, better known before the training.
            self._lay_claim(overwrite)
            self._clear(overwrite)
        except OSError as error:
            self.release()
            raise CollectError(f"{self.path}: {error.strerror}; pass a folder that can be written to") from error
        except CollectError:
            self.release()
            raise

    def release(self) -> None:
        """End the claim: this rank records no more."""
        if self._claimed:
            self._claimed = False
            with suppress(OSError):
                claim_file(self.path, self._rank).unlink(missing_ok=True)

    def write_trace(self, chrome_trace: Path, recorded: Pass, measured: Mapping[str, Any]) -> Path:
        """Pack a trace that Kineto wrote, with what was measured since as its last key, and remove the original.

        Raises: OSError; nothing half-written is left.
        """
        target = self.path / trace_file_name(self._rank, recorded)
        beside = self._beside(target)
        try:
            with chrome_trace.open("rb") as source, beside.open("wb") as packed:
                _pack(source, packed, measured)
            os.replace(beside, target)
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            self.discard(chrome_trace)
        return target

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Say what this rank recorded. Raises: OSError."""
        target = self.path / manifest_name(self._rank)
        beside = self._beside(target)
        try:
            beside.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
            os.replace(beside, target)
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)

    def unpacked(self, recorded: Pass) -> Path:
        """Where Kineto may write a trace before it is packed."""
        return self._beside(self.path / trace_file_name(self._rank, recorded).removesuffix(".gz"))

    def discard(self, unpacked: Path) -> None:
        """Remove what Kineto wrote, or began to write: it, too, writes beside and renames."""
        for each in (unpacked, unpacked.with_name(f"{unpacked.name}.tmp")):
            with suppress(OSError):
                each.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """What the disk has left."""
        return shutil.disk_usage(self.path).free

    def _beside(self, target: Path) -> Path:
        return target.with_name(f".{target.name}.{os.getpid()}.tmp")

    def _is_of_another_run(self, rank: int | None) -> bool:
        return rank is not None and (rank == self._rank or rank not in self._recording)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise CollectError(f"{self.path} is a file and no folder; pass another --out") from None

    def _lay_claim(self, overwrite: bool) -> None:
        for each in sorted(self.path.iterdir()):
            if self._is_of_another_run(rank_of_claim(each.name)):
                with suppress(FileNotFoundError):  # it has just ended
                    self._end_claim(each, overwrite)
        own = claim_file(self.path, self._rank)
        if not make_claim(own):
            raise CollectError(self._at_work(owner_of(own)))
        self._claimed = True

    def _end_claim(self, claim: Path, overwrite: bool) -> None:
        owner = owner_of(claim)
        if owner.is_at_work():
            raise CollectError(self._at_work(owner))
        if not overwrite:
            raise CollectError(
                f"{self.path}: {claim.name} says that {owner} records into it, which has been killed or is on another "
                "host; pass another --out, or --overwrite if it is no longer at work"
            )
        if not remove_claim(claim, owner):
            raise CollectError(self._at_work(owner_of(claim)))

    def _at_work(self, owner: Owner) -> str:
        return f"{self.path}: another run records into it now ({owner}); pass another --out, or wait for its end"

    def _clear(self, overwrite: bool) -> None:
        there = sorted(each for each in self.path.iterdir() if self._is_of_another_run(rank_of_file(each.name)))
        if there and not overwrite:
            raise CollectError(self._occupied(there))
        for each in there:
            each.unlink(missing_ok=True)

    def _occupied(self, there: list[Path]) -> str:
        named = ", ".join(each.name for each in there[:_MOST_NAMED])
        more = f" and {len(there) - _MOST_NAMED} more" if len(there) > _MOST_NAMED else ""
        return f"{self.path} holds another run ({named}{more}); pass another --out, or --overwrite to replace it"


def _pack(source: Any, packed: Any, measured: Mapping[str, Any]) -> None:
    """Gzip with one more key before the last brace, which Kineto writes last but for white space."""
    compress = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)
    held = b""
    while chunk := source.read(_CHUNK):
        held += chunk
        packed.write(compress.compress(held[:-_TAIL]))
        held = held[-_TAIL:]
    body = held.rstrip()
    if body.endswith(b"}"):
        held = body[:-1] + b',\n"' + MEASURED_KEY.encode() + b'": ' + json.dumps(measured).encode() + b"\n}\n"
    packed.write(compress.compress(held) + compress.flush())
