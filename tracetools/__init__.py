"""tracetools: where the time and the FLOPs of a PyTorch training job went.

import tracetools

run = tracetools.load("traces/")
run.modules()   # a DataFrame: one row per module and rank
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Run", "TracetoolsError", "UsageError", "__version__", "load"]

if TYPE_CHECKING:
    from tracetools.errors import TracetoolsError, UsageError
    from tracetools.run import Run, load

_HOME = {
    "Run": "tracetools.run",
    "load": "tracetools.run",
    "TracetoolsError": "tracetools.errors",
    "UsageError": "tracetools.errors",
}


def __getattr__(name: str) -> Any:
    """Load the public names on first use, so that `tracetools --help` does not pay for numpy."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
