r"""Names out of a trace, made safe to show. In: any text a trace may hold. Out: text of one line that does nothing.

Module, op and file names are foreign input: `layer\x1b[2J`, a newline inside a kernel name, `=cmd()` in a spreadsheet.
"""

from __future__ import annotations

import re

from rich.cells import cell_len

_STARTS_A_FORMULA = ("=", "+", "-", "@")


def printable(name: str) -> str:
    r"""The name with everything that a terminal or an editor would act on written as an escape.

    Control characters, line ends, tabs, escape sequences, direction marks and lone surrogates count as such.

    >>> printable("Linear_0\x1b[31m\n")
    'Linear_0\\x1b[31m\\n'
    """
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else _escape(char) for char in name)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def cut_middle(text: str, width: int) -> str:
    """The text, its middle left out where it is wider than `width` terminal cells.

    The end tells modules apart and the start places them, so both stay.

    >>> cut_middle("GPT_0/Block_11/Linear_3", 15)
    'GPT_0/B…inear_3'
    """
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    head, tail = width // 2, (width - 1) // 2
    return f"{_first_cells(text, head)}…{_first_cells(text[::-1], tail)[::-1]}"


def cut_path(path: str, width: int) -> str:
    """The path of a module, its leading parts left out where it is wider than `width` cells.

    >>> cut_path("GPT_0/Block_11/Linear_3", 20), cut_path("model.blocks.11.mlp", 16), cut_path("Linear_3", 5)
    ('…/Block_11/Linear_3', '…blocks.11.mlp', 'Li…_3')
    """
    if cell_len(path) <= width:
        return path
    starts = [match.start() for match in re.finditer(r"/|(?<=\.)", path)]
    fitting = next((path[start:] for start in starts if cell_len(path[start:]) < width), "")
    return f"…{fitting}" if len(fitting) > 1 else cut_middle(path.rpartition("/")[2], width)


def _first_cells(text: str, width: int) -> str:
    """As many leading characters as fit into `width` cells."""
    kept, used = [], 0
    for char in text:
        used += cell_len(char)
        if used > width:
            break
        kept.append(char)
    return "".join(kept)


def cell(name: str) -> str:
    """The name as a cell of a CSV file: one line, and never a formula.

    >>> cell("=SUM(A1)"), cell("aten::mm")
    ("'=SUM(A1)", 'aten::mm')
    """
    safe = printable(name)
    return f"'{safe}" if safe.startswith(_STARTS_A_FORMULA) else safe
