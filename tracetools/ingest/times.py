"""Exact times: decimal µs as text → int64 ns. In: the raw JSON tokens of a column. Out: ns, ABSENT where there is none.

Three tokens as they come: ``5229978982988.017``, ``1712195495519689.0``, ``"388.075"`` (some back ends write strings).
Floats never touch a time: a float64 of absolute µs has steps of 0.25 µs.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from tracetools.table import ABSENT, IntArray

Token = bytes | msgspec.Raw

_COMMA: Final = ord(",")
_DOT: Final = ord(".")
_ZERO: Final = np.uint8(ord("0"))
_PLAIN = np.zeros(256, np.bool_)
_PLAIN[list(b"0123456789.,")] = True
_MAX_WHOLE_US: Final = 9_200_000_000_000_000
"""Above this, µs·1000 may leave int64."""

_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?", re.ASCII)
_EXACT = decimal.Context(
    prec=decimal.MAX_PREC, rounding=decimal.ROUND_HALF_EVEN, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[]
)


def ns_of_tokens(tokens: Sequence[Token], joined: bytes) -> IntArray:
    """Each token as ns, rounded half to even; ABSENT where it is no number or leaves int64.

    joined: the tokens with commas between them.
    """
    # Windows of eight and sixteen digits reach left of the first token and right of the last.
    text = b"".join((b"0" * 16, b",", joined, b",", b"0" * 8))
    octets = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(octets == _COMMA)
    if len(commas) != len(tokens) + 1 or not tokens:
        return np.fromiter(map(ns_of_token, map(bytes, tokens)), np.int64, len(tokens))
    starts, ends = commas[:-1] + 1, commas[1:]
    points, whole_length, odd = _decimal_points(octets, starts, ends)
    whole = _whole_us(text, points, whole_length)
    ns = whole * 1000 + _thousandths(text, points, ends)
    for row in np.flatnonzero(odd | (whole > _MAX_WHOLE_US)).tolist():
        ns[row] = ns_of_token(bytes(tokens[row]))
    return ns


def _decimal_points(
    octets: npt.NDArray[np.uint8], starts: IntArray, ends: IntArray
) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
    """Where each token's decimal point is (or would be), its digits before it, and which tokens need a closer look."""
    dots = np.flatnonzero(octets == _DOT)
    if len(dots) == len(ends) and bool(((dots >= starts) & (dots < ends)).all()):
        points = dots
        odd = np.zeros(len(ends), np.bool_)
    else:
        owner = np.searchsorted(ends, dots)
        points = ends.copy()
        points[owner] = dots
        odd = np.bincount(owner, minlength=len(ends)) > 1
    whole_length = points - starts
    odd |= (whole_length < 1) | (whole_length > 16) | (ends - points > 4)
    # Signs, exponents, quotes: counting what is plain is many times faster than looking each octet up.
    if np.count_nonzero(octets - _ZERO < 10) + len(dots) + len(ends) + 1 != len(octets):
        odd[np.searchsorted(ends, np.flatnonzero(~_PLAIN[octets]))] = True
    return points, whole_length, odd


def _whole_us(text: bytes, points: IntArray, length: IntArray) -> IntArray:
    """The digits left of the point, up to sixteen, as a number."""
    low = _eight_digits(text, points - 8, length)
    if int(length.max()) <= 8:
        return low
    return low + 100_000_000 * _eight_digits(text, points - 16, length - 8)


def _eight_digits(text: bytes, first: IntArray, length: IntArray) -> IntArray:
    """The last `length` of the eight digits that begin at `first`, all eight turned into a number at once."""
    windows: npt.NDArray[np.uint64] = np.ndarray(len(text) - 7, "<u8", text, strides=(1,))
    kept = np.clip(length, 0, 8).astype(np.uint64)
    digits = windows[first] & np.uint64(0x0F0F0F0F0F0F0F0F)
    digits &= ~np.uint64(0) << np.minimum(8 * (8 - kept), 63).astype(np.uint64)
    digits = (digits * np.uint64(10) + (digits >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    digits = (digits * np.uint64(100) + (digits >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    digits = (digits * np.uint64(10_000) + (digits >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return np.where(kept > 0, digits, 0).astype(np.int64)


def _thousandths(text: bytes, points: IntArray, ends: IntArray) -> IntArray:
    """The first three digits right of the point; a missing one counts as 0."""
    octets = np.frombuffer(text, np.uint8)
    total = np.zeros(len(points), np.int64)
    for place, weight in ((1, 100), (2, 10), (3, 1)):
        digit = (octets[np.minimum(points + place, len(octets) - 1)] & 15).astype(np.int64)
        total += np.where(points + place < ends, digit * weight, 0)
    return total


def ns_of_token(token: bytes) -> int:
    """One token as ns, whatever its form.

    >>> ns_of_token(b'"5.25"'), ns_of_token(b"1e3"), ns_of_token(b"0.0005"), ns_of_token(b"0.0015")
    (5250, 1000000, 0, 2)
    >>> ns_of_token(b"null") == ABSENT
    True
    """
    text = _content(token)
    if not _NUMBER.fullmatch(text):
        return ABSENT
    us = _EXACT.create_decimal(text)
    if not us.is_finite() or us.adjusted() > 20:
        return ABSENT
    if us.adjusted() < -10:
        return 0
    ns = int(us.scaleb(3, _EXACT).to_integral_value(decimal.ROUND_HALF_EVEN, _EXACT))
    return ns if -(2**63) < ns < 2**63 else ABSENT


def is_number(token: bytes) -> bool:
    """Whether the token is a decimal number, plain or as a string."""
    return bool(_NUMBER.fullmatch(_content(token)))


def _content(token: bytes) -> str:
    return token.decode("ascii", "replace").strip(' \t\r\n"')
