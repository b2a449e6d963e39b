"""Events written as a begin and an end → complete events. In: `ph` B and E, in the order of the file. Out: `ph` X.

{"ph": "B", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.000}
{"ph": "E", "pid": 1, "tid": 1, "ts": 25.000}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from tracetools.ingest.event import RawEvent
from tracetools.ingest.times import ns_of_token
from tracetools.table import ABSENT

_Lane: TypeAlias = tuple[int | str | None, int | str | None]


class BeginEndPairs:
    """Begins that wait for their end, innermost last, on each lane."""

    def __init__(self) -> None:
        self._open: defaultdict[_Lane, list[RawEvent]] = defaultdict(list)
        self._lone_ends = 0

    def complete(self, events: Sequence[RawEvent]) -> list[RawEvent]:
        """The complete events that these begins and ends close."""
        closed = []
        for event in events:
            waiting = self._open[event.pid, event.tid]
            if event.ph == "B":
                waiting.append(event)
            elif waiting:
                closed.append(_joined(waiting.pop(), event))
            else:
                self._lone_ends += 1
        return closed

    def unmatched(self) -> int:
        """How many begins or ends found no partner so far."""
        return self._lone_ends + sum(map(len, self._open.values()))


def _joined(begin: RawEvent, end: RawEvent) -> RawEvent:
    start_ns, end_ns = ns_of_token(bytes(begin.ts)), ns_of_token(bytes(end.ts))
    begin.ph = "X"
    if ABSENT not in (start_ns, end_ns):
        dur_ns = end_ns - start_ns
        sign = "-" if dur_ns < 0 else ""
        begin.dur = msgspec.Raw(b"%b%d.%03d" % (sign.encode(), abs(dur_ns) // 1000, abs(dur_ns) % 1000))
    return begin
