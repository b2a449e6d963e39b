"""One printed line and what it is. In: text. Out: the text, coloured on a terminal that wants it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

_RESET = "\x1b[0m"


class Style(enum.StrEnum):
    """What a line is; the value is the escape sequence that a terminal shows it with."""

    PLAIN = ""
    ANSWER = "\x1b[1;36m"
    TITLE = "\x1b[1m"
    NOTE = "\x1b[2m"
    ERROR = "\x1b[31m"
    WARNING = "\x1b[33m"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the report; its text is already safe to show."""

    text: str
    style: Style = Style.PLAIN

    def render(self, color: bool) -> str:
        """The line as it is written."""
        return f"{self.style.value}{self.text}{_RESET}" if color and self.style is not Style.PLAIN else self.text


def title(text: str) -> Line:
    """The title of a section."""
    return Line(text, Style.TITLE)


def note(text: str) -> Line:
    """A remark below a table: what was left out, and which option shows it."""
    return Line(text, Style.NOTE)


def plain(texts: list[str]) -> list[Line]:
    """Lines without emphasis."""
    return [Line(text) for text in texts]
