"""How torch.profiler is set for a pass, and who else uses it. In: options. Out: profilers, and a word of a script's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.autograd import profiler_legacy
from torch.profiler import ProfilerActivity, supported_activities
from torch.profiler.profiler import _KinetoProfile

from collectors.options import Options
from collectors.patches import replaced
from tracetools.trace_file import Pass


def activities() -> set[ProfilerActivity]:
    """What this machine can record: the CPU, and its GPUs if it has any."""
    supported: set[ProfilerActivity] = set(supported_activities())
    return supported & {ProfilerActivity.CPU, ProfilerActivity.CUDA, ProfilerActivity.XPU}


def has_stacks(options: Options, recorded: Pass) -> bool:
    """Whether a pass records Python stacks: the timing pass only if it was asked for alone with them."""
    return recorded is Pass.STRUCTURE or (options.stack and Pass.STRUCTURE not in options.passes)


def has_memory(options: Options, recorded: Pass) -> bool:
    """Whether a pass records allocations."""
    return options.memory and (recorded is Pass.STRUCTURE or Pass.STRUCTURE not in options.passes)


def new_profiler(options: Options, recorded: Pass) -> _KinetoProfile:
    """A profiler for one pass, not yet prepared."""
    return _KinetoProfile(
        activities=activities(),
        record_shapes=options.shapes,
        profile_memory=has_memory(options, recorded),
        with_stack=has_stacks(options, recorded),
        experimental_config=None if has_stacks(options, recorded) else _trace_only(),
    )


def _trace_only() -> Any:
    """Spares the building of Python events, of which only stacks make use; None where torch lacks it."""
    try:
        return torch._C._profiler._ExperimentalConfig(trace_only=True)
    except TypeError:
        return None


class ProfilerWatch:
    """Knows when the script uses torch.profiler itself: one profiler can run at a time, and the script's goes first.

    before_start: called just before the script's own starts. running: whether one of the script's is at work.
    """

    def __init__(self, before_start: Callable[[], None]) -> None:
        self._before_start = before_start
        self._theirs: set[int] = set()
        self._ours = False

    @property
    def running(self) -> bool:
        """Whether a profiler of the script is at work."""
        return bool(self._theirs)

    @contextmanager
    def ours(self) -> Iterator[None]:
        """What starts inside is our own."""
        self._ours = True
        try:
            yield
        finally:
            self._ours = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """From here on every profiler is seen."""
        with ExitStack() as patched:
            for kind, start in _kinds():
                patched.enter_context(replaced(kind, start, self._seen_to_start(getattr(kind, start))))
                patched.enter_context(replaced(kind, "__exit__", self._seen_to_end(kind.__exit__)))
            yield

    def _seen_to_start(self, start: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(start)
        def start_seen(profiler: Any, *args: Any) -> Any:
            if not self._ours and getattr(profiler, "enabled", True):
                self._before_start()
                self._theirs.add(id(profiler))
            try:
                return start(profiler, *args)
            except BaseException:
                self._theirs.discard(id(profiler))
                raise

        return start_seen

    def _seen_to_end(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(leave)
        def leave_seen(profiler: Any, *args: Any) -> Any:
            self._theirs.discard(id(profiler))
            return leave(profiler, *args)

        return leave_seen


def _kinds() -> Iterator[tuple[Any, str]]:
    """What can run one at a time, with the method that starts it; torch.profiler is the first of them underneath."""
    yield autograd_profiler.profile, "_prepare_trace"
    yield autograd_profiler.emit_itt, "__enter__"
    yield autograd_profiler.emit_nvtx, "__enter__"
    yield profiler_legacy.profile, "__enter__"
