"""Which modules make up the model of this rank. In: what the caller gave, else what is alive. Out: models by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch.nn import Module

from collectors.errors import CollectError

MODULE = "torch.nn.modules.module.Module"
Models = dict[str, Module]


def named_models(given: Module | Mapping[str, Module] | Iterable[Module]) -> Models:
    """Models as a caller gives them: one has no name of its own, several begin the names of their modules.

    Raises: CollectError where something is no module.

    >>> from torch.nn import Linear, ReLU
    >>> list(named_models(Linear(1, 1))), list(named_models([Linear(1, 1), Linear(1, 1), ReLU()]))
    ([''], ['Linear', 'Linear_2', 'ReLU'])
    """
    if isinstance(given, Module):
        return {"": given}
    modules = _modules(given)
    if isinstance(given, Mapping):
        return {str(name): module for name, module in given.items()}
    named: Models = {}
    for module in modules:
        base = name = type(module).__name__
        number = 1
        while name in named:
            number += 1
            name = f"{base}_{number}"
        named[name] = module
    return named


def _modules(given: Any) -> list[Module]:
    """What was given, without its names."""
    try:
        modules = list(given.values() if isinstance(given, Mapping) else given)
    except TypeError:
        modules = [given]
    for each in modules:
        if not isinstance(each, Module):
            raise CollectError(f"model: {type(each).__name__} is no torch.nn.Module; pass one, a list, or some by name")
    return modules


def find_models(alive: Iterable[Module], known: Mapping[str, Module]) -> Models:
    """The model of a script: what a framework knows it by, else the one root that has parameters; and loss functions.

    A root is a module that no other holds. Several roots with parameters (a generator and its critic, a model and its
    average) each get the name of their class.

    alive: all modules. known: what a framework runs, by name.
    """
    modules = list(alive)
    held = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    roots = [each for each in modules if id(each) not in held and "_modules" in vars(each)]
    with_parameters = [each for each in roots if next(each.parameters(), None) is not None]
    others = [each for each in roots if next(each.parameters(), None) is None]
    if known:
        found = dict(known)
        inside = {id(each) for model in known.values() for each in model.modules()}
        others = [each for each in others if id(each) not in inside]
    elif len(with_parameters) == 1:
        found = {"": with_parameters[0]}
    else:
        found = named_models(with_parameters)
    return {**named_models(others), **found}
