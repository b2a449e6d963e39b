"""The command `tracetools`: parses, calls, prints, and turns an error into an exit code. Figures are made elsewhere.

What needs numpy is imported by the command that uses it, so that `--help` and wrong usage answer at once.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from tracetools.errors import TracetoolsError, UsageError
from tracetools.findings import Severity
from tracetools.report import files
from tracetools.report.names import printable
from tracetools.report.view import DEFAULT_SECTIONS, MIN_WIDTH, WIDTH, Section, Sort, Time, View
from tracetools.settings import Settings

if TYPE_CHECKING:
    from tracetools.results import Analysis

STRICT_EXIT: Final = 1
INTERRUPTED_EXIT: Final = 130

_MAX_WIDTH: Final = 160
_MOST_NUMBERS: Final = 1_000_000
_NUMBERS = re.compile(r"(\d+)(?:-(\d+))?")
_FILE_RANK = re.compile(r"(?P<file>.+)=(?P<rank>\d+)", re.DOTALL)

# Typer brings the classes of click along, as a dependency or inside itself, and names only the leaf of this tree.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Format(enum.StrEnum):
    """What goes to stdout."""

    TABLE = "table"
    JSON = "json"


class Rules(enum.StrEnum):
    """By whose rules FLOPs are counted."""

    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"
    FLOPCOUNTER = "flopcounter"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; every error of the caller's becomes one or few lines on stderr and an exit code.

    Exit codes: 0 done, 1 --strict and a finding of severity error, 2 wrong usage or nothing readable, 130 interrupted.
    """
    try:
        code = int(app(arguments, standalone_mode=False, prog_name="tracetools") or 0)
    except TracetoolsError as error:
        return _complain(str(error), error.exit_code)
    except _CommandLineError as error:
        return _complain(_usage(error), UsageError.exit_code)
    except OSError as error:
        return _complain(_os_error(error), TracetoolsError.exit_code)
    except MemoryError:
        return _complain("out of memory; try --workers 1, or fewer files at a time", TracetoolsError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED_EXIT
    return _complain("interrupted", code) if code == INTERRUPTED_EXIT else code


def _usage(error: Exception) -> str:
    message: str = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tracetools"
    return f"{message.rstrip('.')}; see {command} --help"


def _os_error(error: OSError) -> str:
    reason = error.strerror or type(error).__name__
    return f"{error.filename}: {reason}; check the path and its permissions" if error.filename else reason


def _complain(message: str, code: int) -> int:
    for line in message.splitlines():
        print(f"tracetools: {printable(line)}", file=sys.stderr)
    return code


def _show_version(wanted: bool) -> None:
    if wanted:
        from tracetools import __version__

        print(f"tracetools {__version__}")
        raise typer.Exit


@app.callback()
def _tracetools(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Where the time of a PyTorch training job went, from its torch.profiler traces."""


@app.command()
def analyze(
    paths: Annotated[list[str], typer.Argument(metavar="PATHS", help="Trace files, folders, globs or archives.")],
    output: Annotated[Format, typer.Option("--format", help="What to print on stdout.")] = Format.TABLE,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write analysis.json and a CSV file per table into DIR.")
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(metavar="N|A-B|N,N", help="Analyze only these steps. Repeatable. Default: all steps, pooled."),
    ] = None,
    rank: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|A-B|FILE=N",
            help="Analyze only these ranks, each drawn in full; FILE=N says that FILE is of rank N. Repeatable.",
        ),
    ] = None,
    rank_from_name: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Read the rank from the file's name: the first group of REGEX."),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Deepest level of modules shown, 0: roots. Default: what fits a screen."),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(metavar="GLOB", help="Show only modules whose whole path matches, as '*/Linear_*'."),
    ] = None,
    sort: Annotated[
        Sort, typer.Option(help="List modules by this figure, largest first; path draws the tree.")
    ] = Sort.PATH,
    top: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most rows of each table.")] = None,
    time: Annotated[
        Time | None, typer.Option(help="Time modules by this clock. Default: gpu where there is GPU work, else cpu.")
    ] = None,
    section: Annotated[
        list[Section] | None,
        typer.Option(help="Print only this section. Repeatable. Default: gpu, modules, steps, ops, findings."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes to read with. Default: by size.")
    ] = None,
    convention: Annotated[
        Rules, typer.Option(help="By whose rules the FLOPs of attention are counted; see docs/flops.md.")
    ] = Rules.TORCHTITAN,
    peak: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE=FLOP/S", help="The device's peak, dense, as bf16=989T. Repeatable. Default: as listed for it."
        ),
    ] = None,
    flops: Annotated[
        list[str] | None,
        typer.Option("--flops", metavar="FILE", help="Python file that registers FLOP formulas of your own ops."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if any finding is an error.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colour, as with NO_COLOR set.")] = False,
) -> int:
    """Say where the time went: GPU busy and idle, modules in forward, backward and recompute, steps, ops, doubts.

    The table is in ms unless a header says otherwise; a figure that could not be worked out is shown as –. JSON and CSV
    are in integer ns, with null or an empty cell for such a figure; they hold every row, whatever the table shows.

    \b
    Examples:
      tracetools analyze traces/                        every trace of a folder
      tracetools analyze traces/ --step 10-12           three steps only
      tracetools analyze traces/ --rank 3 --depth 6     one rank, more levels of modules
      tracetools analyze traces/ --sort backward --top 10
      tracetools analyze traces/ --module '*/Attention_*'
      tracetools analyze a.json b.json --rank a.json=0 --rank b.json=1
      tracetools analyze traces/ --peak bf16=989T --convention megatron
      tracetools analyze traces/ --format json > analysis.json

    \b
    Exit codes:
      0    done, with or without findings
      1    done, but --strict was given and a finding is an error
      2    wrong usage, or nothing could be read
      130  interrupted
    """  # noqa: D301  (the backspace tells typer to keep the lines of a paragraph apart)
    from tracetools.flops.peaks import parse_peaks

    ranks = parse_ranks(rank or [])
    steps = parse_steps(step or [])
    if out is not None:
        files.prepare_folder(out)
    settings = Settings(
        steps=steps,
        ranks=ranks.selected or None,
        rank_of=ranks.of_file,
        rank_from_name=rank_from_name,
        workers=workers,
        convention=convention.value,
        peaks=parse_peaks(peak or []),
        flops=tuple(flops or ()),
    )
    analysis = _load(paths, settings)
    view = View(
        sections=tuple(section) if section else DEFAULT_SECTIONS,
        depth=depth,
        top=top,
        sort=sort,
        module=module,
        time=time,
        full_ranks=bool(ranks.selected),
        width=_width(),
        color=_wants_color(no_color),
    )
    if out is not None:
        _write(analysis, out)
    _print(_json(analysis, view) if output is Format.JSON else _table(analysis, view))
    return STRICT_EXIT if strict and _has_error(analysis) else 0


@dataclass(frozen=True, slots=True)
class Ranks:
    """What --rank says: ranks to keep, and the rank of files that do not say it themselves."""

    selected: tuple[int, ...] = ()
    of_file: dict[str, int] = field(default_factory=dict)


def parse_ranks(texts: Sequence[str]) -> Ranks:
    """Both forms of --rank.

    >>> parse_ranks(["0-1", "5", "b.json=3"])
    Ranks(selected=(0, 1, 5), of_file={'b.json': 3})
    """
    of_file: dict[str, int] = {}
    selected: set[int] = set()
    for text in texts:
        if (named := _FILE_RANK.fullmatch(text)) is None:
            selected |= _numbers(text, "--rank")
        elif of_file.setdefault(named["file"], int(named["rank"])) != int(named["rank"]):
            raise UsageError(f"--rank {named['file']}: given two ranks; keep one")
    return Ranks(tuple(sorted(selected)), of_file)


def parse_steps(texts: Sequence[str]) -> tuple[int, ...] | None:
    """Steps as numbers, ranges or lists; None where none was asked for.

    >>> parse_steps(["10-12", "3,5"]), parse_steps([])
    ((3, 5, 10, 11, 12), None)
    """
    return tuple(sorted({number for text in texts for number in _numbers(text, "--step")})) or None


def _numbers(text: str, option: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _NUMBERS.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"{option} {text}: not a number, a range or a list; write 7, 5-7 or 5,7")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + _MOST_NUMBERS:
            raise UsageError(f"{option} {text}: not a range that can be used; write the smaller number first, as 5-7")
        found.update(range(first, last + 1))
    return found


def _load(paths: Sequence[str], settings: Settings) -> Analysis:
    from tracetools.run import analyze as load

    if not sys.stderr.isatty():
        return load(paths, settings).analysis
    from tracetools.report.progress import ProgressBar

    with ProgressBar() as bar:
        return load(paths, settings, bar).analysis


def _has_error(analysis: Analysis) -> bool:
    return any(finding.severity is Severity.ERROR for finding in analysis.findings)


def _table(analysis: Analysis, view: View) -> bytes:
    from tracetools.report import terminal

    # A terminal that is not UTF-8 gets a question mark instead of an error.
    encoding = sys.stdout.encoding or "utf-8"
    return terminal.render(analysis, view).encode(encoding, "replace")


def _json(analysis: Analysis, view: View) -> bytes:
    from tracetools.report import json

    if view.module is not None or view.top is not None or view.depth is not None:
        print("tracetools: --module, --top and --depth shape the table; JSON holds every row", file=sys.stderr)
    return json.render(analysis)


def _write(analysis: Analysis, folder: Path) -> None:
    from tracetools.report import json, tables

    contents = {"analysis.json": json.render(analysis)}
    contents |= {name: text.encode("utf-8") for name, text in tables.render(analysis).items()}
    written = files.write_files(folder, contents)
    names = ", ".join(path.name for path in written)
    print(f"tracetools: wrote to {printable(str(folder))}: {names}", file=sys.stderr)


def _print(content: bytes) -> None:
    """Write to stdout; a reader that leaves early, as `head` does, is no error."""
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at its end, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _width() -> int:
    """Columns of the terminal, or WIDTH where the output goes to a pipe or a file."""
    return max(MIN_WIDTH, min(_MAX_WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def _wants_color(no_color: bool) -> bool:
    is_off = no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not is_off
