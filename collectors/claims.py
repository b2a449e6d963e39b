"""Who records into a folder right now: one file per rank while it does. In: a folder, a rank. Out: a claim.

traces/.rank-00003.claim    {"host": "node7", "process_id": 4711}

A run that was killed leaves its claims. On another host nobody can tell whether a process is still there.
"""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"\.rank-(\d{5,9})\.claim", re.ASCII)


@dataclass(frozen=True, slots=True)
class Owner:
    """Who made a claim; None where the file does not say."""

    host: str | None
    process_id: int | None

    def is_at_work(self) -> bool:
        """Whether it is another process of this host that is still there; on another host nobody knows."""
        if self.host != socket.gethostname() or self.process_id in (None, os.getpid()):
            return False
        try:
            os.kill(self.process_id or 0, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass  # somebody else's
        return True

    def __str__(self) -> str:
        return "a process without a name" if self.host is None else f"process {self.process_id} on {self.host}"


def claim_file(folder: Path, rank: int) -> Path:
    """The file that says that a rank of some run records into a folder."""
    return folder / f".rank-{rank:05d}.claim"


def rank_of_claim(name: str) -> int | None:
    """Rank of a claim, by its file's name; None for any other file.

    >>> rank_of_claim(".rank-00003.claim"), rank_of_claim("rank-00003.trace.json.gz")
    (3, None)
    """
    found = _NAME.fullmatch(name)
    return int(found.group(1)) if found else None


def make_claim(path: Path) -> bool:
    """Make a claim; False where there is one. Of several processes that try at once one is let in. Raises: OSError."""
    said = json.dumps(asdict(Owner(socket.gethostname(), os.getpid())))
    # Whole before it has its name, for who finds it reads it at once.
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(said, encoding="utf-8")
        os.link(beside, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        return _make_slowly(path, said)
    finally:
        beside.unlink(missing_ok=True)
    return True


def _make_slowly(path: Path, said: str) -> bool:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(said)
    except FileExistsError:
        return False
    return True


def remove_claim(path: Path, owner: Owner) -> bool:
    """Remove a claim that is still its owner's, and not of one who replaced it meanwhile. Raises: OSError."""
    taken = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.rename(taken)
    except FileNotFoundError:
        return True
    if owner_of(taken) != owner:
        taken.rename(path)
        return False
    taken.unlink()
    return True


def owner_of(path: Path) -> Owner:
    """Who made a claim. Raises: OSError."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Owner(str(said["host"]), int(said["process_id"]))
    except (ValueError, TypeError, KeyError):
        return Owner(None, None)
