"""Whose trace it is. In: what the user said, what the file says, and its name. Out: rank, and where it came from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracetools import trace_file
from tracetools.errors import UsageError

_NAMED = re.compile(r"(?<![A-Za-z])rank[-_ .=]?(\d{1,7})(?!\d)", re.IGNORECASE)
_OF_A_GROUP = re.compile(r"(?:tp|pp|dp|ep|cp|sp|local|node|mp)[-_]?$", re.IGNORECASE)


@dataclass
class RankRules:
    """How a file without a rank gets one. of_file: rank by path, label or file name; used: the keys that matched."""

    of_file: Mapping[str, int]
    from_name: re.Pattern[str] | None
    used: set[str] = field(default_factory=set)

    def rank(self, names: tuple[str, ...], stated: dict[str, Any]) -> tuple[int | None, str | None]:
        """The rank and its source: option, distributedInfo, metadata or name.

        names: the file's path, label and file name; of an archive's member likewise.
        """
        if given := [name for name in names if name in self.of_file]:
            self.used.update(given)
            return self.of_file[given[0]], "option"
        for key, source in (("distributedInfo", "distributedInfo"), (trace_file.METADATA_KEY, "metadata")):
            if (rank := _rank_in(stated.get(key))) is not None:
                return rank, source
        rank = self._matched(names[1]) if self.from_name else rank_of_name(names[1])
        return rank, None if rank is None else "name"

    def _matched(self, label: str) -> int | None:
        assert self.from_name is not None
        found = self.from_name.search(label)
        if found is None:
            return None
        if not (found.group(1) or "").isdecimal():
            raise UsageError(
                f"--rank-from-name {self.from_name.pattern!r} finds {found.group(1)!r} in {label}, "
                "which is no number; let the first group match digits only"
            )
        return int(found.group(1))


def compiled(pattern: str | None) -> re.Pattern[str] | None:
    """The user's regular expression for ranks in names.

    Raises: UsageError where it is none, or has no group.
    """
    if pattern is None:
        return None
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--rank-from-name {pattern!r} is no regular expression: {error}") from error
    if not expression.groups:
        raise UsageError(f"--rank-from-name {pattern!r} has no group; put the rank's digits in brackets: rank(\\d+)")
    return expression


def _rank_in(stated: Any) -> int | None:
    rank = stated.get("rank") if isinstance(stated, dict) else None
    if isinstance(rank, str) and rank.isascii() and rank.isdigit() and len(rank) < 10:
        rank = int(rank)
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None


def rank_of_name(label: str) -> int | None:
    """The rank that a file's name, or else its folder's, spells out; None where it says none or several.

    >>> rank_of_name("run/rank-00003.trace.json.gz"), rank_of_name("rank7/trace.json")
    (3, 7)
    >>> rank_of_name("node-a_4000.1764550000000000002.pt.trace.json") is None
    True
    >>> rank_of_name("tp_rank0_pp_rank1.json") is None
    True
    """
    for part in re.split(r"[/\\!]", label)[:-3:-1]:
        ranks = {int(each.group(1)) for each in _NAMED.finditer(part) if not _OF_A_GROUP.search(part[: each.start()])}
        if ranks:
            return ranks.pop() if len(ranks) == 1 else None
    return None
