"""The report that people read: answers first, nothing wider than the page, nothing foreign that acts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from tests.report import made
from tracetools.findings import Finding, Severity
from tracetools.report import terminal
from tracetools.report.view import Section, Sort, Time, View
from tracetools.results import Analysis

ALL = View(sections=tuple(Section))
HOSTILE = "[bold red]x[/]\x1b[2J\x07\ta\nb\r\x9b31m\u202e\ud800"


def rendered(analysis: Analysis, **choices: object) -> str:
    return terminal.render(analysis, replace(ALL, **choices))


def rows(text: str, title: str) -> list[str]:
    """Lines of one section below its title."""
    (block,) = [block for block in text.split("\n\n") if block.startswith(title)]
    return block.splitlines()[1:]


def test_golden_gpu_run(golden: Callable[[str, str], None]) -> None:
    golden("gpu_run.txt", rendered(made.gpu_run()))


def test_golden_cpu_run(golden: Callable[[str, str], None]) -> None:
    golden("cpu_run.txt", terminal.render(made.cpu_run(), View()))


def test_the_first_lines_name_the_costliest_module_in_backward() -> None:
    # Rank 1 is the busiest; Block_1 has 50 of 80 parts of its backward, GPT_0 only holds the blocks.
    head = rendered(made.gpu_run()).split("\n\n")[0].replace("\n", " ")
    assert "Costliest module in backward: GPT_0/Block_1 (62.5% of backward GPU busy time on rank 1, 100.00 ms" in head
    assert "Without submodules: GPT_0/Block_1 (62.5%" in head


def test_shares_of_a_rank_add_up_to_the_total() -> None:
    # Forward 40, backward 80, recompute 10, optimizer 6, unattributed 4: of 140.
    head = rendered(made.gpu_run()).split("\n\n")[0].replace("\n", " ")
    assert "forward 28.6%, backward 57.1%, recompute 7.1%, optimizer 4.3%, other 2.9%" in head


def test_without_gpu_work_the_clock_is_the_cpu_and_the_report_says_so() -> None:
    text = terminal.render(made.cpu_run(), View())
    assert "of backward CPU time on rank –" in text.replace("\n", " ")
    assert "CPU ms, submodules included" in text
    assert "No GPU work in these traces" in text


def test_time_option_shows_the_other_clock() -> None:
    assert "Modules · rank 1 · CPU ms" in rendered(made.gpu_run(), time=Time.CPU)


def test_an_absent_figure_is_a_dash_and_never_zero() -> None:
    (row,) = rows(terminal.render(made.cpu_run(), View()), "Steps")[1:]
    assert row.split() == ["–", "10", "100.00", "25.00", "30.00", "4.00", "5.00", "–"]


def test_the_tree_shows_bracketed_rows_and_indents_submodules() -> None:
    names = [line.split()[0] for line in rows(rendered(made.gpu_run()), "Modules")]
    assert names == ["module", "GPT_0", "Block_0", "Linear_0", "Block_1", "(unattributed)", "(optimizer)", "Hidden"]


def test_depth_says_what_it_hides() -> None:
    table = rows(rendered(made.gpu_run(), depth=0), "Modules")
    assert [line.split()[0] for line in table[1:4]] == ["GPT_0", "(unattributed)", "(optimizer)"]
    assert table[4] == "Hidden rows: 3 deeper than level 0 (--depth 2 shows all)"


def test_top_keeps_the_costliest_and_says_how_many_are_left_out() -> None:
    table = rows(rendered(made.gpu_run(), top=2), "Modules")
    assert [line.split()[0] for line in table[1:3]] == ["GPT_0", "Block_1"]
    assert "4 cheaper (--top 6 shows all)" in table[3]


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        (Sort.BACKWARD, "GPT_0"),
        (Sort.SELF, "GPT_0/Block_1"),
        (Sort.CPU, "GPT_0"),
        (Sort.KERNELS, "GPT_0"),
        (Sort.FLOPS, "GPT_0"),
    ],
)
def test_sort_lists_whole_paths_largest_first(sort: Sort, first: str) -> None:
    assert rows(rendered(made.gpu_run(), sort=sort), "Modules")[1].split()[0] == first


def test_module_pattern_shows_only_what_matches_and_says_so() -> None:
    table = rows(rendered(made.gpu_run(), module="*/Linear_*"), "Modules")
    assert [line.split()[0] for line in table[1:2]] == ["GPT_0/Block_0/Linear_0"]
    assert table[2] == "Only paths like */Linear_*: 1 of 6 rows"


def test_a_pattern_without_a_match_says_the_way_out() -> None:
    assert "No module path matches nothing*; try --module '*'." in rendered(made.gpu_run(), module="nothing*")


def test_picked_ranks_are_all_drawn_in_full() -> None:
    text = rendered(made.gpu_run(), full_ranks=True)
    assert "Modules · rank 0" in text
    assert "Modules · rank 1" in text
    assert "Ranks ·" not in text


def test_many_ranks_get_a_line_each_up_to_a_screen() -> None:
    text = rendered(made.gpu_run(ranks=20))
    assert "20 ranks" in text.splitlines()[0]
    assert rows(text, "Ranks")[-1] == "4 less busy ranks are hidden; --top 20 shows all"
    assert rows(text, "GPU")[-1] == "4 GPUs with less idle time are hidden; --top 20 shows all"


def test_many_steps_show_the_longest() -> None:
    steps = tuple(made.step_time(0, step, wall_ms=100 + step) for step in range(50))
    table = rows(rendered(made.analysis(modules=made.modules(), steps=steps)), "Steps")
    assert [line.split()[1] for line in table[1:-1]] == [str(step) for step in range(38, 50)]
    assert table[-1] == "38 steps, shorter or of other ranks, are hidden; --top 50 shows all"


def test_a_recording_without_steps_is_one_row() -> None:
    table = rows(rendered(made.analysis(steps=(made.step_time(0, None),))), "Steps")
    assert table[1].split()[:2] == ["0", "all"]


def test_no_modules_is_said_and_not_guessed() -> None:
    assert "No module names in these traces" in rendered(made.analysis(modules=made.modules()[-2:]))


def test_no_backward_is_said() -> None:
    only_forward = (made.module("GPT_0", forward=(5, 5, 5, 5)),)
    head = rendered(made.analysis(modules=only_forward))
    assert "No module has GPU busy time in backward in these traces." in head
    assert "Costliest module in forward: GPT_0 (100.0% of forward GPU busy time" in head


def test_a_wrapper_around_a_node_is_left_out_and_counted() -> None:
    engine = "autograd::engine::evaluate_function: "
    spent = {
        "MmBackward0": 9,
        f"{engine}MmBackward0": 9,
        f"{engine}Alone": 8,
        f"{engine}Accumulate": 7,
        "Accumulate": 1,
    }
    ops = tuple(made.op(name, ms) for name, ms in spent.items())
    table = rows(rendered(made.analysis(ops=ops, modules=made.modules())), "Ops")
    shown = [line.rpartition(" backward ")[0].strip() for line in table[1:-1]]
    assert shown == ["MmBackward0", f"{engine}Alone", f"{engine}Accumulate", "Accumulate"]
    assert table[-1].startswith("1 row of autograd::engine::evaluate_function left out")


def test_findings_come_worst_first_with_counts_and_ranks() -> None:
    findings = rows(rendered(made.gpu_run()), "Findings")
    assert findings[0].startswith("warning work_without_launch ×2 on ranks 0-1: 1 kernel has no launch")
    assert findings[1].startswith("note clipped ×3 on rank 0: 3 spans cross others")


def test_unreadable_and_partial_files_are_named_at_the_top() -> None:
    inputs = (made.input_row(0), made.input_row(None, "unreadable", "b.json"), made.input_row(1, "partial", "c.json"))
    head = rendered(made.analysis(inputs=inputs, modules=made.modules())).splitlines()
    assert head[0].startswith("tracetools 9.9.9 · 2 ranks")
    assert head[1] == "1 file could not be read: b.json; see the findings"
    assert head[2] == "1 file could be read only in part: c.json; see the findings"


def hostile_run() -> Analysis:
    """A foreign name in every place that a trace can put one."""
    module = made.module(HOSTILE, forward=(5, 5, 5, 5), backward=(5, 5, 5, 5))
    return made.analysis(
        inputs=(made.input_row(0, "partial", HOSTILE, HOSTILE),),
        modules=(module, *made.modules()[-2:]),
        ops=(made.op(HOSTILE, 3),),
        annotations=tuple(msgspec.structs.replace(row, name=HOSTILE) for row in made.gpu_run(1).annotations),
        autograd=tuple(
            msgspec.structs.replace(row, forward_op=HOSTILE, backward_op=HOSTILE) for row in made.gpu_run(1).autograd
        ),
        findings=(Finding("rule", Severity.ERROR, f"odd name {HOSTILE}", 1, 0, None, (HOSTILE,)),),
    )


def test_foreign_names_do_nothing_but_stand_there() -> None:
    text = rendered(hostile_run())
    assert all(char.isprintable() or char == "\n" for char in text)
    assert r"[bold red]x[/]\x1b[2J\x07\ta\nb\r\x9b31m\u202e\ud800" in text.replace("\n    ", "")
    text.encode("utf-8")


def test_no_line_is_wider_than_the_page() -> None:
    long = "GPT_0/" + "/".join(f"VeryLongModuleClassName_{index}" for index in range(9))
    wide = made.analysis(
        modules=(made.module(long, backward=(9, 9, 9, 9), parent=""), *made.modules(scale=1_000_000)),
        ops=(made.op("void kernel<" + "x" * 500 + ">", 10**6),),
        steps=(made.step_time(0, 10, 10**7),),
        findings=(Finding("rule", Severity.NOTE, "word " * 100 + "y" * 300),),
    )
    for run in (wide, made.gpu_run(20), hostile_run()):
        assert max(map(len, rendered(run).splitlines())) <= 100


def test_colour_changes_no_character_of_the_text() -> None:
    plain, coloured = rendered(made.gpu_run()), rendered(made.gpu_run(), color=True)
    assert "\x1b[" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
