"""One distinct call of an op, as its recorded inputs tell it. In: JSON texts of the trace. Out: `OpCall`.

"Input Dims": [[64], [4, 64], [64, 64], [], []]
"Input type": ["float", "float", "float", "Scalar", "Scalar"]
"Concrete Inputs": ["", "", "", "1", "1"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias, TypeGuard

import msgspec

Shape: TypeAlias = tuple[int, ...]

_LARGEST: Final = 1 << 40
_MOST_SIZES: Final = 16


class Uncountable(Exception):
    """The trace does not hold what a formula needs; the message says what."""


@dataclass(frozen=True, slots=True)
class OpCall:
    """Name and inputs of a dispatcher call; inputs are counted as the op's schema lists them.

    shapes: of each input; () for what is no tensor, and also for a scalar tensor; a list of tensors is a tuple of
    shapes. types: C++ names of the element types, as "c10::BFloat16"; "" for what is no tensor. concrete: values of the
    other inputs as text; "" for tensors. Columns that were not recorded are empty.
    """

    name: str
    shapes: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    concrete: tuple[str, ...] = ()

    def shape(self, index: int, *dimensions: int) -> Shape:
        """Sizes of the tensor at an index, whose number of dimensions must be one of those given (any, if none are).

        Raises: Uncountable where there is no such tensor.
        """
        found = self.shapes[index] if index < len(self.shapes) else None
        if not is_shape(found) or (dimensions and len(found) not in dimensions):
            raise Uncountable(f"input {index} has no shape that fits")
        return found

    def value(self, index: int) -> Any:
        """A plain value: number, True, False, None or a list. Raises: Uncountable where it was not recorded."""
        text = self.concrete[index] if index < len(self.concrete) else ""
        if text in _WORDS:
            return _WORDS[text]
        try:
            # Numbers may end in a point, and lists hold Python's words.
            return msgspec.json.decode(text.replace("True", "true").replace("False", "false").rstrip("."))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise Uncountable(f"the value of input {index} is not recorded") from None

    def integers(self, index: int, length: int) -> Shape:
        """A list of whole numbers, spread out where one stands for all dimensions. Raises: Uncountable."""
        found = self.value(index)
        if isinstance(found, list) and len(found) in (1, length) and is_shape(tuple(found)):
            return tuple(found) * (length // len(found))
        raise Uncountable(f"input {index} is no list of {length} whole numbers")

    def integer(self, index: int) -> int:
        """A whole number. Raises: Uncountable."""
        found = self.value(index)
        if isinstance(found, int) and not isinstance(found, bool):
            return found
        raise Uncountable(f"input {index} is no whole number")

    def flag(self, index: int) -> bool:
        """True or False. Raises: Uncountable."""
        found = self.value(index)
        if isinstance(found, bool):
            return found
        raise Uncountable(f"input {index} is neither True nor False")


_WORDS: Final = {"True": True, "False": False, "None": None}


def is_shape(found: Any) -> TypeGuard[Shape]:
    """Whether a value is sizes, each of them one that a tensor can have."""
    return isinstance(found, tuple) and all(type(size) is int and 0 <= size < _LARGEST for size in found)


def elements(shape: Shape) -> int:
    """Number of elements.

    >>> elements((2, 3)), elements(())
    (6, 1)
    """
    return prod(shape)


def read_call(name: str, dims: str | None, types: str | None, concrete: str | None) -> OpCall:
    """A call from the texts of a trace, whatever they hold.

    >>> read_call("aten::mm", "[[4, 8], [8, 2]]", '["float", "float"]', '["", ""]').shape(1)
    (8, 2)
    >>> read_call("aten::mm", None, None, None).shapes
    ()
    """
    texts = [tuple(each if isinstance(each, str) else "" for each in _listed(text)) for text in (types, concrete)]
    return OpCall(name, tuple(_frozen(each) for each in _listed(dims)), *texts)


def _listed(text: str | None) -> Sequence[Any]:
    if text is None:
        return ()
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ()
    return found if isinstance(found, list) else ()


def _frozen(value: Any, depth: int = 2) -> Any:
    """Lists as tuples; what is deeper or longer than a list of shapes is None."""
    if not isinstance(value, list):
        return value if type(value) is int else None
    if not depth:
        return None
    return tuple(_frozen(each, depth - 1) for each in value)
