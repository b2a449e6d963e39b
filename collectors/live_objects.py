"""What a script has made: its modules, meshes, engines. In: names of classes. Out: `LiveObjects`.

The command line is given a script, not a model. Python's garbage collector knows every object of the process, so what
the script made is found without a hook in anything that it calls.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable
from typing import Any


class LiveObjects:
    """All living objects of some classes and of their subclasses, found once.

    Objects that were made before `gc.freeze()` are not seen.

    >>> class Engine: ...
    >>> engine = Engine()
    >>> LiveObjects([f"{__name__}.Engine"]).of(f"{__name__}.Engine") == [engine]
    True
    """

    def __init__(self, wanted: Iterable[str]) -> None:
        self._found: defaultdict[str, list[Any]] = defaultdict(list)
        names = frozenset(wanted)
        known: dict[type, tuple[str, ...]] = {}
        for each in gc.get_objects():
            # Not isinstance: a proxy answers for its `__class__` by running code of the script.
            kind = type(each)
            if (bases := known.get(kind)) is None:
                bases = known[kind] = _bases_among(kind, names)
            for name in bases:
                self._found[name].append(each)

    def of(self, name: str) -> list[Any]:
        """Objects of a class, in the order in which they were made as far as Python keeps it."""
        return list(self._found.get(name, ()))


def _bases_among(kind: type, names: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for base in kind.__mro__ if (name := f"{base.__module__}.{base.__qualname__}") in names)
