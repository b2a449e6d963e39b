"""Subtrees and the work below them, against climbing from each piece of work to its root."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracetools import intervals
from tracetools.timeline import subtrees
from tracetools.timeline.subtrees import Subtrees, SubtreeWork


@st.composite
def forests(draw: st.DrawFn) -> list[int]:
    """Parents, each before its children."""
    size = draw(st.integers(1, 12))
    return [draw(st.integers(-1, node - 1)) for node in range(size)]


@st.composite
def launches(draw: st.DrawFn, nodes: int) -> list[tuple[int, int, int]]:
    """(node, start, end) per piece of work; dense enough to overlap, touch and be empty."""
    piece = st.tuples(st.integers(0, nodes - 1), st.integers(0, 30), st.integers(0, 6))
    return [(node, start, start + length) for node, start, length in draw(st.lists(piece, max_size=12))]


def climb(parent: list[int], node: int) -> list[int]:
    """The node and all around it."""
    path = []
    while node >= 0:
        path.append(node)
        node = parent[node]
    return path


def length_of_union(pieces: list[tuple[int, int]]) -> int:
    return len({ns for start, end in pieces for ns in range(start, end)})


@given(forests())
def test_a_subtree_is_one_range_of_positions(parent: list[int]) -> None:
    found = Subtrees.of_forest(np.array(parent))
    assert sorted(found.low.tolist()) == list(range(len(parent)))
    for node in range(len(parent)):
        below = {other for other in range(len(parent)) if node in climb(parent, other)}
        assert {int(found.low[other]) for other in below} == set(range(int(found.low[node]), int(found.high[node])))


@given(forests())
def test_nodes_given_depth_first_keep_their_positions(parent: list[int]) -> None:
    forest = Subtrees.of_forest(np.array(parent))
    order = np.argsort(forest.low)
    moved = [int(forest.low[parent[node]]) if parent[node] >= 0 else -1 for node in order.tolist()]
    again = Subtrees.of_depth_first(np.array(moved))
    assert again.low.tolist() == list(range(len(parent)))
    assert again.high.tolist() == forest.high[order].tolist()


@given(st.data())
def test_sums_and_unions_below_each_group(data: st.DataObject) -> None:
    parent = data.draw(forests())
    group = [data.draw(st.integers(0, 3)) for _ in parent]
    work = data.draw(launches(len(parent)))
    forest = Subtrees.of_forest(np.array(parent))
    outermost = forest.outermost(np.array(group))
    expected = [all(group[other] != group[node] for other in climb(parent, node)[1:]) for node in range(len(parent))]
    assert outermost.tolist() == expected

    node, start, end = (
        (np.array(column, np.int64) for column in zip(*work, strict=True)) if work else [np.zeros(0, np.int64)] * 3
    )
    below = SubtreeWork.of(forest, node, start, end)
    asked = np.array(group), np.flatnonzero(outermost), 4
    held = [
        [piece for piece in work if any(group[other] == each for other in climb(parent, piece[0]))] for each in range(4)
    ]
    assert below.total(*asked).tolist() == [sum(piece[2] - piece[1] for piece in pieces) for pieces in held]
    assert below.union(*asked).tolist() == [length_of_union([piece[1:] for piece in pieces]) for pieces in held]
    assert below.union_of_inner(*asked).tolist() == [
        length_of_union([piece[1:] for piece in pieces if group[piece[0]] != each]) for each, pieces in enumerate(held)
    ]
    assert forest.sums(node, end - start).tolist() == [
        sum(piece[2] - piece[1] for piece in work if at in climb(parent, piece[0])) for at in range(len(parent))
    ]


def test_the_result_does_not_depend_on_how_much_is_laid_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = np.arange(-1, 49)
    forest = Subtrees.of_depth_first(parent)
    node, start = np.arange(50).repeat(3), np.arange(150) * 7 % 40
    work = SubtreeWork.of(forest, node, start, start + 9)
    asked = np.arange(50), np.arange(50), 50
    at_once = work.union(*asked)
    monkeypatch.setattr(subtrees, "_PAIRS_AT_ONCE", 10)
    assert work.union(*asked).tolist() == at_once.tolist()
    assert at_once[0] == intervals.union_length(start, start + 9)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=9))
def test_what_lies_alone_overlaps_nothing(pieces: list[tuple[int, int]]) -> None:
    start = np.array([first for first, _ in pieces], np.int64)
    end = start + np.array([length for _, length in pieces], np.int64)
    overlaps = [
        any(other != at and start[at] < end[other] and start[other] < end[at] for other in range(len(pieces)))
        for at in range(len(pieces))
    ]
    alone = intervals.lies_alone(start, end)
    assert not (alone & np.array(overlaps, bool)).any()


def test_very_deep_nesting_takes_no_memory_by_depth() -> None:
    """10,000 nodes in each other over 1,000 overlapping kernels would be 10 million pairs."""

    depth, kernels = 10_000, 1_000
    work_start = np.arange(kernels) * 10
    tracemalloc.start()
    forest = Subtrees.of_depth_first(np.arange(-1, depth - 1))
    work = SubtreeWork.of(forest, np.full(kernels, depth - 1), work_start, work_start + 15)
    busy = work.union(np.arange(depth), np.arange(depth), depth)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (busy == work_start[-1] + 15).all()
    assert peak < 300e6
