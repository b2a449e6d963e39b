"""A second, slow reading of a good trace with json and Decimal, and a `Trace` in the same plain form, to be compared.

Both forms are lists in the order of the file: every column of the contract, as plain Python values.
"""

from __future__ import annotations

import gzip
import json
import re
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

from tracetools.ingest import TraceInput, read_trace
from tracetools.table import ABSENT, INTEGER_ARGUMENTS, KIND_OF_CATEGORY, TEXT_ARGUMENTS, Kind, Marks, Trace

PHASES = {"X": "events", "i": "instants", "I": "instants", "C": "counters", "s": "flows", "t": "flows", "f": "flows"}


def source_of(path: Path) -> TraceInput:
    return TraceInput(path, str(path), path.stat().st_size)


def read(path: Path) -> Trace:
    return read_trace(source_of(path))


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def text_of(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def expected(text: bytes) -> dict[str, Any]:
    """What the JSON text says, read slowly."""
    document = json.loads(text, parse_float=Decimal)
    top = {} if isinstance(document, list) else document
    base = int(top.get("baseTimeNanoseconds", 0))
    found: dict[str, Any] = {"events": [], "instants": [], "counters": [], "flows": [], "records": []}
    for event in document if isinstance(document, list) else document["traceEvents"]:
        if event["ph"] == "M":
            record = {key: event.get(key) for key in ("pid", "tid")}
            found["records"].append({"name": event["name"], **record, "args": _floats(event.get("args", {}))})
        else:
            kind = PHASES[event["ph"]]
            found[kind].append(_expected_row(kind, event, base))
    found["metadata"] = _floats({key: value for key, value in top.items() if key != "traceEvents"})
    return found


def _expected_row(kind: str, event: dict[str, Any], base: int) -> tuple[Any, ...]:
    lane = tuple("" if event.get(key) is None else event[key] for key in ("pid", "tid"))
    place = (base + ns(event["ts"]), event.get("cat", ""), *lane)
    if kind == "flows":
        return (*place, str(event["id"]), event["ph"] == "s")
    if kind != "events":
        return (*place, event["name"], event.get("args"))
    category = event.get("cat", "")
    arguments = _expected_arguments(event.get("args") or {})
    return (*place, event["name"], ns(event["dur"]), KIND_OF_CATEGORY.get(category, Kind.OTHER), arguments)


def _expected_arguments(args: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for column, key in INTEGER_ARGUMENTS.items():
        value = args.get(key)
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and ABSENT < value < 2**63:
            found[column] = value
    found |= {column: args[key] for column, key in TEXT_ARGUMENTS.items() if args.get(key) is not None}
    return found


def ns(time: Any) -> int:
    """µs, as number or text, as ns: exact, half to even."""
    return int((Decimal(time) * 1000).to_integral_value(ROUND_HALF_EVEN))


def _floats(value: Any) -> Any:
    """Metadata is decoded as any JSON reader does, so Decimals become floats there."""
    return json.loads(json.dumps(value, default=float))


def observed(trace: Trace) -> dict[str, Any]:
    """A `Trace` as plain rows; text arguments decoded, so that they compare by value."""
    events = trace.events
    arguments: list[dict[str, Any]] = [{} for _ in range(len(events))]
    for column, sparse in trace.events.arguments.items():
        for row, value in zip(sparse.rows.tolist(), sparse.values.tolist(), strict=True):
            arguments[row][column] = value if column in INTEGER_ARGUMENTS else trace.strings[value]
    rows = [
        (*place, trace.strings[name], dur, kind, args)
        for place, name, dur, kind, args in zip(
            _places(trace, events),
            events.name.tolist(),
            events.dur_ns.tolist(),
            events.kind.tolist(),
            arguments,
            strict=True,
        )
    ]
    flows = trace.flows
    arrows = [
        (*place, trace.strings[flow], start)
        for place, flow, start in zip(_places(trace, flows), flows.flow.tolist(), flows.is_start.tolist(), strict=True)
    ]
    return {
        "events": rows,
        "instants": _marks(trace, trace.instants),
        "counters": _marks(trace, trace.counters),
        "flows": arrows,
        "records": list(trace.records),
        "metadata": trace.metadata,
    }


def _places(trace: Trace, table: Any) -> list[tuple[Any, ...]]:
    return [
        (ts, trace.strings[category], trace.lanes[lane].pid, trace.lanes[lane].tid)
        for ts, category, lane in zip(table.ts_ns.tolist(), table.category.tolist(), table.lane.tolist(), strict=True)
    ]


def _marks(trace: Trace, marks: Marks) -> list[tuple[Any, ...]]:
    return [
        (*place, trace.strings[name], None if args == ABSENT else json.loads(trace.strings[args], parse_float=Decimal))
        for place, name, args in zip(_places(trace, marks), marks.name.tolist(), marks.args.tolist(), strict=True)
    ]


def assert_same(trace: Trace, text: bytes) -> None:
    """Every column of the trace equals what the text says, bit for bit."""
    slow, fast = expected(text), observed(trace)
    for row, (said, kept) in enumerate(zip(slow["events"], fast["events"], strict=True)):
        for column, value in kept[-1].items():
            if column in TEXT_ARGUMENTS and not isinstance(said[-1].get(column), str):
                kept[-1][column] = json.loads(value, parse_float=Decimal)
        assert kept == said, f"event {row}"
    for kind in slow:
        assert fast[kind] == slow[kind], kind
