"""What of an analysis is shown, and how wide. In: options of the command line. Out: one frozen value.

Nothing here changes a figure; choices that do are in `settings`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 100
MIN_WIDTH: Final = 60


class Section(enum.StrEnum):
    """Parts of the report, in the order in which they are printed."""

    GPU = "gpu"
    MODULES = "modules"
    FLOPS = "flops"
    STEPS = "steps"
    OPS = "ops"
    ANNOTATIONS = "annotations"
    AUTOGRAD = "autograd"
    LAUNCHES = "launches"
    FINDINGS = "findings"


DEFAULT_SECTIONS: Final = (
    Section.GPU,
    Section.MODULES,
    Section.FLOPS,
    Section.STEPS,
    Section.OPS,
    Section.FINDINGS,
)


class Sort(enum.StrEnum):
    """Order of the module rows: `path` draws the tree, every other key a list, largest first."""

    PATH = "path"
    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    TOTAL = "total"
    SELF = "self"
    CPU = "cpu"
    CALLS = "calls"
    KERNELS = "kernels"
    FLOPS = "flops"


class Time(enum.StrEnum):
    """Which clock times modules and ops: the GPU's busy time or the CPU's."""

    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class View:
    """How a report is drawn.

    sections: what to print, besides the headline. depth: deepest module level shown, 0 for the roots (None: as deep as
    fits a screen). top: most rows of each table (None: each section's own). module: shell pattern on module paths.
    time: None takes GPU time where the trace has any. full_ranks: draw every rank's modules, not only the busiest's.
    """

    sections: tuple[Section, ...] = DEFAULT_SECTIONS
    depth: int | None = None
    top: int | None = None
    sort: Sort = Sort.PATH
    module: str | None = None
    time: Time | None = None
    full_ranks: bool = False
    width: int = WIDTH
    color: bool = False

    def limit(self, own: int) -> int:
        """Most rows of a table whose own limit is `own`."""
        return own if self.top is None else self.top
