"""The samples: their READMEs, the figures worked out from raw JSON, and what tracetools makes of them."""

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

import tracetools

SAMPLES = Path(__file__).parent.parent / "samples"
NAMES = sorted(path.name for path in SAMPLES.iterdir() if list(path.glob("*.json.gz")))
GPU_NAMES = ["llama_tp2", "resnet_checkpoint_mi300x"]
MODULE_NAMES = ["ddp_gpt_cpu", "resnet_checkpoint_mi300x"]


def load_check():
    spec = importlib.util.spec_from_file_location("samples_check", SAMPLES / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHECK = load_check()


@cache
def analysis(name):
    return tracetools.load(SAMPLES / name).analysis


def ranks(name):
    """Pairs of (rank, figures by hand)."""
    files = CHECK.recorded(name)
    ranks = {Path(row.path).name: row.rank for row in analysis(name).inputs}
    return [(ranks[file], figures) for file, figures in files.items()]


def leaves(tree):
    return [leaf for value in tree.values() for leaf in (leaves(value) if isinstance(value, dict) else [value])]


@pytest.mark.parametrize("name", NAMES)
def test_readme_names_source_and_licence(name):
    text = (SAMPLES / name / "README.md").read_text()
    assert "**Source:**" in text
    assert re.search(r"\*\*Licence:\*\* (MIT|Apache-2\.0)", text)
    if "MIT" in text:
        assert "Copyright (c)" in (SAMPLES / name / "LICENSE").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_every_result_in_a_readme_is_a_recorded_figure(name):
    text = (SAMPLES / name / "README.md").read_text()
    results = {int(number.replace(",", "")) for number in re.findall(r"(\d{1,3}(?:,\d{3})+) ns", text)}
    assert results
    assert results <= set(leaves(CHECK.recorded(name)))


@pytest.mark.parametrize("name", NAMES)
def test_recorded_figures_follow_from_the_raw_traces(name):
    assert CHECK.derive(name) == CHECK.recorded(name)


@pytest.mark.parametrize("name", NAMES)
def test_no_trace_names_the_machine_that_recorded_it(name):
    for path in (SAMPLES / name).glob("*.json.gz"):
        assert not re.search(rb'"/(tmp|home|root|usr|opt)/[^"]*\(\d+\)', CHECK.gzip.decompress(path.read_bytes()))


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_read_whole(name):
    assert {row.status for row in analysis(name).inputs} == {"read"}
    for rank, figures in ranks(name):
        [row] = [row for row in analysis(name).inputs if row.rank == rank]
        assert row.events == figures["events"]["complete_events"]


@pytest.mark.parametrize("name", MODULE_NAMES)
def test_steps(name):
    for rank, figures in ranks(name):
        found = {str(row.step): row.wall_ns for row in analysis(name).steps if row.rank == rank}
        assert found == figures["steps"]


@pytest.mark.parametrize("name", GPU_NAMES)
def test_gpu(name):
    for rank, figures in ranks(name):
        [row] = [row for row in analysis(name).gpu if row.rank == rank and row.step is None]
        assert {field: getattr(row, field) for field in figures["gpu"]} == figures["gpu"]


def test_no_gpu_row_without_gpu_records():
    assert not analysis("ddp_gpt_cpu").gpu


@pytest.mark.parametrize("name", GPU_NAMES)
def test_launches(name):
    for rank, figures in ranks(name):
        [row] = [row for row in analysis(name).launches if row.rank == rank]
        found = {
            "count": row.count,
            "kernels_without_launch": row.kernels_without_launch,
            "run_ahead_max_ns": row.run_ahead_ns.max,
            "started_before_launch": row.started_before_launch,
        }
        assert found == figures["launches"]
        assert row.without_kernel == 0


@pytest.mark.parametrize("name", MODULE_NAMES)
def test_modules(name):
    for rank, figures in ranks(name):
        for label, expected in figures["modules"].items():
            [row] = [row for row in analysis(name).modules if row.rank == rank and row.path.rsplit("/", 1)[-1] == label]
            found = {
                "forward_calls": row.calls,
                "forward_cpu_ns": row.forward.cpu_ns,
                "recompute_calls": row.recompute.calls,
                "recompute_cpu_ns": row.recompute.cpu_ns,
                "backward_cpu_ns": row.backward.cpu_ns,
            }
            assert {key: found[key] for key in found if key in expected} == {
                key: expected[key] for key in expected if key in found
            }, label


@pytest.mark.parametrize("name", MODULE_NAMES)
def test_autograd_nodes(name):
    for rank, figures in ranks(name):
        found = {}
        for row in analysis(name).autograd:
            if row.rank == rank:
                found[row.backward_op] = found.get(row.backward_op, 0) + row.calls
        assert found == figures["nodes"]
