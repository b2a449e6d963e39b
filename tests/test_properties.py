"""Properties that hold on any input: order does not matter, nothing is lost, nesting is what it says it is."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracetools
from tests.case import modules, read, table, us
from tests.test_invariants import check_invariants
from tracetools import intervals, trace_file
from tracetools.table import Lane, Trace
from tracetools.timeline.tree import Tree, build_tree

PID = 4000
CATEGORIES = ("python_function", "cpu_op", "cuda_runtime", "cuda_driver", "user_annotation")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


def span(category: str, name: str, start: int, length: int, tid: int = 1, **args: Any) -> dict[str, Any]:
    """One complete event; times in whole µs."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": PID,
        "tid": tid,
        "ts": start,
        "dur": length,
        "args": args,
    }


def write(path: Path, events: list[dict[str, Any]], rank: int = 0) -> Path:
    header = {"schemaVersion": 1, "baseTimeNanoseconds": 1759300074000000000, "distributedInfo": {"rank": rank}}
    path.write_text(json.dumps({**header, "traceEvents": events, "traceName": path.name}), encoding="utf-8")
    return path


@st.composite
def lanes(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Spans on two threads, dense enough to touch, cross and coincide; ids tell equal ones apart.

    Python ids grow from parent to child, as they do in Kineto.
    """
    spans = draw(
        st.lists(
            st.tuples(
                st.sampled_from((1, 1, 1, 2)), st.integers(0, 12), st.integers(0, 8), st.sampled_from(CATEGORIES)
            ),
            min_size=1,
            max_size=14,
        )
    )
    spans.sort(key=lambda span: (span[0], span[1], -span[2]))
    events = []
    for at, (tid, start, length, category) in enumerate(spans):
        ids = {"Python id": at} if category == "python_function" else {"External id": at}
        events.append(span(category, f"{category} {at}", start, length, tid, **ids))
    return draw(st.permutations(events))


@st.composite
def jobs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Steps with modules, ops, launches and kernels that may cross in any way; backward on a thread of its own."""
    length, count = draw(st.integers(10, 60)), draw(st.integers(0, 3))
    events = [span("user_annotation", f"ProfilerStep#{at}", at * length, length) for at in range(count)]
    qualified = draw(st.booleans())
    for at in range(draw(st.integers(1, 6))):
        start, length, which = draw(st.integers(0, 50)), draw(st.integers(0, 20)), draw(st.integers(0, 3))
        if qualified:
            # Lengths keep a module out of those it calls: even clipped by half, none fits into the next.
            inner, shortest, longest = draw(st.sampled_from((("a", 25, 30), ("a.b", 8, 12), ("a.c", 0, 3))))
            name = trace_file.module_range_name(inner, "pkg.M")
            length = draw(st.integers(shortest, longest))
            events.append(span("user_annotation", name, start, length, **{"External id": 100 + at}))
        else:
            ids = {"Python id": at, "Python module id": which}
            events.append(span("python_function", f"nn.Module: M_{which}", start, length, **ids))
    for at in range(1, draw(st.integers(2, 9))):
        start, length = draw(st.integers(0, 50)), draw(st.integers(0, 15))
        backward = draw(st.booleans())
        name = "autograd::engine::evaluate_function: MmBackward0" if backward else "aten::mm"
        ids = {"External id": at, "Sequence number": draw(st.integers(1, 4)), "Fwd thread id": int(backward)}
        tid = 2 if backward else 1
        events.append(span("cpu_op", name, start, length, tid, **ids))
        launch = start + draw(st.integers(0, length))
        events.append(span("cuda_runtime", "cudaLaunchKernel", launch, 2, tid, correlation=at))
        if draw(st.integers(0, 5)):
            gpu = span("kernel", draw(st.sampled_from(("gemm", "ncclDevKernel_AllReduce"))), launch, 3)
            gpu.update(pid=0, tid=7, ts=launch + draw(st.integers(0, 20)), dur=draw(st.integers(0, 20)))
            gpu["args"] = {"device": 0, "stream": 7, "correlation": at, "External id": at}
            events.append(gpu)
    return events


def document(path: Path) -> bytes:
    return msgspec.json.encode(tracetools.load(path).analysis)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=jobs(), seed=st.integers(0, 1000))
def test_order_of_events_does_not_matter(folder: Path, events: list[dict[str, Any]], seed: int):
    path = folder / "rank0.json"
    before = document(write(path, events))
    shuffled = random.Random(seed).sample(events, len(events))
    assert document(write(path, shuffled)) == before


@pytest.mark.parametrize("linked", [1, 2, 3])
def test_equal_launches_in_any_order(folder: Path, linked: int):
    launches = [span("cuda_runtime", "cudaLaunchKernel", 0, 2, correlation=number) for number in (1, 2, 3)]
    kernel = span("kernel", "gemm", 5, 3, correlation=linked) | {"pid": 0, "tid": 7}
    path = folder / "equal.json"
    documents = {document(write(path, [*order, kernel])) for order in itertools.permutations(launches)}
    assert len(documents) == 1


@settings(max_examples=60, deadline=None)
@given(events=jobs())
def test_invariants_hold_on_any_job(folder: Path, events: list[dict[str, Any]]):
    check_invariants(tracetools.load(write(folder / "any.json", events)).analysis)


def test_a_shared_module_with_a_child_has_one_row_per_parent(folder: Path):
    # x calls s from 5 to 25, y calls it from 55 to 75; s calls l for 10 each time.
    placed = [("x", 0, 40), ("s", 5, 20), ("s.l", 10, 10), ("y", 50, 40), ("s", 55, 20), ("s.l", 60, 10)]
    events = [
        span("user_annotation", trace_file.module_range_name(name, "pkg.M"), start, length)
        for name, start, length in placed
    ]
    analysis = tracetools.load(write(folder / "shared.json", events)).analysis
    check_invariants(analysis)
    assert table(modules(analysis), "path parent", "calls", "forward.cpu_ns", "forward.self_cpu_ns") == {
        ("x", None): (1, *us(40, 20)),
        ("s", "x"): (1, *us(20, 10)),
        ("y", None): (1, *us(40, 20)),
        ("s", "y"): (1, *us(20, 10)),
        ("s.l", "s"): (2, *us(20, 20)),
    }


def test_a_module_that_calls_itself_through_another(folder: Path):
    a, b = (trace_file.module_range_name(name, "pkg.M") for name in ("a", "b"))
    events = [span("user_annotation", name, at, 20 - 2 * at) for at, name in enumerate((a, b, a, b))]
    analysis = tracetools.load(write(folder / "again.json", events)).analysis
    # a 0-20 > b 1-19 > a 2-18 > b 3-17: the inner b lies inside the outer one and adds no call and no time to its row.
    rows = {
        (row.path, row.parent): (row.calls, row.forward.cpu_ns, row.forward.self_cpu_ns)
        for row in analysis.modules
        if row.source
    }
    assert rows == {("a", None): (1, 20_000, 2_000), ("b", "a"): (1, 18_000, 16_000), ("a", "b"): (1, 16_000, 2_000)}


@settings(max_examples=15, deadline=None)
@given(first=jobs(), second=jobs(), third=jobs())
def test_order_and_names_of_files_do_not_matter(folder: Path, first: Any, second: Any, third: Any):
    def rows(ranks_of_files: tuple[int, int, int]) -> list[bytes]:
        here = folder / "several"
        here.mkdir(exist_ok=True)
        by_rank = (first, second, third)
        for file, rank in zip("abc", ranks_of_files, strict=True):
            write(here / f"{file}.json", by_rank[rank], rank)
        analysis = tracetools.load(here).analysis
        sections = ("modules", "ops", "annotations", "autograd", "steps", "gpu", "launches")
        return [msgspec.json.encode(getattr(analysis, section)) for section in sections]

    assert rows((0, 1, 2)) == rows((2, 0, 1)) == rows((1, 2, 0))


@settings(max_examples=10, deadline=None)
@given(first=jobs(), second=jobs())
def test_order_of_paths_does_not_matter(folder: Path, first: Any, second: Any):
    paths = [write(folder / "first.json", first, rank=1), write(folder / "second.json", second, rank=0)]
    forward, backward = (msgspec.json.encode(tracetools.load(each).analysis) for each in (paths, paths[::-1]))
    assert forward == backward


def test_a_thread_named_by_digits_is_one_lane(folder: Path):
    # As in traces of 2021: the tid is text. Other text beside it must not change how it is read.
    outer = span("cpu_op", "outer", 0, 10, **{"External id": 1}) | {"tid": "25738"}
    inner = span("cpu_op", "inner", 2, 3, **{"External id": 2}) | {"tid": "25738"}
    stream = span("kernel", "gemm", 0, 1, correlation=1) | {"pid": 0, "tid": "stream 7"}
    alone, beside = read(write(folder / "alone.json", [outer, inner])), read(write(folder / "b.json", [outer, stream]))
    assert alone.lanes == (Lane(PID, "25738"),)
    assert beside.lanes == (Lane(PID, "25738"), Lane(0, "stream 7"))


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=20))
def test_union_and_gaps_are_the_window(spans: list[tuple[int, int]]):
    start = np.array([begin for begin, _ in spans], np.int64)
    end = start + np.array([length for _, length in spans], np.int64)
    low, high = int(start.min()), int(end.max())
    covered = sum(any(a <= instant < b for a, b in zip(start, end, strict=True)) for instant in range(low, high))
    assert intervals.union_length(start, end) == covered
    first, last = intervals.merge(start, end)
    gaps = intervals.subtract(np.array([low]), np.array([high]), first, last)
    assert covered + int((gaps[1] - gaps[0]).sum()) == high - low


@settings(max_examples=300, deadline=None)
@given(events=lanes())
def test_self_times_sum_to_roots(folder: Path, events: list[dict[str, Any]]):
    tree = build_tree(read(write(folder / "tree.json", events)))
    assert (tree.self_ns >= 0).all()
    length = tree.end_ns - tree.start_ns
    roots = tree.in_tree & (tree.parent < 0)
    assert tree.self_ns[tree.in_tree].sum() == length[roots].sum()
    inner = np.flatnonzero(tree.parent >= 0)
    around = tree.parent[inner]
    assert (tree.start_ns[around] <= tree.start_ns[inner]).all()
    assert (tree.end_ns[inner] <= tree.end_ns[around]).all()


def test_python_ids_decide_where_times_do_not(folder: Path):
    # The end of the inner frame was rounded up past its parent's.
    parent = span("python_function", "outer", 0, 100, **{"Python id": 1})
    child = span("python_function", "inner", 0, 101, **{"Python id": 2, "Python parent id": 1})
    trace = read(write(folder / "ids.json", [child, parent]))
    assert nested(trace, build_tree(trace)) == {"outer": (None, 0, 100_000), "inner": ("outer", 0, 100_000)}


@settings(max_examples=500, deadline=None)
@given(events=lanes())
def test_nesting_equals_the_obvious_one(folder: Path, events: list[dict[str, Any]]):
    trace = read(write(folder / "nesting.json", events))
    assert nested(trace, build_tree(trace)) == {
        child: (parent, start * 1000, end * 1000) for child, parent, start, end in nest_slowly(events)
    }


def nested(trace: Trace, tree: Tree) -> dict[str, tuple[str | None, int, int]]:
    names = [trace.strings[name] for name in trace.events.name.tolist()]
    return {
        name: (
            None if tree.parent[row] < 0 else names[int(tree.parent[row])],
            int(tree.start_ns[row]) - trace.base_ns,
            int(tree.end_ns[row]) - trace.base_ns,
        )
        for row, name in enumerate(names)
    }


OUTER_FIRST = ("python_function", "cpu_op", "cuda_runtime", "cuda_driver", "user_annotation")


def nest_slowly(events: list[dict[str, Any]]) -> Iterator[tuple[str, str | None, int, int]]:
    """Name, parent, start and end of each span, as the rule reads: lane by lane, span by span."""
    lanes: dict[tuple[int, bool], list[dict[str, Any]]] = {}
    for event in events:
        # Annotations nest among themselves.
        lanes.setdefault((event["tid"], event["cat"] == "user_annotation"), []).append(event)
    for spans in lanes.values():
        around: list[tuple[str, int, int]] = []
        for event in sorted(spans, key=outer_first):
            start, end = event["ts"], event["ts"] + event["dur"]
            around = without_ended(around, start)
            around, start, end = make_fit(around, start, end)
            yield event["name"], around[-1][0] if around else None, start, end
            around = [*around, (event["name"], start, end)]


def outer_first(event: dict[str, Any]) -> tuple[int, ...]:
    args = event["args"]
    category = OUTER_FIRST.index(event["cat"])
    return event["ts"], -event["dur"], category, args.get("External id", 99), args.get("Python id", 0)


def without_ended(around: list[tuple[str, int, int]], start: int) -> list[tuple[str, int, int]]:
    """Spans still open at a start: what ends there is over, touching is not inside."""
    while around and around[-1][2] <= start:
        around = around[:-1]
    return around


def make_fit(around: list[tuple[str, int, int]], start: int, end: int) -> tuple[list[tuple[str, int, int]], int, int]:
    """Clip a span that sticks out of the one around it at the end where less is lost."""
    while around and end > around[-1][2]:
        overlap, overhang = around[-1][2] - start, end - around[-1][2]
        if overlap >= overhang:
            end = around[-1][2]
        else:
            start = around[-1][2]
            around = around[:-1]
    if around:
        start = max(start, around[-1][1])
        end = max(start, end)
    return around, start, end
