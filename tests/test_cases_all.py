"""Every case loads or is refused in one sentence; none is left out in silence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.case import CASES, NAMES, load
from tests.test_invariants import check_invariants
from tracetools.errors import TracetoolsError

WAITING: dict[str, str] = {
    "base_time_differs": "merge: one base",
    "bwd_flops_measured": "flops",
    "causal_attention": "flops: causal convention",
    "clock_skew_hosts": "clock alignment",
    "coalesced_no_metadata": "collectives",
    "cpu_pid_zero": "merge: no pid or tid 0",
    "cuda_graph_replay": "launch gaps",
    "cuda_sync_not_kernel": "causes of idle time",
    "dispatch_mode_double": "flops",
    "display_unit_trap": "flops",
    "flow_id_collision": "merge: arrows and pids",
    "flow_outside_slice": "merge: arrows re-stamped",
    "gpu_bound_no_gap": "launch gaps, depth of the queue",
    "interleaved_virtual_stages": "pipeline: rows of virtual stages",
    "kernel_without_launch": "depth of the queue",
    "moe_grouped_mm": "flops",
    "negative_duration": "merge: no negative length",
    "old_abs_us": "merge: one base",
    "pdl_overlap": "merge: second lane",
    "pipeline_1f1b_bubble": "pipeline: grid and bubbles",
    "profilerstep_crossing": "merge: second lane",
    "recompute_reentrant": "flops",
    "shared_module_two_parents": "flops",
    "stage_unknown_pg": "stages from who sends to whom",
    "te_launch_bound": "launch gaps and verdict",
    "te_linear_no_gemm_op": "flops from module input shapes",
    "uint64_comms_id": "collectives",
}
"""What of a case waits for a later capability; the rest of its text is tested."""


def cases_with_a_test() -> set[str]:
    """Cases that a test function is named after."""
    sources = (path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_cases_*.py"))
    return {name for source in sources for name in re.findall(r"^def test_(\w+)\(", source, re.MULTILINE)} & set(NAMES)


def test_no_case_is_left_out():
    assert len(NAMES) == 61
    assert sorted(cases_with_a_test() | set(WAITING)) == NAMES


def test_every_case_says_what_is_right():
    headings = {name: (CASES / name / "expected.md").read_text(encoding="utf-8").split("\n")[0] for name in NAMES}
    assert headings == {name: f"# {name}" for name in NAMES}


SECTIONS = ("inputs", "modules", "ops", "annotations", "autograd", "steps", "gpu", "launches", "findings")
REFUSED = {"interleaved_writers", "no_rank_two_files", "premerged_input"}


@pytest.mark.parametrize("name", sorted(set(NAMES) - REFUSED))
def test_loads(name: str):
    analysis = load(name).analysis
    assert analysis.inputs
    check_invariants(analysis)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_is_refused_in_one_sentence(name: str):
    with pytest.raises(TracetoolsError, match=r"trace\.json|merged-by-another-tool\.json") as refusal:
        load(name)
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize("name", sorted(set(NAMES) - REFUSED))
def test_tables_hold_the_rows(name: str):
    run = load(name)
    for section in SECTIONS:
        assert len(getattr(run, section)()) == len(getattr(run.analysis, section)), section
