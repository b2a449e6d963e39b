"""Backward of each module of a real CPU run, against a sum over the raw file by sequence numbers alone."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import tracetools
from collectors_job import collect, script, trace_of
from tracetools.trace_file import parse_module_range

NODE = "autograd::engine::evaluate_function: "


def ns(event: dict[str, Any], key: str) -> int:
    return round(event[key] * 1000)


def read(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[int, dict[str, Any]]]:
    """Module ranges, nodes, and by sequence number the op that made a node: the last one that carries the number."""
    spans = [each for each in trace_of(folder)["traceEvents"] if each.get("ph") == "X" and each.get("cat") == "cpu_op"]
    ranges = [each for each in spans if parse_module_range(each["name"])]
    nodes = [each for each in spans if each["name"].startswith(NODE)]
    makers: dict[int, dict[str, Any]] = {}
    for each in sorted(spans, key=lambda span: ns(span, "ts")):
        if "Sequence number" in each["args"] and each["args"].get("Fwd thread id") == 0:
            makers[each["args"]["Sequence number"]] = each
    return ranges, nodes, makers


def names_around(span: dict[str, Any], ranges: list[dict[str, Any]]) -> set[str]:
    start, end = ns(span, "ts"), ns(span, "ts") + ns(span, "dur")
    return {
        parse_module_range(each["name"])[0] or "(root)"
        for each in ranges
        if each["tid"] == span["tid"] and ns(each, "ts") <= start and end <= ns(each, "ts") + ns(each, "dur")
    }


@pytest.mark.parametrize(("name", "arguments"), [("plain", ("6", "2")), ("te_double", ())])
def test_backward_is_the_sum_by_sequence_numbers(tmp_path: Path, name: str, arguments: tuple[str, ...]):
    folder = tmp_path / "traces"
    done = collect("--out", str(folder), "--steps", "3-4", script(name), *arguments)
    assert done.returncode == 0, done.stderr
    analysis = tracetools.load(str(folder)).analysis
    ranges, nodes, makers = read(folder)
    expected_ns: defaultdict[str, int] = defaultdict(int)
    expected_calls: defaultdict[str, int] = defaultdict(int)
    outside = accumulates = 0
    for node in nodes:
        maker = makers.get(node["args"].get("Sequence number", -1))
        around = names_around(maker, ranges) if maker else set()
        accumulates += node["name"] == f"{NODE}torch::autograd::AccumulateGrad"
        outside += not around and node["name"] != f"{NODE}torch::autograd::AccumulateGrad"
        for module in around:
            expected_ns[module] += ns(node, "dur")
            expected_calls[module] += 1
    rows = {row.path: row for row in analysis.modules}
    assert len(expected_ns) > 2
    named = {path: row for path, row in rows.items() if row.source == "fqn"}
    assert {path: row.backward.cpu_ns for path, row in named.items() if row.backward.cpu_ns} == expected_ns
    # Every node is placed, listed as unattributed, or a gradient's accumulation.
    assert sum(row.calls for row in analysis.autograd) == len(nodes)
    assert sum(row.calls for row in analysis.autograd if row.linked_by == "open") == accumulates
    assert (rows["(root)"].backward.calls, rows["(unattributed)"].backward.calls) == (expected_calls["(root)"], outside)
    assert expected_calls["(root)"] + outside + accumulates == len(nodes)
