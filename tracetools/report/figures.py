"""Figures into words. In: integer ns, counts, None. Out: short text; what could not be worked out is `–`, never 0."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

ABSENT: Final = "–"
NS_PER_MS: Final = 1_000_000
_SCALES: Final = ("", "k", "M", "G", "T", "P", "E")


def decimals_for(values_ns: Iterable[int | None]) -> int:
    """Decimals that one column of milliseconds needs: about four digits for its largest value.

    >>> decimals_for([None, 1_234_567]), decimals_for([55_830_000_000])
    (3, 1)
    """
    largest = max((value for value in values_ns if value is not None), default=0) / NS_PER_MS
    if largest < 10:
        return 3
    return 2 if largest < 1000 else 1


def milliseconds(value_ns: int | None, decimals: int = 2) -> str:
    """Nanoseconds as milliseconds. A figure that would round to nothing says so.

    >>> milliseconds(1_234_567_890), milliseconds(0), milliseconds(None), milliseconds(900)
    ('1,234.57', '0', '–', '<0.01')
    """
    if value_ns is None:
        return ABSENT
    if value_ns == 0:
        return "0"
    smallest = 10**-decimals
    if abs(value_ns) / NS_PER_MS < smallest / 2:
        return f"<{smallest:.{decimals}f}"
    return f"{value_ns / NS_PER_MS:,.{decimals}f}"


def microseconds(value_ns: int | None) -> str:
    """Nanoseconds as microseconds.

    >>> microseconds(74_300), microseconds(None)
    ('74.3', '–')
    """
    return ABSENT if value_ns is None else f"{value_ns / 1000:,.1f}"


def count(value: int | None) -> str:
    """A plain count.

    >>> count(12345), count(None)
    ('12,345', '–')
    """
    return ABSENT if value is None else f"{value:,}"


def flops(value: float | None) -> str:
    """FLOPs, or FLOP/s, to three digits.

    >>> flops(33_554_432), flops(989e12), flops(0), flops(None), flops(999_999)
    ('33.6M', '989T', '0', '–', '1.00M')
    """
    if value is None:
        return ABSENT
    if value < 1:
        return "0"
    shown = float(f"{value:.3g}")
    scale = min(max(int(math.log10(shown)) // 3, 0), len(_SCALES) - 1)
    figure = shown / 1000**scale
    decimals = 0 if figure >= 100 or not scale else 1 if figure >= 10 else 2
    return f"{figure:.{decimals}f}{_SCALES[scale]}"


def with_unit(value: float, unit: str) -> str:
    """The same in words.

    >>> with_unit(989e12, "FLOP/s"), with_unit(12, "FLOP")
    ('989 TFLOP/s', '12 FLOP')
    """
    shown = flops(value)
    number = shown.rstrip("".join(_SCALES))
    return f"{number} {shown[len(number) :]}{unit}"


def rate(flops: int | None, time_ns: int | None) -> float | None:
    """FLOP/s; None where either is not known, or there is nothing to divide.

    >>> rate(4_521_984, 22_000), rate(0, 5), rate(None, 5)
    (205544727272.72726, None, None)
    """
    return flops / time_ns * 1e9 if flops and time_ns else None


def share(value: float | None) -> str:
    """A share in percent.

    >>> share(0.4149), share(0.0004), share(None)
    ('41.5', '<0.1', '–')
    """
    return ABSENT if value is None else percent(round(value * 1_000_000), 1_000_000)


def percent(part: int | None, whole: int | None) -> str:
    """A share in percent; absent where there is no whole.

    >>> percent(410, 1000), percent(1, 0), percent(1, 100_000), percent(None, 5)
    ('41.0', '–', '<0.1', '–')
    """
    if part is None or not whole:
        return ABSENT
    share = 100 * part / whole
    return "<0.1" if 0 < share < 0.05 else f"{share:.1f}"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending whole numbers, runs joined.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def plural(number: int, noun: str) -> str:
    """A count and its noun.

    >>> plural(1, "rank"), plural(2, "rank")
    ('1 rank', '2 ranks')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def rank_name(rank: int | None) -> str:
    """How a rank is called; a file may not say which it is.

    >>> rank_name(3), rank_name(None)
    ('rank 3', 'rank –')
    """
    return f"rank {ABSENT if rank is None else rank}"
