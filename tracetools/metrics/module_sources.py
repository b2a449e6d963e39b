"""Where the source of each module's forward lies. In: `Structure`. Out: `file.py:18` by module path.

A trace with Python stacks has the forward of the class as a frame inside each module call, its line that of the `def`:

    {"cat": "cpu_op", "name": "tracetools.module blocks.0.attn model.Attention", …}
      {"cat": "python_function", "name": "train/model.py(18): forward", …}
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracetools.attribution.structure import Structure
from tracetools.table import Kind
from tracetools.timeline.tree import nearest_ancestor

_FORWARD: Final = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): forward")


def find_module_sources(structure: Structure) -> dict[str, str]:
    """File and line of the outermost `forward` in each module's first call that has one.

    Left out: modules of a trace without Python stacks, and those whose forward is not Python or has another name.
    """
    trace, modules = structure.trace, structure.modules
    frames = np.equal(trace.events.kind, Kind.PYTHON) & trace.named(lambda name: _FORWARD.fullmatch(name) is not None)
    # The module call around each frame, unless another forward lies between the two.
    around = nearest_ancestor(structure.tree.parent, frames | modules.is_call)
    found: dict[str, str] = {}
    for row in structure.tree.order[frames[structure.tree.order]].tolist():
        call = int(around[row])
        if call >= 0 and modules.is_call[call] and modules.place[call] >= 0:
            found.setdefault(modules.path(int(modules.place[call])), _source(trace.strings[trace.events.name[row]]))
    return found


def _source(frame: str) -> str:
    """In the form that editors open.

    >>> _source("train/model.py(18): forward")
    'train/model.py:18'
    """
    parts = _FORWARD.fullmatch(frame)
    return f"{parts['file']}:{parts['line']}" if parts else frame
