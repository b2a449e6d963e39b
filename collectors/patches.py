"""Replaces something of a framework for the time of a recording, and puts it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_ABSENT: Final = object()


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """`owner.name` is `new` inside the block; afterwards it is what it was, unless somebody else has changed it since.

    >>> import types
    >>> room = types.SimpleNamespace(light="off")
    >>> with replaced(room, "light", "on"):
    ...     room.light
    'on'
    >>> room.light
    'off'
    """
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, new)
    try:
        yield
    finally:
        if vars(owner).get(name, _ABSENT) is new:
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
