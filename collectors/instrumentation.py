"""What has to be around a training before a profiler runs: names of modules, ranges of schedules, the layout.

In: what is alive, or the models given. Out: ranges in the trace, and the metadata of the trace.
"""

from __future__ import annotations

import platform
import socket
from collections import Counter
from contextlib import ExitStack
from typing import Any, Final

import torch

from collectors.frameworks.transformer_engine import nvtx_ranges
from collectors.launcher import Process
from collectors.model_facts import model_facts
from collectors.models import MODULE, Models, find_models
from collectors.module_ranges import ModuleRanges
from collectors.options import Options
from collectors.parallel_layout import find_layout, frameworks_in_use, look_for_layout
from tracetools.trace_file import SCHEMA_VERSION

_MOST_NAMES: Final = 50


class Instrumentation:
    """Put on once, taken off once. models: those given, else those found; empty before it is put on.

    layout: the metadata that holds for all passes. Nothing of the environment is in it.
    """

    def __init__(self, options: Options, process: Process, given: Models | None) -> None:
        self._options = options
        self._process = process
        self._given = given
        self._around = ExitStack()
        self._ranges: ModuleRanges | None = None
        self.is_on = False
        self.models: Models = {}
        self.layout: dict[str, Any] = {}

    def put_on(self) -> None:
        """Look around, and open everything that writes ranges."""
        self.is_on = True
        alive = look_for_layout()
        layout = find_layout(alive, self._process)
        self.models = find_models(alive.of(MODULE), layout.models) if self._given is None else self._given
        if self._options.module_ranges and self.models:
            self._ranges = self._around.enter_context(ModuleRanges(self.models))
        for framework in frameworks_in_use():
            if framework.ranges is not None:
                self._around.enter_context(framework.ranges())
        if self._options.nvtx:
            self._around.enter_context(nvtx_ranges())
        self.layout = {
            "schema_version": SCHEMA_VERSION,
            **layout.metadata,
            "host": socket.gethostname(),
            "device": _device(),
            "model": model_facts(self.models),
            "module_ranges": _described(self._ranges),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }

    def take_off(self) -> None:
        """Everything as it was."""
        self._around.close()
        self.models = {}
        self._given = None

    def never_called(self) -> dict[str, Any]:
        """Modules that were never called through their forward: how many, and the first of them."""
        unused = self._ranges.never_called() if self._ranges is not None else ()
        return {"count": len(unused), "first": list(unused[:_MOST_NAMES])}


def _described(ranges: ModuleRanges | None) -> dict[str, Any] | None:
    if ranges is None:
        return None
    return {
        "named": len(ranges.names),
        "left_out": dict(Counter(ranges.left_out.values())),
        "first_left_out": list(ranges.left_out)[:_MOST_NAMES],
    }


def _device() -> str | None:
    """The GPU of this process, as `cuda:0 NVIDIA H200`; None on a machine without."""
    if not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device()
    return f"cuda:{index} {torch.cuda.get_device_name(index)}"
