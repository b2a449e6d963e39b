"""Columns on a page of fixed width. In: cells as text. Out: lines, numbers to the right, one flexible column of names.

Widths are terminal cells, so that wide letters in names keep the columns straight.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len

GAPS: Final = ("  ", " ")
"""Between columns: the wide one where nothing has to be cut for it."""
MIN_NAME_WIDTH: Final = 16


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its header, its cells, and how a cell is cut to a width.

    Names stand left and are cut; numbers (cut: None) stand right and are never cut.
    """

    header: str
    cells: Sequence[str]
    cut: Callable[[str, int], str] | None = None

    def natural_width(self) -> int:
        """Width at which nothing is cut."""
        return max(cell_len(text) for text in (self.header, *self.cells))


def fitting(columns: Sequence[Column], width: int, dispensable: Sequence[str]) -> tuple[list[Column], list[str]]:
    """Columns that fit when names are cut as short as may be, and the headers left out for it.

    dispensable: headers that may go, first ones first.

    >>> from tracetools.report.names import cut_middle
    >>> columns = [Column("op", ["aten::mm"], cut_middle), Column("ms", ["1.5"]), Column("kernels", ["12"])]
    >>> fitting(columns, 18, ["kernels"])[1]
    ['kernels']
    """
    kept, dropped = list(columns), []
    for header in dispensable:
        needed = sum(min(each.natural_width(), MIN_NAME_WIDTH) if each.cut else each.natural_width() for each in kept)
        if needed + len(GAPS[-1]) * (len(kept) - 1) <= width:
            break
        if any(each.header == header for each in kept):
            kept = [each for each in kept if each.header != header]
            dropped.append(header)
    return kept, dropped


def lay_out(columns: Sequence[Column], width: int) -> list[str]:
    """Header and rows as lines no wider than `width`, as long as the numbers leave room for the names.

    >>> from tracetools.report.names import cut_middle
    >>> lay_out([Column("op", ["aten::mm", "aten::add"], cut_middle), Column("ms", ["1.5", "–"])], 40)
    ['op          ms', 'aten::mm   1.5', 'aten::add    –']
    """
    natural = [column.natural_width() for column in columns]
    gap = next((gap for gap in GAPS if sum(natural) + len(gap) * (len(natural) - 1) <= width), GAPS[-1])
    widths = _fit(natural, columns, width - len(gap) * (len(natural) - 1))
    rows = zip(*([column.header, *column.cells] for column in columns), strict=True)
    return [_line(row, columns, widths, gap) for row in rows]


def _fit(widths: list[int], columns: Sequence[Column], width: int) -> list[int]:
    """Narrow the columns of names, widest first, until the row fits."""
    excess = sum(widths) - width
    names = [index for index, column in enumerate(columns) if column.cut]
    while excess > 0 and names:
        widest = max(names, key=lambda index: widths[index])
        if widths[widest] <= MIN_NAME_WIDTH:
            break
        widths[widest] -= 1
        excess -= 1
    return widths


def _line(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int], gap: str) -> str:
    cells = (_pad(text, column.cut, width) for text, column, width in zip(row, columns, widths, strict=True))
    return gap.join(cells).rstrip()


def _pad(text: str, cut: Callable[[str, int], str] | None, width: int) -> str:
    if cut is None:
        return " " * (width - cell_len(text)) + text
    indent = len(text) - len(text.lstrip(" "))
    shown = " " * indent + cut(text[indent:], width - indent)
    return shown + " " * (width - cell_len(shown))


def wrap(text: str, width: int, first: str = "", then: str = "") -> list[str]:
    """A sentence as lines no wider than `width`; `first` and `then` indent the first and the other lines.

    >>> wrap("one two three", 10, "- ", "  ")
    ['- one two', '  three']
    """
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=then, break_on_hyphens=False) or [first]
