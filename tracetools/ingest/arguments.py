"""The `args` of complete events → sparse columns. In: raw JSON objects of one category. Out: values by column.

Three of them as Kineto writes them:

    {"External id": 7, "Sequence number": 1, "Fwd thread id": 0, "Input Dims": [[64], [4, 64]], "Ev Idx": 12}
    {"Python id": 12, "Python parent id": null, "Ev Idx": 9}
    {"External id": 7, "device": 0, "stream": 7, "correlation": 16, "grid": [2, 1, 1], …}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from tracetools.table import ABSENT, INTEGER_ARGUMENTS, TEXT_ARGUMENTS, IdArray, IntArray

_COLUMN_OF: Final = {key: column for column, key in (INTEGER_ARGUMENTS | TEXT_ARGUMENTS).items()}
_MAX_KEYS: Final = 150
_MAX_SCHEMAS: Final = 64
_NEW: Final = -1
_NOTHING: Final = msgspec.Raw(b"")
_DIGITS = re.compile(rb'"?(-?\d{1,19})"?', re.ASCII)
_FAILED = (msgspec.DecodeError, UnicodeError, RecursionError)
_UNFIT = re.compile(r'[\x00-\x1f"\\]')
"""What a field's name must not hold."""
_KEYED = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Schema:
    """What the args of one category look like, learnt from the batches seen so far.

    Only the keys that occur become fields, and an unknown key is an error that makes the schema grow: so just the
    columns that a category has are gathered. `loose`: some integer is not written as one. `wide`: keys come without
    end, so that all columns are looked for and unknown keys are no error.
    """

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}
        self._loose = False
        self._wide = False
        self._build()

    def values(self, objects: Sequence[msgspec.Raw]) -> tuple[dict[str, IntArray], dict[str, list[msgspec.Raw]]]:
        """The integer and the text columns that occur, one value per object; ABSENT or empty where it has none."""
        rows = self._decode(objects)
        found: dict[str, list[Any]] = self._gather(rows)
        to_integers = _loose_integers if self._loose else _integers
        integers = {column: to_integers(values) for column, values in found.items() if column in INTEGER_ARGUMENTS}
        return integers, {column: values for column, values in found.items() if column in TEXT_ARGUMENTS}

    def _decode(self, objects: Sequence[msgspec.Raw]) -> list[Any]:
        try:
            return self._rows(objects)
        except _FAILED:
            tame = [_tame(bytes(each)) for each in objects]
        self._learn(tame)
        try:
            return self._rows(tame)
        except _FAILED:
            self._loose = True
            self._build()
        return self._rows(tame)

    def _rows(self, objects: Sequence[msgspec.Raw | bytes]) -> list[Any]:
        rows: list[Any] = self._decoder.decode(b"[" + b",".join(objects) + b"]")
        return rows

    def _learn(self, objects: Iterable[bytes]) -> None:
        before = len(self._keys)
        for each in objects:
            self._keys.update(dict.fromkeys(_KEYED.decode(each)))
            if len(self._keys) > _MAX_KEYS or _UNFIT.search("".join(self._keys)):
                self._keys, self._wide = dict.fromkeys(_COLUMN_OF), True
                break
        if len(self._keys) != before or self._wide:
            self._build()

    def _build(self) -> None:
        integer: Any = msgspec.Raw if self._loose else int | None
        nothing: Any = _NOTHING if self._loose else ABSENT
        fields: list[tuple[str, Any, Any]] = []
        for number, key in enumerate(self._keys):
            column = _COLUMN_OF.get(key)
            if column in INTEGER_ARGUMENTS:
                fields.append((column, integer, msgspec.field(name=key, default=nothing)))
            else:
                fields.append((column or f"other{number}", msgspec.Raw, msgspec.field(name=key, default=_NOTHING)))
        row = msgspec.defstruct("ArgumentsRow", fields, gc=False, forbid_unknown_fields=not self._wide)
        self._decoder = msgspec.json.Decoder(list[row])  # type: ignore[valid-type]
        self._gather = _gatherer([_COLUMN_OF[key] for key in self._keys if key in _COLUMN_OF])


def _gatherer(columns: Sequence[str]) -> Callable[[list[Any]], dict[str, list[Any]]]:
    """A function from rows to columns, written out field by field: four times as fast as asking by name.

    >>> _gatherer(["device", "stream"]).__code__.co_argcount
    1
    """
    assert all(column.isidentifier() for column in columns)
    listed = ", ".join(f"{column!r}: [row.{column} for row in rows]" for column in columns)
    gather: Callable[[list[Any]], dict[str, list[Any]]] = eval(f"lambda rows: {{{listed}}}")
    return gather


class SchemaTable(list[Schema]):
    """A schema for each category; the last one is shared where a file makes up categories without end."""

    def __init__(self) -> None:
        super().__init__()
        self._number_of_category = np.full(64, _NEW, np.int64)

    def numbers(self, category: IdArray) -> IntArray:
        """The number of each event's schema."""
        if len(category) and (most := int(category.max())) >= len(self._number_of_category):
            more = np.full(2 * most - len(self._number_of_category), _NEW, np.int64)
            self._number_of_category = np.concatenate((self._number_of_category, more))
        numbers = self._number_of_category[category]
        if (numbers == _NEW).any():
            for new in np.unique(category[numbers == _NEW]).tolist():
                self._number_of_category[new] = self._next()
            numbers = self._number_of_category[category]
        return numbers

    def _next(self) -> int:
        if len(self) < _MAX_SCHEMAS:
            self.append(Schema())
        return len(self) - 1


def _integers(values: Sequence[int | None]) -> IntArray:
    try:
        return np.fromiter(values, np.int64, len(values))
    except TypeError:  # a null
        known = [ABSENT if value is None else value for value in values]
    except OverflowError:
        known = [value if value is not None and _fits(value) else ABSENT for value in values]
    try:
        return np.fromiter(known, np.int64, len(known))
    except OverflowError:
        return np.fromiter([value if _fits(value) else ABSENT for value in known], np.int64, len(known))


def _fits(value: int) -> bool:
    return -(2**63) < value < 2**63


def _loose_integers(values: Sequence[msgspec.Raw]) -> IntArray:
    return np.array([integer_of_raw(bytes(value)) for value in values], np.int64)


def integer_of_raw(raw: bytes) -> int:
    """An integer written as a number or as a string of digits; ABSENT for anything else.

    >>> integer_of_raw(b'"16"'), integer_of_raw(b"-1"), integer_of_raw(b"16.5") == ABSENT
    (16, -1, True)
    """
    found = _DIGITS.fullmatch(raw)
    if not found:
        return ABSENT
    value = int(found.group(1))
    return value if _fits(value) else ABSENT


def _tame(raw: bytes) -> bytes:
    """The args as a JSON object that can be decoded: `{}` for what is no object, U+FFFD for what is not UTF-8."""
    if raw[:1] != b"{":
        return b"{}"
    try:
        _KEYED.decode(raw)
    except RecursionError:
        return b"{}"
    except (msgspec.DecodeError, UnicodeError):
        return raw.decode("utf-8", "replace").encode()
    return raw
