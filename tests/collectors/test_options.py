"""Options in the words of the command line and in Python's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.errors import CollectError
from collectors.options import Options, options, parse_passes, parse_ranks, parse_size, parse_steps
from tracetools.trace_file import Pass


def test_what_is_recorded_unasked():
    chosen = options("traces")
    assert chosen == Options(Path("traces").absolute())  # a script may change its folder
    assert (chosen.first, chosen.last, chosen.warmup, chosen.begin) == (6, 8, 2, 4)
    assert (chosen.passes, chosen.ranks, chosen.shapes, chosen.stack) == ((Pass.TIMING,), None, True, False)


@pytest.mark.parametrize(
    ("given_steps", "expected"), [("6-8", (6, 8)), ("12", (12, 12)), (12, (12, 12)), ((3, 4), (3, 4)), ("0", (0, 0))]
)
def test_steps(given_steps: Any, expected: tuple[int, int]):
    chosen = options("x", steps=given_steps, warmup=0)
    assert (chosen.first, chosen.last, chosen.begin) == (*expected, expected[0])


def test_warm_up_steps_that_lie_before_the_first():
    assert options("x", steps="1-2", warmup=5).begin == 0


@pytest.mark.parametrize(("given_ranks", "expected"), [("0,8-15", {0, *range(8, 16)}), ([3, 1], {1, 3}), ("7", {7})])
def test_ranks(given_ranks: Any, expected: set[int]):
    assert options("x", ranks=given_ranks).ranks == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500", 500), ("1K", 1024), ("1.5k", 1536), ("2 GiB", 2 << 30), ("3MB", 3 << 20), ("1T", 1 << 40), ("0", 0)],
)
def test_sizes(text: str, expected: int):
    assert parse_size(text) == expected
    assert options("x", max_size=text).max_size == expected


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str):
    for parse in (parse_steps, parse_ranks, parse_size, parse_passes):
        try:
            parse(text)
        except CollectError:
            continue


@pytest.mark.parametrize("text", ["0-99999999999", "1-", "-1", "1,,2", "", "9" * 5000, "²", "0-1000000"])
def test_spans_that_are_none(text: str):
    with pytest.raises(CollectError):
        parse_ranks(text)
