"""Which words traces use: categories, argument keys, types of values. In: traces. Out: `vocabulary.json`.

    python -m tests.simulator.vocabulary TRACE... > tests/simulator/vocabulary.json

The file holds the words of the public traces; the simulator may use no others but those in `REASONS`.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

Words = dict[str, dict[str, list[str]]]

FILE: Final = Path(__file__).with_name("vocabulary.json")
REASONS: Final = {
    ("top level", "synthetic"): "says that nothing was recorded",
    ("top level", "tracetools"): "what tracetools' own collectors write",
    ("top level", "host_name"): "torch 2.13 and later (torch/profiler/profiler.py)",
    ("X kernel", "Src Rank"): "Kineto's output_json.cpp writes them for send and receive",
    ("X kernel", "Dst Rank"): "the same",
    ("X cpu_op", "Src Rank"): "the same, out of torch's ParamCommsUtils.cpp",
    ("X cpu_op", "Dst Rank"): "the same",
}
_TYPES: Final = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "dict", type(None): "null"}


def words_of(documents: Iterable[Any]) -> Words:
    """Types seen for each key of each kind of event, and of the top level."""
    found: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for document in documents:
        for key, value in document.items() if isinstance(document, dict) else ():
            if key != "traceEvents":
                found["top level"][key].add(_TYPES[type(value)])
        for event in document["traceEvents"] if isinstance(document, dict) else document:
            kind = f"{event['ph']} {event['name'] if event['ph'] == 'M' else event.get('cat', '')}"
            for key, value in (event.get("args") or {"": None}).items():
                found[kind][key].add(_TYPES[type(value)])
    return {kind: {key: sorted(types) for key, types in sorted(keys.items())} for kind, keys in sorted(found.items())}


def load(path: Path) -> Any:
    """One trace, as `json` reads it."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    return json.loads(text.decode("utf-8", "replace"), strict=False)


def strange(words: Words, known: Words) -> list[tuple[str, str, str]]:
    """(kind of event, key, type) that no known trace has and no reason excuses."""
    return [
        (kind, key, each)
        for kind, keys in words.items()
        for key, types in keys.items()
        for each in types
        if (kind, key) not in REASONS and each not in known.get(kind, {}).get(key, ())
    ]


if __name__ == "__main__":
    json.dump(words_of(load(Path(each)) for each in sys.argv[1:]), sys.stdout, indent=0)
    sys.stdout.write("\n")
