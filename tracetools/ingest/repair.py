"""What real writers got wrong, put right. In: the text of damaged events. Out: the events that can be saved.

Three that occur: ``"name": "torch\\cuda\\__init__.py(219): _lazy_init"``, ``"memory bandwidth (GB/s)": inf``,
``"name": "print("hello")"``.
"""

from __future__ import annotations

from tracetools.ingest.event import NotEvents, RawEvent, decode_events
from tracetools.ingest.faults import Faults
from tracetools.ingest.split import likely_pieces


def salvage(text: bytes, faults: Faults, *, at_end: bool = False) -> list[RawEvent]:
    """All events of a damaged stretch that can be made out; what is lost is counted."""
    events: list[RawEvent] = []
    for piece in likely_pieces(text):
        try:
            events += decode_events(piece)
        except NotEvents:
            faults.add("unreadable_event")
    return events
