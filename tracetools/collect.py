"""The command `python -m tracetools.collect`: runs a training script and records some of its steps.

    torchrun --nproc-per-node 8 -m tracetools.collect --out traces train.py --config 7b.toml

Parses, hands over to `collectors`, and leaves as the script leaves. The only file of tracetools that knows them.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer


def _load_ours() -> None:
    """Load the `collectors` beside this package: `python -m` finds one in the current folder first."""
    folder = Path(__file__).resolve().parent.parent / "collectors"
    spec = importlib.util.spec_from_file_location("collectors", folder / "__init__.py")
    if "collectors" in sys.modules or spec is None or spec.loader is None or not folder.is_dir():
        return
    ours = sys.modules["collectors"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ours)


_load_ours()

from collectors.errors import CollectError  # noqa: E402
from collectors.options import FIRST, LAST, WARMUP, Options, options  # noqa: E402
from collectors.script import Script, without_our_frames  # noqa: E402

if TYPE_CHECKING:
    from collectors.session import Collection

USAGE_EXIT: Final = 2

_HELP: Final = """Run a PyTorch training script and record some of its training steps on every rank.

\b
Examples:
  python -m tracetools.collect --out traces train.py --lr 3e-4
  torchrun --nproc-per-node 8 -m tracetools.collect --out traces --steps 20-22 train.py
  torchrun --nproc-per-node 8 -m tracetools.collect --out traces -m mypackage.train --config 7b.toml
  srun python -m tracetools.collect --out traces --pass both --clock-probe train.py
\b
Then: tracetools analyze traces

The script gets its own arguments, and its exit code is the exit code; 2 means that it was not started."""

# Typer brings the classes of click along, as a dependency or inside itself, and names only the leaf of this tree.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class _Job(tuple[Options, bool, list[str]]):
    """What was asked for: options, whether the script is a module, and its name with its arguments."""


@app.command(
    help=_HELP,
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
def _collect(
    script: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]...", help="The script and its arguments.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the traces, the same for all ranks.")] = Path(
        "traces"
    ),
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as with python -m.")] = False,
    steps: Annotated[
        str, typer.Option(metavar="N|A-B", help="Steps to record; the first step of a run is 0.")
    ] = f"{FIRST}-{LAST}",
    warmup: Annotated[
        int, typer.Option(min=0, metavar="N", help="Steps before them with the profiler on, recorded and dropped.")
    ] = WARMUP,
    ranks: Annotated[
        str | None, typer.Option(metavar="N|A-B|N,N", help="Ranks that record; the others run untouched. Default: all.")
    ] = None,
    passes: Annotated[
        str,
        typer.Option(
            "--pass",
            metavar="timing|structure|both",
            help="timing: module ranges only. structure: with Python stacks. both: one after the other.",
        ),
    ] = "timing",
    shapes: Annotated[bool, typer.Option(help="Record the shapes of op inputs, which FLOP counts need.")] = True,
    stack: Annotated[bool, typer.Option("--stack", help="Record Python stacks in the timing pass too.")] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Record allocations, in the structure pass where there is one.")
    ] = False,
    no_module_ranges: Annotated[
        bool, typer.Option("--no-module-ranges", help="Do not name the forward of modules.")
    ] = False,
    clock_probe: Annotated[
        bool, typer.Option("--clock-probe", help="Compare the clocks of hosts before and after recording.")
    ] = False,
    nvtx: Annotated[
        bool, typer.Option("--nvtx", help="Record NVTX ranges, and have Transformer Engine push its own.")
    ] = False,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Record fewer steps where a trace would be larger, as 500M.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that the folder holds.")] = False,
    local_rank: Annotated[
        str | None, typer.Option("--local_rank", "--local-rank", hidden=True, help="Passed on to the script.")
    ] = None,
) -> _Job:
    chosen = options(
        out,
        steps=steps,
        warmup=warmup,
        ranks=ranks,
        passes=passes,
        shapes=shapes,
        stack=stack,
        memory=memory,
        module_ranges=not no_module_ranges,
        clock_probe=clock_probe,
        nvtx=nvtx,
        max_size=max_size,
        overwrite=overwrite,
    )
    if chosen.first - chosen.warmup < 1:
        raise CollectError(
            f"--steps {steps} with --warmup {warmup} begins in step 0, in which the script makes its model; "
            f"begin with step {warmup + 1} or later, or choose a shorter warm-up"
        )
    # The deepspeed launcher puts this first, for the script.
    handed_on = [] if local_rank is None else [f"--local_rank={local_rank}"]
    return _Job((chosen, module, [script[0], *handed_on, *script[1:]]))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, and leave as the script leaves."""
    around = ExitStack()
    try:
        job = app(arguments, standalone_mode=False, prog_name="python -m tracetools.collect")
        if not isinstance(job, _Job):
            sys.exit(job)  # after --help
        chosen, module, with_arguments = job
        script = Script(with_arguments, module)
        if chosen.nvtx:
            os.environ.setdefault("NVTE_NVTX_ENABLED", "1")
        collection = _collection(chosen)
        around.enter_context(collection)
    except CollectError as error:
        _complain(str(error))
    except _CommandLineError as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        _complain(f"{message.rstrip('.')}; see python -m tracetools.collect --help")
    _run(script, collection, around)


def _collection(chosen: Options) -> Collection:
    try:
        from collectors.session import Collection
    except ImportError as error:
        raise CollectError(f"{error}; pip install 'tracetools[collect]', which brings torch") from error
    return Collection(chosen)


def _run(script: Script, collection: Collection, around: ExitStack) -> NoReturn:
    from collectors.termination import Terminated

    owner = os.getpid()
    with around:
        try:
            # All that is ours has been imported: from here on the script's own path holds.
            script.take_the_path()
            script.run()
        except Terminated:
            raise
        except SystemExit as left:
            _leave_at_exit(collection, around, left)
            _leave(left.code, owner)
        except BaseException as error:
            sys.excepthook = _without_our_frames(sys.excepthook)
            _leave_at_exit(collection, around, error)
            if os.getpid() != owner:
                sys.excepthook(type(error), error, error.__traceback__)
                _leave(1, owner)
            raise
        _leave_at_exit(collection, around, None)
    _leave(None, owner)


def _leave_at_exit(collection: Collection, around: ExitStack, error: BaseException | None) -> None:
    """Where threads go on when the script's end is reached, the collection ends after them: Python waits for them."""
    main = threading.main_thread()
    if any(each is not main and not each.daemon for each in threading.enumerate()):
        around.pop_all()
        kind, trace = (None, None) if error is None else (type(error), error.__traceback__)
        atexit.register(collection.__exit__, kind, error, trace)


def _leave(code: str | int | None, owner: int) -> NoReturn:
    """End as Python ends; a process that the script forked without tearing down the profiler, which hangs there.

    owner: the process that records.
    """
    if os.getpid() == owner:
        sys.exit(code)
    atexit._run_exitfuncs()
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def _without_our_frames(show: _Hook) -> _Hook:
    """Shows an error as Python itself would have shown it."""

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        error.__traceback__ = without_our_frames(trace, __file__)
        show(kind, error, error.__traceback__)

    return shown


def _complain(message: str) -> NoReturn:
    for line in message.splitlines():
        sys.stderr.write(f"tracetools: {line}\n")  # in one write, as ranks share the launcher's output
    sys.exit(USAGE_EXIT)


if __name__ == "__main__":
    main()
