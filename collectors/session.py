"""One collection on one rank: waits, warms up, records its passes, writes them. In: `Options`. Out: traces, a manifest.

    step      0 … 3         4            5          6 … 8      (steps 6-8, warm-up 2)
              left alone    trial run    warm-up    recorded

The trial is a recording that is dropped: it warms the profiler up, and its size tells what a step will take. What goes
wrong once the training runs costs a message and the recording, never the training.
"""

from __future__ import annotations

import enum
import json
import os
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch
from torch.autograd.profiler import record_function
from torch.nn import Module

from collectors import calibration
from collectors.clock_probe import NoProbe, measure_offset
from collectors.folder import Folder
from collectors.instrumentation import Instrumentation
from collectors.journal import Journal, readable_bytes
from collectors.launcher import find_process
from collectors.models import named_models
from collectors.options import Options
from collectors.profilers import ProfilerWatch, activities, has_memory, has_stacks, new_profiler
from collectors.termination import Terminated, Termination, die_of_sigterm
from collectors.training_steps import StepEnds
from tracetools.trace_file import METADATA_KEY, Pass

_SAMPLE: Final = 4 << 20
# Steps that make optimizer states and compile, the first time and once more for other shapes, tell nothing of others.
_SETTLED: Final = 2

Given = Module | Mapping[str, Module] | Iterable[Module] | None


class _State(enum.Enum):
    WAITING = enum.auto()
    TRIAL = enum.auto()
    WARM = enum.auto()
    RECORDING = enum.auto()
    ENDED = enum.auto()


@dataclass(slots=True)
class _Window:
    """Steps of one pass; begin: its first warm-up step."""

    recorded: Pass
    begin: int
    first: int
    last: int

    def move(self, steps: int) -> None:
        self.begin, self.first, self.last = self.begin + steps, self.first + steps, self.last + steps


class Collection:
    """A recording of this rank, from `with` to the end of its block or to the last step that was asked for.

    model: the modules to name, one or several; None to find them. Call `step()` at the end of each training step; where
    it is never called, steps are found (see `StepEnds`).

    Raises: CollectError from `with` where the recording cannot begin as asked.
    """

    def __init__(self, options: Options, model: Given = None) -> None:
        process = find_process(os.environ)
        self._options, self._process = options, process
        self._idle = options.ranks is not None and process.rank not in options.ranks
        self._process_id = os.getpid()
        self._journal = Journal(process, speaks=process.rank == min(options.ranks or {0}))
        self._folder = Folder(options.out, process.rank, process.world_size, options.ranks)
        self._instrumentation = Instrumentation(options, process, None if model is None else named_models(model))
        self._step_ends = StepEnds(self._step_was_found, self._step_was_passed_over, self._guarded)
        self._watch = ProfilerWatch(self._make_way)
        self._termination = Termination(self._save)
        self._around = ExitStack()
        self._windows = _windows(options)
        self._state = _State.WAITING
        self._profiler: Any = None
        self._step = self._held_up = 0
        self._found_by: str | None = None
        self._step_range: record_function | None = None
        self._began_ns = 0
        self._undisturbed_ns: list[int] = []
        self._recorded_ns: dict[int, int] = {}
        self._clock: dict[str, Any] = {}

    @property
    def done(self) -> bool:
        """Whether nothing more is going to be recorded."""
        # A child that was forked has no profiler, and its parent writes.
        return self._idle or self._state is _State.ENDED or os.getpid() != self._process_id

    def __enter__(self) -> Collection:
        if self._idle:
            self._say_if_nobody_records()
            return self
        self._folder.claim(self._options.overwrite)
        if len(activities()) == 1:
            self._journal.say_for_all("no GPU is at hand: only the CPU is recorded")
        self._around.enter_context(self._termination.watching())
        self._around.enter_context(self._watch.watching())
        self._step_ends.start()
        self._around.callback(self._step_ends.stop)
        self._guarded(self._begin_step)
        self._began_ns = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.done:
            self._guarded(lambda: self._end(_ended_by(error)))
        if isinstance(error, Terminated) or self._termination.unwinds:
            die_of_sigterm()

    def _say_if_nobody_records(self) -> None:
        ranks, world_size = self._options.ranks, self._process.world_size
        if ranks and min(ranks) >= world_size and self._process.rank == 0:
            self._journal.say(f"nothing is recorded: no rank of {world_size} is among those to record")

    def step(self) -> None:
        """A training step has ended. From the first call on, only these calls count."""
        if self._ends_here():
            return
        if self._found_by != "step()":
            self._found_by = "step()"
            self._guarded(self._step_ends.stop)
            if self._step:
                return  # the optimizer of this very step has counted it
        self._guarded(self._next_step)

    def _step_was_found(self) -> None:
        if self._ends_here():
            return
        if _inside_backward():
            # Starting or stopping a profiler there ends the process.
            self._step_was_passed_over("an optimizer steps inside backward")
        else:
            self._found_by = self._step_ends.found_by
            self._guarded(self._next_step)

    def _step_was_passed_over(self, why: str) -> None:
        if self._found_by != "step()":
            self._journal.say_once(f"{why}: such steps are not counted; call collection.step() from Python")

    def _ends_here(self) -> bool:
        """Whether steps count no more. A script that caught SIGTERM and trains on dies of it at its next step."""
        if not self.done and self._termination.unwinds:
            self._save()
            die_of_sigterm()
        return self.done

    def _save(self) -> None:
        """Write what there is, as far as this can be done where the signal has come."""
        if not (self.done or _inside_backward()):
            self._guarded(lambda: self._end("SIGTERM came"))

    def _guarded(self, act: Callable[[], None]) -> None:
        """Nothing that fails here may end a training."""
        with self._termination.held_back():
            try:
                act()
            except Exception as error:
                self._journal.say(f"nothing more is recorded ({self._fact_of(error)}); the training goes on")
                # What failed may fail again while it is taken down.
                with suppress(Exception):
                    self._drop_profiler()
                with suppress(Exception):
                    self._leave()

    def _fact_of(self, error: Exception) -> str:
        if not isinstance(error, OSError):
            return f"{type(error).__name__}: {error}"
        # Kineto says in its own words, and to stderr only, that it could not write.
        fact = "the profiler wrote no trace" if isinstance(error, FileNotFoundError) else error.strerror
        with suppress(OSError):
            fact = f"{fact}; {self._folder.path} has {readable_bytes(self._folder.free_bytes())} left"
        return fact or type(error).__name__

    def _leave(self) -> None:
        """The model and the frameworks as they were, the manifest written, the signal as it was."""
        self._state = _State.ENDED
        # Backwards, and each whatever became of those before: the signal last, or it could end the manifest.
        with ExitStack() as last:
            last.callback(self._around.close)
            last.callback(self._folder.release)
            last.callback(self._write_manifest)
            last.callback(self._instrumentation.take_off)

    def _write_manifest(self) -> None:
        facts = {
            "host": socket.gethostname(),
            "stage": self._instrumentation.layout.get("stage"),
            "steps_found_by": self._found_by,
            "steps_seen": self._step,
        }
        self._journal.write(self._folder, facts)

    # Steps.

    def _next_step(self) -> None:
        took = time.perf_counter_ns() - self._began_ns
        if self._state is _State.RECORDING:
            self._recorded_ns[self._step] = took
        elif self._step >= _SETTLED and not (self._instrumentation.is_on or self._watch.running):
            self._undisturbed_ns.append(took)
        self._step += 1
        self._begin_step()
        self._began_ns = time.perf_counter_ns()

    def _begin_step(self) -> None:
        """What has to happen before step `_step`; a pass that ends makes room for the next one at once."""
        if self._state is _State.RECORDING:
            self._close_step()
            if self._step <= self._windows[0].last:
                self._open_step()
                return
            self._finish(None)
        elif self._state is _State.TRIAL:
            self._end_trial()
        if self._state is _State.ENDED or self._step < self._windows[0].begin:
            return
        window = self._windows[0]
        if self._watch.running:
            self._wait_for_the_script()
        elif self._step >= window.first:
            self._start(window)
        elif self._step == window.begin:
            self._begin_trial(window)
        elif self._state is _State.WAITING:
            self._warm_up(window)

    def _wait_for_the_script(self) -> None:
        """Every window one step later."""
        self._journal.say_once("a profiler of the script is running: recording waits until it has ended")
        self._held_up += 1
        for window in self._windows:
            window.move(1)

    # Trial, warm-up, recording.

    def _begin_trial(self, window: _Window) -> None:
        self._prepare(window)
        self._profiler.start_trace()
        self._state = _State.TRIAL

    def _end_trial(self) -> None:
        """Drop the trial, say what a recording will take, and shorten it where that is too much."""
        window, profiler = self._windows[0], self._take_profiler()
        path = self._folder.unpacked(window.recorded)
        try:
            profiler.export_chrome_trace(str(path))
            size, packed = path.stat().st_size, _packed_size(path)
        finally:
            self._folder.discard(path)
        self._state = _State.WAITING
        steps = window.last - window.first + 1
        self._journal.say_for_all(
            f"{window.recorded} pass: {steps} steps from {window.first} on, about {readable_bytes(packed * steps)} "
            f"a rank ({readable_bytes(size * steps)} while it is written)"
        )
        by_option = sys.maxsize if self._options.max_size is None else self._options.max_size // max(packed, 1)
        by_disk = self._folder.free_bytes() // max(size + packed, 1)
        if min(by_option, by_disk) < steps:
            self._shorten(window, min(by_option, by_disk), "--max-size" if by_option <= by_disk else "the free disk")

    def _shorten(self, window: _Window, fits: int, limit: str) -> None:
        if fits:
            self._journal.say(f"{limit} has room for {fits} of the steps: only those are recorded")
            window.last = window.first + fits - 1
        else:
            self._journal.say(f"{limit} has no room for a single step: the {window.recorded} pass is not recorded")
            self._next_window()

    def _warm_up(self, window: _Window) -> None:
        self._prepare(window)
        self._state = _State.WARM

    def _start(self, window: _Window) -> None:
        if self._state is not _State.WARM:
            self._prepare(window)
        self._probe_clock("start")
        self._recorded_ns = {}
        self._profiler.start_trace()
        self._state = _State.RECORDING
        self._open_step()

    def _open_step(self) -> None:
        self._step_range = record_function(f"ProfilerStep#{self._step}")
        self._step_range.__enter__()

    def _close_step(self) -> None:
        step, self._step_range = self._step_range, None
        if step is not None:
            step.__exit__(None, None, None)

    def _finish(self, reason: str | None) -> None:
        """Stop, and write what there is. reason: why it is not whole, None where it is."""
        window = self._windows[0]
        self._close_step()
        profiler = self._take_profiler()
        self._state = _State.WAITING
        if reason is None:
            self._probe_clock("end")
        path = self._folder.unpacked(window.recorded)
        try:
            profiler.export_chrome_trace(str(path))
            target = self._folder.write_trace(path, window.recorded, self._measured(window, reason))
        finally:
            self._folder.discard(path)
        size = target.stat().st_size
        facts = {"complete": reason is None, "reason": reason, "steps": sorted(self._recorded_ns)}
        self._journal.passes.append({"file": target.name, "bytes": size, "pass": window.recorded, **facts})
        if reason is None:
            self._journal.say_for_all(f"{target} written ({readable_bytes(size)})")
        else:
            self._journal.say(f"{target} written ({readable_bytes(size)}), but not whole: {reason}")
        self._next_window()

    def _next_window(self) -> None:
        """The pass behind this one begins now, if there is one."""
        del self._windows[0]
        if self._windows:
            self._windows[0].move(self._step - self._windows[0].begin)
        else:
            self._leave()

    def _end(self, ended_by: str) -> None:
        """The block has ended: write what is there, and say what is not."""
        window = self._windows[0]
        wanted = f"steps {window.first}-{window.last} of the {window.recorded} pass"
        if self._state is _State.RECORDING:
            self._finish(f"{ended_by} in step {self._step}, before {wanted} were over")
        elif self._found_by is None:
            self._journal.say(
                f"nothing recorded: {ended_by} and no training step was seen; "
                "steps are found by an optimizer's step, or told by collection.step() from Python"
            )
        else:
            self._journal.say(f"{wanted} not recorded: {ended_by} in step {self._step}; {self._way_out()}")
        if self._state is not _State.ENDED:
            self._drop_profiler()
            self._leave()

    def _way_out(self) -> str:
        if self._held_up:
            return f"a profiler of the script held them up by {self._held_up} steps; leave it out to record"
        if self._step_ends.clock.changes > 1:
            return (
                "steps between two optimizers are not seen; ask for earlier ones, or call collection.step() from Python"
            )
        return "ask for earlier ones"

    # Profilers.

    def _make_way(self) -> None:
        """The script is about to start a profiler of its own, and only one can run."""
        if self._state is _State.RECORDING:
            self._guarded(lambda: self._finish("the script started a profiler of its own"))
        elif self._state in (_State.TRIAL, _State.WARM):
            self._guarded(self._give_up_recording)

    def _give_up_recording(self) -> None:
        self._drop_profiler()
        self._state = _State.WAITING

    def _prepare(self, window: _Window) -> None:
        if not self._instrumentation.is_on:
            self._instrumentation.put_on()
            if not self._instrumentation.models:
                self._journal.say("no module was found to name")
        self._profiler = new_profiler(self._options, window.recorded)
        # Set before it starts: what is added later can be lost without a word.
        self._profiler.preset_metadata_json(METADATA_KEY, json.dumps(self._metadata(window)))
        with self._watch.ours():
            self._profiler.prepare_trace()

    def _take_profiler(self) -> Any:
        """The profiler, stopped; there is none any more, whatever happens to it."""
        profiler, self._profiler = self._profiler, None
        profiler.stop_trace()
        return profiler

    def _drop_profiler(self) -> None:
        """End a recording without a word; one that was only prepared has to be started to be ended."""
        if self._profiler is not None:
            if self._state is _State.WARM:
                self._profiler.start_trace()
            self._take_profiler()

    # Facts.

    def _metadata(self, window: _Window) -> dict[str, Any]:
        return {
            **self._instrumentation.layout,
            "pass": window.recorded,
            "steps": [window.first, window.last],
            "steps_found_by": self._found_by,
            "shapes": self._options.shapes,
            "stacks": has_stacks(self._options, window.recorded),
            "memory": has_memory(self._options, window.recorded),
        }

    def _measured(self, window: _Window, reason: str | None) -> dict[str, Any]:
        """What is known once the recording has ended. An interrupted one is not held up by a calibration."""
        cost = None
        if reason is None:
            with self._watch.ours():
                cost = asdict(calibration.measure_cost(lambda: new_profiler(self._options, window.recorded)))
        return {
            "complete": reason is None,
            "reason": reason,
            "cost": cost,
            "step_ns": {"undisturbed": self._undisturbed_ns or None, "recorded": list(self._recorded_ns.values())},
            "clock": self._clock,
            "never_called": self._instrumentation.never_called(),
        }

    def _probe_clock(self, moment: str) -> None:
        if not self._options.clock_probe:
            return
        try:
            offset = measure_offset(f"{self._windows[0].recorded}-{moment}", socket.gethostname())
        except NoProbe as why:
            self._journal.say(f"clocks were not compared at the {moment}: {why}")
            return
        self._clock[moment] = None if offset is None else asdict(offset)


def _inside_backward() -> bool:
    current = getattr(torch._C, "_current_graph_task_id", None)
    return current is not None and current() != -1


def _ended_by(error: BaseException | None) -> str:
    if isinstance(error, Terminated):
        return "SIGTERM came"
    if error is None or isinstance(error, SystemExit):
        return "the script ended"
    return f"{type(error).__name__} ended the script"


def _windows(options: Options) -> list[_Window]:
    """Passes one behind the other, each with its warm-up."""
    count, begin = options.last - options.first + 1, options.begin
    windows = []
    for recorded in options.passes:
        first = max(begin + options.warmup, options.first)
        windows.append(_Window(recorded, begin, first, first + count - 1))
        begin = first + count
    return windows


def _packed_size(path: Path) -> int:
    """Bytes of a trace once packed, from its first megabytes."""
    size = path.stat().st_size
    with path.open("rb") as trace:
        sample = trace.read(_SAMPLE)
    return round(size * len(zlib.compress(sample, 1)) / max(len(sample), 1))
