"""Names each module's forward in the trace, by its fully qualified name and class. In: models. Out: `ModuleRanges`.

    tracetools.module blocks.0.attn model.Attention

Kineto's own module frames need Python stacks, which cost more than many a module, and carry no qualified name. Here the
`forward` of every module instance is replaced for the time of the recording. Nothing else of the model is touched, and
no backward hook is used.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial, update_wrapper
from itertools import pairwise
from types import FunctionType, MethodType, TracebackType
from typing import Any, Final, cast

import torch
from torch.autograd.profiler import record_function
from torch.compiler import is_dynamo_compiling
from torch.nn import Module

from tracetools.trace_file import module_range_name

# Wrappers that stand between a module and its name in the model's source: by their attribute, or by their class where
# the attribute is called "module", as many a module of a model is.
_WRAPPERS: Final = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?:\.|$)")

_WRAPPER_CLASSES: Final = frozenset(
    ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "PipelineEngine", "Float16Module")
)

RangeMaker = Callable[[str], AbstractContextManager[Any]]
_NewRange = Callable[[], AbstractContextManager[Any]]


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
        self._before: list[tuple[Module, str, Any, Any, _FreeRanges]] = []

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
            for (name, _, _), (module, _, _, _, free) in zip(self._modules, self._before, strict=True)
            if not free and type(module).forward is not Module.forward
        )

    def __enter__(self) -> ModuleRanges:
        try:
            for name, module, attribute in self._modules:
                self._put_on(module, attribute, module_range_name(name, class_name(module)))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _put_on(self, module: Module, attribute: str, label: str) -> None:
        before = vars(module).get(attribute, _ABSENT)
        inner = getattr(module, attribute)
        free: _FreeRanges = []
        make_range = partial(self._make_range, label)
        if isinstance(inner, MethodType) and inner.__self__ is module:
            ranged: Any = _ranged_method(module, attribute, inner.__func__, free, make_range)
        else:
            ranged = _Ranged(inner, free, make_range)
        self._before.append((module, attribute, ranged, before, free))
        # Past Module.__setattr__, which a compiled module would send on to the module inside.
        vars(module)[attribute] = ranged

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put every forward back; one that somebody else has replaced meanwhile stays theirs."""
        while self._before:
            module, attribute, ranged, before, _ = self._before.pop()
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


# Ranges of one module that are not open. A range object can be open once; a module that calls itself, or is called on
# two threads, takes another one. Empty until the first call, which tells a module that is never called.
_FreeRanges = list[AbstractContextManager[Any]]


def _in_range(
    function: Callable[..., Any], free: _FreeRanges, make_range: _NewRange, owner: Module | None = None
) -> FunctionType:
    """The function with a range around it; with an owner only where that is the first argument.

    A compiler that looks inside sees no range.
    """

    # The owner stays the first of args: taking it out and putting it back would cost a tenth of a microsecond.
    def ranged(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or (owner is not None and args[0] is not owner):
            return function(*args, **kwargs)
        try:
            each = free.pop()
        except IndexError:
            each = make_range()
        try:
            with each:
                return function(*args, **kwargs)
        finally:
            free.append(each)

    update_wrapper(ranged, function)
    return cast("FunctionType", ranged)


def _ranged_method(
    module: Module, attribute: str, function: Callable[..., Any], free: _FreeRanges, make_range: _NewRange
) -> MethodType:
    """A method of the module with a range around it.

    It is a method as the one it stands for, so that Python copies and pickles it as such: a copy of the module calls
    the copy, and a pickle knows nothing of this package.
    """
    ranged = _in_range(function, free, make_range, module)
    # By this name a pickle asks the module for its method.
    ranged.__name__ = attribute
    return MethodType(ranged, module)


class _Ranged:
    """Something else that is called as a forward, with a range around it; copies and pickles hold it without."""

    def __init__(self, inner: Any, free: _FreeRanges, make_range: _NewRange) -> None:
        update_wrapper(self, inner)
        self._inner, self._call = inner, _in_range(inner, free, make_range)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._inner, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return copy.copy, (self._inner,)


def _is_compiled(module: Module) -> bool:
    """Made by torch.compile; asked by name, since importing torch._dynamo takes seconds."""
    return type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")
