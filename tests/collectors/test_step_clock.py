"""Which optimizer counts: the first, another one where it stands still or is gone."""

from __future__ import annotations

from collectors.step_clock import StepClock


class Optimizer:
    pass


def counted(steps: str, clock: StepClock | None = None) -> str:
    """The letters of those whose step counted."""
    optimizers = {letter: Optimizer() for letter in steps}
    clock = clock or StepClock()
    return "".join(letter for letter in steps if clock.ticks(optimizers[letter]))


def test_one_counts_and_others_step_within_its_steps():
    assert counted("aaa") == "aaa"
    assert counted("abbabbabb") == "aaa"


def test_another_counts_where_the_first_stands_still():
    assert counted("a" + 9 * "b" + "a" + 12 * "b" + "aa") == "aa" + "bbb"
    assert counted("a" + 12 * "bc" + "a") == "a" + "bbb"


def test_one_that_is_gone_counts_no_more():
    clock = StepClock()
    assert counted("aab", clock) == "aa"
    assert counted("bb", clock) == "bb"
    assert clock.changes == 2
