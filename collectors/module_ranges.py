"""Names each module's forward in the trace, by its fully qualified name and class. In: models. Out: `ModuleRanges`.

    tracetools.module blocks.0.attn model.Attention

Kineto's own module frames need Python stacks, which cost more than many a module, and carry no qualified name. Here the
`forward` of every module instance is replaced for the time of the recording. Nothing else of the model is touched, and
no backward hook is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import update_wrapper
from itertools import pairwise
from types import MethodType, TracebackType
from typing import Any, Final

import torch
from torch.autograd.profiler import record_function
from torch.nn import Module

from tracetools.trace_file import module_range_name

# Wrappers that stand between a module and its name in the model's source: by their attribute, or by their class where
# the attribute is called "module", as many a module of a model is.
_WRAPPERS: Final = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?:\.|$)")

_WRAPPER_CLASSES: Final = frozenset(
    ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "PipelineEngine", "Float16Module")
)

RangeMaker = Callable[[str], AbstractContextManager[Any]]


def range_maker() -> RangeMaker:
    """The cheapest range that this torch has: a private class at 0.3 us, else `record_function` at 6 us."""
    fast: RangeMaker | None = getattr(torch._C._profiler, "_RecordFunctionFast", None)
    return record_function if fast is None else fast


class ModuleRanges:
    """Ranges around the forward of every module of a model, from `with` to the end of its block.

    Several models are given by name, which then begins the names of their modules. A module that is shared has one
    name, the first. Inside a compiled module nothing can be named without breaking its graph, so the compiled module
    itself is one range; scripted modules have none. `left_out` says which and why.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    >>> with ModuleRanges(model) as ranges:
    ...     ranges.names
    ('(root)', '0')
    >>> "forward" in vars(model)
    False
    """

    def __init__(self, model: Module | Mapping[str, Module], make_range: RangeMaker | None = None) -> None:
        self.left_out: dict[str, str] = {}
        self._make_range = make_range or range_maker()
        self._named: set[int] = set()
        models = {"": model} if isinstance(model, Module) else model
        self._modules = [each for first, model in models.items() for each in self._chosen(model, first)]
        self._before: list[tuple[Module, str, _Ranged, Any]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Qualified names of all modules that get a range, `(root)` for the model itself."""
        return tuple(name or "(root)" for name, _, _ in self._modules)

    def never_called(self) -> tuple[str, ...]:
        """Modules whose forward has not been called since `with`: used in another way, or not at all.

        Containers, which have no forward, are left out. What such a module does counts to the module around it.
        """
        return tuple(
            name or "(root)"
            for (name, _, _), (module, _, ranged, _) in zip(self._modules, self._before, strict=True)
            if not ranged.called and type(module).forward is not Module.forward
        )

    def __enter__(self) -> ModuleRanges:
        for name, module, attribute in self._modules:
            inner = getattr(module, attribute)
            label = module_range_name(name, class_name(module))
            ranged = _Ranged(module, attribute, inner, label, self._make_range)
            self._before.append((module, attribute, ranged, vars(module).get(attribute, _ABSENT)))
            # Past Module.__setattr__, which a compiled module would send on to the module inside.
            vars(module)[attribute] = ranged
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put every forward back; one that somebody else has replaced meanwhile stays theirs."""
        while self._before:
            module, attribute, ranged, before = self._before.pop()
            if vars(module).get(attribute) is not ranged:
                continue
            if before is _ABSENT:
                del vars(module)[attribute]
            else:
                vars(module)[attribute] = before

    def _chosen(self, model: Module, first: str) -> Iterator[tuple[str, Module, str]]:
        """Qualified name, module, and the attribute through which it is called."""
        closed: list[str] = []
        for path, name, module in _named_modules(model, first):
            if id(module) in self._named:
                continue
            self._named.add(id(module))
            if any(path.startswith(prefix) for prefix in closed):
                self.left_out[name] = "inside a compiled or scripted module"
            elif isinstance(module, torch.jit.ScriptModule):
                closed.append(f"{path}." if path else "")
                self.left_out[name or "(root)"] = "scripted: its forward cannot be wrapped"
            elif getattr(module, "_compiled_call_impl", None) is not None:
                closed.append(f"{path}." if path else "")
                yield name, module, "_compiled_call_impl"
            elif _is_compiled(module):
                closed.append(f"{path}." if path else "")
                yield name, module, "forward"
            else:
                yield name, module, "forward"


def _named_modules(model: Module, first: str) -> Iterator[tuple[str, str, Module]]:
    """Path, qualified name behind `first`, and module, of each module once."""
    wrapped: list[str] = []
    for path, module in model.named_modules():
        inner = path
        # The innermost wrapper first, so that the paths of those around it stay what they were.
        for each in reversed(wrapped):
            if inner == each or inner.startswith(f"{each}."):
                inner = inner[: len(each) - len("module")] + inner[len(each) + 1 :]
        if type(module).__name__ in _WRAPPER_CLASSES:
            wrapped.append(f"{path}.module" if path else "module")
        yield path, ".".join(part for part in (first, qualified_name(inner)) if part), module


def class_name(module: Module) -> str:
    """Class of a module with its package; of a class that FSDP2 made, the one that the user wrote.

    >>> class_name(torch.nn.Linear(1, 1))
    'torch.nn.modules.linear.Linear'
    """
    bases = type(module).__mro__
    for base, user in pairwise(bases):
        if base.__name__ == "FSDPModule" and base.__module__.startswith("torch.distributed"):
            return f"{user.__module__}.{user.__qualname__}"
    return f"{bases[0].__module__}.{bases[0].__qualname__}"


def qualified_name(path: str) -> str:
    """Name as the model's source has it, without what torch.compile, FSDP and checkpoint wrappers add.

    >>> qualified_name("blocks.0._checkpoint_wrapped_module.attn"), qualified_name("_orig_mod")
    ('blocks.0.attn', '')
    """
    return _WRAPPERS.sub("", path).rstrip(".")


_ABSENT: Final = object()


class _Ranged:
    """A forward with a range around it.

    A range object can be open once; a module that calls itself, or is called on two threads, takes another one. Copies
    and pickles of the module get the plain forward of their own: they are another model.
    """

    # Slots are faster to read; `update_wrapper` wants a dict as well.
    __slots__ = ("__dict__", "_attribute", "_free", "_inner", "_label", "_make_range", "_module")

    def __init__(self, module: Module, attribute: str, inner: Any, label: str, make_range: RangeMaker) -> None:
        update_wrapper(self, inner)
        self._module, self._attribute = module, attribute
        self._inner, self._label, self._make_range = inner, label, make_range
        # Empty until the first call, which tells a module that is never called.
        self._free: list[AbstractContextManager[Any]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            each = self._free.pop()
        except IndexError:
            each = self._make_range(self._label)
        try:
            with each:
                return self._inner(*args, **kwargs)
        finally:
            self._free.append(each)

    @property
    def called(self) -> bool:
        """Whether it was called at all."""
        return bool(self._free)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _plain(memo.get(id(self._module), self._module), self._attribute)

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain, (self._module, self._attribute)


def _plain(module: Module, attribute: str) -> Any:
    """What a module calls that nobody has changed."""
    return MethodType(type(module).forward, module) if attribute == "forward" else None


def _is_compiled(module: Module) -> bool:
    """Made by torch.compile; asked by name, since importing torch._dynamo takes seconds."""
    return type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")
