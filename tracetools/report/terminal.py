"""The report that people read. In: an analysis and what to show of it. Out: text, answers first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tracetools.report.line import Line
from tracetools.report.sections import annotations as ranges
from tracetools.report.sections import autograd, findings, flops, gpu, headline, launches, modules, ops, steps
from tracetools.report.view import Section, View
from tracetools.results import Analysis

RENDERERS: Final[dict[Section, Callable[[Analysis, View], list[Line]]]] = {
    Section.GPU: gpu.render,
    Section.MODULES: modules.render,
    Section.FLOPS: flops.render,
    Section.STEPS: steps.render,
    Section.OPS: ops.render,
    Section.ANNOTATIONS: ranges.render,
    Section.AUTOGRAD: autograd.render,
    Section.LAUNCHES: launches.render,
    Section.FINDINGS: findings.render,
}


def render(analysis: Analysis, view: View) -> str:
    """The whole report; sections stand in a fixed order, an empty line before each."""
    blocks = [headline.render(analysis, view)]
    blocks += [draw(analysis, view) for section, draw in RENDERERS.items() if section in view.sections]
    texts = ["\n".join(line.render(view.color) for line in block) for block in blocks if block]
    return "\n\n".join(texts) + "\n"
