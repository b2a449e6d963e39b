"""Columns on a page of fixed width. In: cells as text. Out: lines, numbers to the right, one flexible column of names.

Widths are terminal cells, so that wide letters in names keep the columns straight.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len

from tracetools.report.names import cut_middle

GAP: Final = "  "
MIN_NAME_WIDTH: Final = 16


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its header, its cells, and whether it holds names (left, cut to fit) or numbers (right, whole)."""

    header: str
    cells: Sequence[str]
    is_name: bool = False

    def natural_width(self) -> int:
        """Width at which nothing is cut."""
        return max(cell_len(text) for text in (self.header, *self.cells))


def lay_out(columns: Sequence[Column], width: int) -> list[str]:
    """Header and rows as lines no wider than `width`, as long as the numbers leave room for the names.

    >>> lay_out([Column("op", ["aten::mm", "aten::add"], is_name=True), Column("ms", ["1.5", "–"])], 40)
    ['op          ms', 'aten::mm   1.5', 'aten::add    –']
    """
    widths = _fit([column.natural_width() for column in columns], columns, width)
    rows = zip(*([column.header, *column.cells] for column in columns), strict=True)
    return [_line(row, columns, widths) for row in rows]


def _fit(widths: list[int], columns: Sequence[Column], width: int) -> list[int]:
    """Narrow the columns of names, widest first, until the row fits."""
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    names = [index for index, column in enumerate(columns) if column.is_name]
    while excess > 0 and names:
        widest = max(names, key=lambda index: widths[index])
        if widths[widest] <= MIN_NAME_WIDTH:
            break
        widths[widest] -= 1
        excess -= 1
    return widths


def _line(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    cells = (_pad(text, column.is_name, width) for text, column, width in zip(row, columns, widths, strict=True))
    return GAP.join(cells).rstrip()


def _pad(text: str, is_name: bool, width: int) -> str:
    if not is_name:
        return " " * (width - cell_len(text)) + text
    indent = len(text) - len(text.lstrip(" "))
    shown = " " * indent + cut_middle(text[indent:], width - indent)
    return shown + " " * (width - cell_len(shown))


def wrap(text: str, width: int, first: str = "", then: str = "") -> list[str]:
    """A sentence as lines no wider than `width`; `first` and `then` indent the first and the other lines.

    >>> wrap("one two three", 10, "- ", "  ")
    ['- one two', '  three']
    """
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=then, break_on_hyphens=False) or [first]
