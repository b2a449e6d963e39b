"""The contract between collectors and analyzer: file names, range names and metadata keys. Standard library only."""

from __future__ import annotations

import re
from typing import Final

SCHEMA_VERSION: Final = 1

METADATA_KEY: Final = "tracetools"
"""Top-level key of a trace under which our collectors write their own facts (rank, host, stage, ...)."""

MODULE_RANGE: Final = "tracetools.module "
"""A module's forward is a range named ``tracetools.module <fully qualified name> <package.Class>``."""

STEP_RANGE: Final = "tracetools.step "
"""A training step is a range named ``tracetools.step <number>``."""

ROOT: Final = "(root)"
"""Fully qualified name of the model itself."""

KINETO_MODULE: Final = "nn.Module: "
KINETO_STEP: Final = re.compile(r"ProfilerStep\s*#(\d{1,18})(?!\d)", re.ASCII)
_OWN_STEP: Final = re.compile(re.escape(STEP_RANGE) + r"(\d{1,18})", re.ASCII)


def trace_file_name(rank: int) -> str:
    """Name under which a rank writes its trace.

    >>> trace_file_name(3)
    'rank-00003.trace.json.gz'
    """
    return f"rank-{rank:05d}.trace.json.gz"


def module_range_name(qualified_name: str, class_name: str) -> str:
    """Name of the range around one module's forward.

    >>> module_range_name("blocks.0.attn", "torch.nn.modules.linear.Linear")
    'tracetools.module blocks.0.attn torch.nn.modules.linear.Linear'
    """
    return f"{MODULE_RANGE}{qualified_name or ROOT} {class_name}"


def parse_module_range(name: str) -> tuple[str, str] | None:
    """Fully qualified name and class of a module range, or None for any other name.

    >>> parse_module_range("tracetools.module blocks.0 my.Block")
    ('blocks.0', 'my.Block')
    >>> parse_module_range("aten::mm") is None
    True
    """
    if not name.startswith(MODULE_RANGE):
        return None
    qualified, _, class_name = name[len(MODULE_RANGE) :].partition(" ")
    return qualified or ROOT, class_name


def parse_step(name: str) -> int | None:
    """Step number of a step range (``ProfilerStep#7`` or our own), or None; a number has at most 18 digits.

    >>> parse_step("ProfilerStep#7"), parse_step("tracetools.step 8"), parse_step("aten::mm")
    (7, 8, None)
    >>> parse_step("ProfilerStep#" + 30 * "9") is None
    True
    """
    found = KINETO_STEP.match(name) or _OWN_STEP.fullmatch(name)
    return int(found.group(1)) if found else None
