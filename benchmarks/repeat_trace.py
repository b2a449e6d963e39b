"""Makes a long trace out of a short real one. In: a trace and a number of copies. Out: the copies, one after another.

The text is edited, not parsed and written again, so that a reader has to face every byte the profiler wrote.
Times, correlations and other ids move with each copy; step numbers go on counting. Processes, threads and modules stay.

    python benchmarks/repeat_trace.py rank0.json.gz 7 build/bench/long.json.gz
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

ID_KEYS: Final = (
    "correlation",
    "External id",
    "id",
    "Python id",
    "Python parent id",
    "Sequence number",
    "Ev Idx",
    "Record function id",
)
GAP_US: Final = 1000
STEP: Final = re.compile(r"ProfilerStep\s*#(\d+)")
# One alternation per kind of number: a key and its value, or a step inside a name. Decimals of a time stay behind it.
NUMBER: Final = re.compile(r'("(?:ts|' + "|".join(ID_KEYS) + r')": ?|ProfilerStep\s*#)(\d+)')


def open_text(path: Path, mode: str) -> IO[str]:
    """Open a trace as text, gzip or not."""
    if path.suffix == ".gz":
        return gzip.open(path, mode + "t", **({"compresslevel": 6} if mode == "w" else {}), encoding="utf-8")
    return path.open(mode, encoding="utf-8")


def split_trace(text: str) -> tuple[str, str, str, list[dict[str, Any]]]:
    """The text before the events, the events without their brackets, the text after them, and the events parsed."""
    start = text.index("[", text.index('"traceEvents"'))
    events, end = json.JSONDecoder().raw_decode(text, start)
    return text[: start + 1], text[start + 1 : end - 1].rstrip(), text[end - 1 :], events


def offsets(events: list[dict[str, Any]]) -> dict[str, int]:
    """By how much each kind of number grows from one copy to the next, so that no two copies share one."""
    timed = [event for event in events if event.get("ph") == "X"]
    span = max(e["ts"] + e["dur"] for e in timed) - min(e["ts"] for e in timed)
    grown = {key: 1 + _largest(events, key) for key in ID_KEYS}
    # A flow's id is the correlation of its launch, and a frame's parent is another frame: they must move together.
    grown["id"] = grown["correlation"] = grown["External id"] = max(
        grown["id"], grown["correlation"], grown["External id"]
    )
    grown["Python parent id"] = grown["Python id"]
    steps = [int(found.group(1)) for event in events if (found := STEP.match(str(event.get("name", ""))))]
    step_span = max(steps) - min(steps) + 1 if steps else 0
    return grown | {"ts": int(span) + GAP_US, "step": step_span}


def _largest(events: list[dict[str, Any]], key: str) -> int:
    found = (holder.get(key) for event in events for holder in (event, event.get("args") or {}))
    return max((value for value in found if isinstance(value, int)), default=0)


def copies(body: str, step: dict[str, int], count: int) -> Iterator[str]:
    """The events once for every copy, each later in time than the one before."""
    parts = NUMBER.split(body)
    keys, numbers = parts[1::3], [int(number) for number in parts[2::3]]
    growth = [step[key.split('"')[1]] if key.startswith('"') else step["step"] for key in keys]
    # Zero means "none" for every id but the ids of Python frames, which count from 0.
    growth = [
        0 if not number and "Python" not in key else grown
        for key, number, grown in zip(keys, numbers, growth, strict=True)
    ]
    for copy in range(count):
        parts[2::3] = [str(number + copy * grown) for number, grown in zip(numbers, growth, strict=True)]
        yield "".join(parts)


def repeat(source: Path, count: int, target: Path) -> int:
    """Write `count` copies of `source` to `target`; returns how many events that is."""
    with open_text(source, "r") as stream:
        head, body, tail, events = split_trace(stream.read())
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name("partial-" + target.name)
    with open_text(partial, "w") as stream:
        stream.write(head)
        for number, text in enumerate(copies(body, offsets(events), count)):
            stream.write("," * (number > 0) + text)
        stream.write(tail)
    partial.rename(target)  # a file of the final name is a whole file, also after an interrupt
    return count * len(events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    print(repeat(arguments.source, arguments.count, arguments.target), "events")


if __name__ == "__main__":
    main()
