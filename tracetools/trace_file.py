"""The contract between collectors and analyzer: file names, range names and metadata keys. Standard library only."""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

SCHEMA_VERSION: Final = 1

METADATA_KEY: Final = "tracetools"
"""Top-level key of a trace under which our collectors write what they know before it starts (rank, stage, ...)."""

MEASURED_KEY: Final = "tracetools_measured"
"""Top-level key after the events: what is known once the recording has ended (cost, clocks, whether it is whole)."""

MODULE_RANGE: Final = "tracetools.module "
"""A module's forward is a range named ``tracetools.module <fully qualified name> <package.Class>``."""

STEP_RANGE: Final = "tracetools.step "
"""A training step is a range named ``tracetools.step <number>``."""

PIPELINE_RANGE: Final = "tracetools.pipeline "
"""Work of a pipeline schedule is a range ``tracetools.pipeline forward stage=2 micro_batch=5``."""

ROOT: Final = "(root)"
"""Fully qualified name of the model itself."""

MANIFEST_ENDING: Final = ".manifest.json"

# Of printable ASCII all but what Kineto changes and what stands between two parts.
_PLAIN: Final = "!#$&'()*+,-./:;<=>?@[]^_`{|}~"
_OWN_FILE: Final = re.compile(r"rank-(\d{5,7})(?:\.structure)?(?:\.trace\.json\.gz|\.manifest\.json)", re.ASCII)
_PIPELINE: Final = re.compile(re.escape(PIPELINE_RANGE) + r"(\w+) stage=(\d{1,9})(?: micro_batch=(\d{1,9}))?", re.ASCII)
KINETO_MODULE: Final = "nn.Module: "
KINETO_STEP: Final = re.compile(r"ProfilerStep\s*#(\d{1,18})(?!\d)", re.ASCII)
_OWN_STEP: Final = re.compile(re.escape(STEP_RANGE) + r"(\d{1,18})", re.ASCII)


class Pass(enum.StrEnum):
    """What a trace was recorded for: times, with nothing that disturbs them; or structure, with Python stacks."""

    TIMING = "timing"
    STRUCTURE = "structure"


class PipelineRange(NamedTuple):
    """One piece of work of a pipeline schedule. micro_batch: None where the work is of all of them."""

    work: str
    stage: int
    micro_batch: int | None


def trace_file_name(rank: int, recorded: Pass = Pass.TIMING) -> str:
    """Name under which a rank writes its trace.

    >>> trace_file_name(3), trace_file_name(3, Pass.STRUCTURE)
    ('rank-00003.trace.json.gz', 'rank-00003.structure.trace.json.gz')
    """
    return f"rank-{rank:05d}{'' if recorded is Pass.TIMING else f'.{recorded}'}.trace.json.gz"


def manifest_name(rank: int) -> str:
    """Name under which a rank says what it recorded and why.

    >>> manifest_name(3)
    'rank-00003.manifest.json'
    """
    return f"rank-{rank:05d}{MANIFEST_ENDING}"


def rank_of_file(name: str) -> int | None:
    """Rank of a file that a collector wrote, by its name; None for any other file.

    >>> rank_of_file("rank-00003.manifest.json"), rank_of_file("rank-00003.trace.json.gz"), rank_of_file("rank-3.json")
    (3, 3, None)
    """
    found = _OWN_FILE.fullmatch(name)
    return int(found.group(1)) if found else None


def pipeline_range_name(work: str, stage: int, micro_batch: int | None) -> str:
    """Name of the range around one piece of work of a pipeline schedule.

    >>> pipeline_range_name("forward", 2, 5)
    'tracetools.pipeline forward stage=2 micro_batch=5'
    """
    of_one = "" if micro_batch is None else f" micro_batch={micro_batch}"
    return f"{PIPELINE_RANGE}{work} stage={stage}{of_one}"


def parse_pipeline_range(name: str) -> PipelineRange | None:
    """What a pipeline range says, or None for any other name.

    >>> parse_pipeline_range("tracetools.pipeline optimizer_step stage=1")
    PipelineRange(work='optimizer_step', stage=1, micro_batch=None)
    >>> parse_pipeline_range("aten::mm") is None
    True
    """
    found = _PIPELINE.fullmatch(name)
    if found is None:
        return None
    work, stage, micro_batch = found.groups()
    return PipelineRange(work, int(stage), None if micro_batch is None else int(micro_batch))


def module_range_name(qualified_name: str, class_name: str) -> str:
    """Name of the range around one module's forward.

    Kineto drops or changes what is not printable ASCII, and quotes and backslashes; those are written as in a URL.

    >>> module_range_name("blocks.0.attn", "torch.nn.modules.linear.Linear")
    'tracetools.module blocks.0.attn torch.nn.modules.linear.Linear'
    >>> module_range_name("a b", "my.Block")
    'tracetools.module a%20b my.Block'
    """
    return f"{MODULE_RANGE}{_quoted(qualified_name) or ROOT} {_quoted(class_name)}"


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
    return unquote(qualified) or ROOT, unquote(class_name)


def _quoted(name: str) -> str:
    return quote(name, safe=_PLAIN, errors="replace")


def parse_step(name: str) -> int | None:
    """Step number of a step range (``ProfilerStep#7`` or our own), or None; a number has at most 18 digits.

    >>> parse_step("ProfilerStep#7"), parse_step("tracetools.step 8"), parse_step("aten::mm")
    (7, 8, None)
    >>> parse_step("ProfilerStep#" + 30 * "9") is None
    True
    """
    found = KINETO_STEP.match(name) or _OWN_STEP.fullmatch(name)
    return int(found.group(1)) if found else None
