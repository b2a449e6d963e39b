"""What the caller may choose. In: options of the command line or of `load`. Out: one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Settings:
    """Choices that change figures (steps, ranks) or how the work is done (workers), never how results are drawn.

    steps: pool only these steps (None: all that was recorded). ranks: analyse only these ranks.
    rank_of: rank by path or file name, for files that do not say. rank_from_name: a regular expression whose first
    group is the rank. workers: processes to use; None picks by size. convention: by whose rules FLOPs are counted.
    peaks: FLOP/s of the device by element type, where they are not to be looked up. flops: Python files that register
    formulas of further ops.
    """

    steps: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None
    rank_of: dict[str, int] = field(default_factory=dict)
    rank_from_name: str | None = None
    workers: int | None = None
    convention: str = "torchtitan"
    peaks: dict[str, float] = field(default_factory=dict)
    flops: tuple[str, ...] = ()
