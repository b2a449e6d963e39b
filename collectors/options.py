"""What to record. In: words of the command line or of a caller. Out: `Options`, checked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from collectors.errors import CollectError
from tracetools.trace_file import Pass

FIRST: Final = 6
LAST: Final = 8
WARMUP: Final = 2
_MOST_RANKS: Final = 1_000_000

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Options:
    """One recording. Steps count from 0 and include `last`; `warmup` steps before `first` are recorded and dropped.

    ranks: those that record, None for all. stack, memory: of the timing pass where it is alone, else of the structure
    pass, which always has stacks. nvtx: NVTX ranges become ranges of the trace. max_size: bytes of one trace file.
    """

    out: Path
    first: int = FIRST
    last: int = LAST
    warmup: int = WARMUP
    ranks: frozenset[int] | None = None
    passes: tuple[Pass, ...] = (Pass.TIMING,)
    shapes: bool = True
    stack: bool = False
    memory: bool = False
    module_ranges: bool = True
    clock_probe: bool = False
    nvtx: bool = False
    max_size: int | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        self._check_kinds()
        if not 0 <= self.first <= self.last:
            raise CollectError(f"steps {self.first}-{self.last}: the first lies behind the last; say A-B with A <= B")
        if self.warmup < 0:
            raise CollectError(f"warm-up of {self.warmup} steps: pass 0 or more")
        if self.ranks is not None and not self.ranks:
            raise CollectError("no rank is to record; name some, or leave ranks out to record all")
        if self.ranks is not None and not all(type(each) is int and each >= 0 for each in self.ranks):
            raise CollectError(f"ranks {sorted(map(str, self.ranks))}: say whole numbers from 0 on")
        if self.max_size is not None and not 0 <= self.max_size < 1 << 60:
            raise CollectError(f"a largest size of {self.max_size} bytes: say a number of bytes from 0 on, as 500M")
        if self.clock_probe and self.ranks is not None:
            raise CollectError("the clock probe needs every rank, and only some are to record; leave one of both out")

    def _check_kinds(self) -> None:
        for name in ("warmup", "max_size"):
            if (value := getattr(self, name)) is not None and type(value) is not int:
                raise CollectError(f"{name} {value!r}: say a whole number")
        for name in ("shapes", "stack", "memory", "module_ranges", "clock_probe", "nvtx", "overwrite"):
            if type(getattr(self, name)) is not bool:
                raise CollectError(f"{name} {getattr(self, name)!r}: say True or False")

    @property
    def begin(self) -> int:
        """First step that is touched: the first warm-up step."""
        return max(self.first - self.warmup, 0)


def parse_steps(text: str) -> tuple[int, int]:
    """First and last step of "6-8" or "6".

    >>> parse_steps("6-8"), parse_steps("12")
    ((6, 8), (12, 12))
    """
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise CollectError(f"steps {text!r}: say one step or a span, as 6 or 6-8; the first step of a run is 0")
    return int(found.group(1)), int(found.group(2) or found.group(1))


def parse_ranks(text: str) -> frozenset[int]:
    """Ranks of "0,8-15".

    >>> sorted(parse_ranks("0,2-4"))
    [0, 2, 3, 4]
    """
    ranks: set[int] = set()
    for part in text.split(","):
        found = _SPAN.fullmatch(part.strip())
        if found is None or int(found.group(2) or found.group(1)) >= _MOST_RANKS:
            raise CollectError(f"ranks {text!r}: say numbers and spans, as 0,8-15")
        ranks.update(range(int(found.group(1)), int(found.group(2) or found.group(1)) + 1))
    return frozenset(ranks)


def parse_size(text: str) -> int:
    """Bytes of "500M" or "2G" (powers of 1024).

    >>> parse_size("1.5K"), parse_size("2 GB"), parse_size("7")
    (1536, 2147483648, 7)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise CollectError(f"size {text!r}: say a number of bytes with K, M, G or T, as 500M")
    return int(float(found.group(1)) * 1024 ** " KMGT".index(found.group(2).upper() or " "))


def parse_passes(text: str) -> tuple[Pass, ...]:
    """Passes of "timing", "structure" or "both".

    >>> parse_passes("both")
    (<Pass.TIMING: 'timing'>, <Pass.STRUCTURE: 'structure'>)
    """
    if text == "both":
        return (Pass.TIMING, Pass.STRUCTURE)
    try:
        return (Pass(text),)
    except ValueError:
        raise CollectError(f"pass {text!r}: say timing, structure or both") from None


def options(
    out: str | os.PathLike[str],
    *,
    steps: str | int | tuple[int, int] = (FIRST, LAST),
    warmup: int = WARMUP,
    ranks: str | int | Iterable[int] | None = None,
    passes: str = Pass.TIMING,
    shapes: bool = True,
    stack: bool = False,
    memory: bool = False,
    module_ranges: bool = True,
    clock_probe: bool = False,
    nvtx: bool = False,
    max_size: str | int | None = None,
    overwrite: bool = False,
) -> Options:
    """Options in the words of the command line or in Python's own.

    Raises: CollectError where a value means nothing.
    """
    first, last = _steps(steps)
    return Options(
        out=_folder(out),
        first=first,
        last=last,
        warmup=warmup,
        ranks=_ranks(ranks),
        passes=parse_passes(passes),
        shapes=shapes,
        stack=stack,
        memory=memory,
        module_ranges=module_ranges,
        clock_probe=clock_probe,
        nvtx=nvtx,
        max_size=parse_size(max_size) if isinstance(max_size, str) else max_size,
        overwrite=overwrite,
    )


def _folder(out: Any) -> Path:
    """Absolute at once: a script may change its working folder."""
    try:
        path = Path(os.path.abspath(os.fsdecode(out)))
    except TypeError:
        raise CollectError(f"folder {out!r}: say a path") from None
    try:
        str(path).encode()
    except UnicodeEncodeError:
        # Kineto's own writer takes no other name.
        raise CollectError(f"folder {str(path)!r}: its name is not UTF-8; pass another --out") from None
    return path


def _steps(steps: Any) -> tuple[int, int]:
    if not isinstance(steps, (tuple, list)):
        return parse_steps(str(steps))
    if len(steps) != 2 or not all(type(each) is int for each in steps):
        raise CollectError(f"steps {steps!r}: say the first and the last as two whole numbers, as (6, 8), or '6-8'")
    return steps[0], steps[1]


def _ranks(ranks: Any) -> frozenset[int] | None:
    if ranks is None:
        return None
    if isinstance(ranks, str):
        return parse_ranks(ranks)
    try:
        return frozenset([ranks] if type(ranks) is int else ranks)
    except TypeError:
        raise CollectError(f"ranks {ranks!r}: say whole numbers, as [0, 8], or '0,8-15'") from None
