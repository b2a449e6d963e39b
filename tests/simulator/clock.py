"""A host's clock. In: true ns since the start. Out: what that host believes, in ns since the start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """offset_ns: ahead of true time at the start. drift_ppm: gains so many ns per ms."""

    offset_ns: int = 0
    drift_ppm: int = 0

    def at(self, true_ns: int) -> int:
        return true_ns + self.offset_ns + true_ns * self.drift_ppm // 1_000_000
