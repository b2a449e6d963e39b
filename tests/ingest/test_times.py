"""Times are exact ns, however the text writes them."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import example, given
from hypothesis import strategies as st

from tests.ingest import oracle
from tracetools.ingest.times import is_number, ns_of_token, ns_of_tokens
from tracetools.table import ABSENT

digits = st.text("0123456789", min_size=1, max_size=19)
plain = st.builds(
    lambda sign, whole, fraction: f"{sign}{int(whole)}" + (f".{fraction}" if fraction else ""),
    st.sampled_from(["", "", "", "-"]),
    digits,
    st.text("0123456789", max_size=6),
)
powers = st.builds(lambda number, power: f"{number}e{power}", plain, st.integers(-8, 8))
tokens = st.one_of(plain, plain, powers, plain.map(lambda number: f'"{number}"'))


def column(texts: list[str]) -> list[int]:
    encoded = [text.encode() for text in texts]
    return ns_of_tokens(encoded, b",".join(encoded)).tolist()


def expected(text: str) -> int:
    ns = oracle.ns(text.strip('"'))
    return ns if -(2**63) < ns < 2**63 else ABSENT


@given(st.lists(tokens, max_size=40))
@example(["1712195495519689.0", "1764550075445637.603", "0", "0.001", "9223372036854775.807", "9223372036854775.808"])
@example(["5229978982988.017"] * 3)
@example(["1", "2.5", "3"])
@example(["1000000000000000000e7"])
def test_a_column_is_exact(texts: list[str]):
    assert column(texts) == [expected(text) for text in texts]


def test_halves_go_to_even():
    assert column(["0.0005", "0.0015", "0.0025", "-0.0005", "8796093022208.0005", "8796093022208.0015"]) == [
        0,
        2,
        2,
        0,
        8796093022208000,
        8796093022208002,
    ]


def test_what_is_no_number_is_absent():
    odd = ["", "null", "true", '"late"', "[1,2]", '"1.2.3"', "1e400", '"1,5"', "9" * 30]
    assert column(odd) == [ABSENT] * len(odd)
    assert column([*odd, "7.25"]) == [ABSENT] * len(odd) + [7250]


def test_commas_inside_tokens_do_not_shift_a_column():
    assert column(["[1,2]", "5"]) == [ABSENT, 5000]
    assert column(['"a,b"', "5.5", "6"]) == [ABSENT, 5500, 6000]


def test_a_million_digits_are_no_trap():
    assert ns_of_token(b"1" * 1_000_000) == ABSENT
    assert ns_of_token(b"0." + b"0" * 1_000_000 + b"1") == 0
    assert ns_of_token(b"1." + b"0" * 1_000_000 + b"1") == 1000
    assert ns_of_token(b"1e-999999999999999999999") in (0, ABSENT)
    assert ns_of_token(b"1e999999999999999999999") == ABSENT


def test_numbers_are_told_from_other_tokens():
    assert [is_number(token) for token in (b"1.5", b'"1.5"', b"-1e9", b"null", b"", b'"x"')] == [True] * 3 + [False] * 3


def test_decimal_agrees_on_a_float64_trap():
    text = "1764550075445637.603"
    assert column([text]) == [int(Decimal(text) * 1000)] != [round(float(text) * 1000)]
