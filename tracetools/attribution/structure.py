"""All structure of one trace in one value, for the metrics to read. In: `Trace`. Out: `Structure`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracetools.attribution.modules import Modules, attribute_modules, find_module_calls
from tracetools.attribution.phases import Code, PhaseArray, attribute_phases
from tracetools.table import BoolArray, IntArray, Trace
from tracetools.timeline.autograd import AutogradLinks, link_autograd
from tracetools.timeline.gpu_work import GpuWork, find_gpu_work
from tracetools.timeline.launches import LaunchLinks, link_launches
from tracetools.timeline.steps import Steps, find_steps
from tracetools.timeline.tree import Tree, build_tree


@dataclass(frozen=True, slots=True)
class Structure:
    """Trace, tree and links, with phase and step.

    phase: per row (see `Code`). step: per row, position of its step by its start, -1 for none.
    work_phase, work_place, work_step: the same per piece of GPU work, from the CPU span that launched it; OTHER and -1
    where no launch is known. chosen, work_chosen: rows and work inside the steps asked for (all, if none were).
    """

    trace: Trace
    tree: Tree
    work: GpuWork
    launches: LaunchLinks
    autograd: AutogradLinks
    steps: Steps
    modules: Modules
    phase: PhaseArray
    step: IntArray
    work_phase: PhaseArray
    work_place: IntArray
    work_step: IntArray
    chosen: BoolArray
    work_chosen: BoolArray


def build_structure(trace: Trace, chosen_steps: tuple[int, ...] | None = None) -> Structure:
    """Nest, link and attribute one trace; with `chosen_steps` only what was started or launched in them is chosen."""
    tree = build_tree(trace)
    work = find_gpu_work(trace)
    launches = link_launches(trace, tree, work)
    autograd = link_autograd(trace, tree)
    steps = find_steps(trace)
    is_call, qualified = find_module_calls(trace)
    phase = attribute_phases(trace, tree, autograd, is_call)
    modules = attribute_modules(trace, tree, autograd, phase, is_call, qualified)
    step = steps.index_at(trace.events.ts_ns)
    work_step = _of_owner(step, launches.owner, -1)
    return Structure(
        trace=trace,
        tree=tree,
        work=work,
        launches=launches,
        autograd=autograd,
        steps=steps,
        modules=modules,
        phase=phase,
        step=step,
        work_phase=_of_owner(phase.astype(np.int64), launches.owner, Code.OTHER).astype(np.uint8),
        work_place=_of_owner(modules.place, launches.owner, -1),
        work_step=work_step,
        chosen=_in_steps(steps, step, chosen_steps),
        work_chosen=_in_steps(steps, work_step, chosen_steps),
    )


def _of_owner(values: IntArray, owner: IntArray, otherwise: int) -> IntArray:
    result = np.full(len(owner), otherwise, np.int64)
    known = owner >= 0
    result[known] = values[owner[known]]
    return result


def _in_steps(steps: Steps, step: IntArray, chosen: tuple[int, ...] | None) -> BoolArray:
    if chosen is None:
        return np.ones(len(step), bool)
    return np.isin(step, np.flatnonzero(np.isin(steps.number, list(chosen))))
