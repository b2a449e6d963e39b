"""Which modules are the model, what a model is like, and what is alive."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from collectors.live_objects import LiveObjects
from collectors.model_facts import model_facts
from collectors.models import MODULE, find_models, named_models


class Configured(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.Linear(2, 2)


def test_the_one_root_with_parameters_is_the_model():
    model, loss = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.CrossEntropyLoss()
    alive = [model, *model, loss]
    found = find_models(alive, {})
    assert found == {"": model, "CrossEntropyLoss": loss}


def test_several_roots_get_the_names_of_their_classes():
    one, two, critic = nn.Linear(2, 2), nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))
    assert find_models([one, two, critic, *critic], {}) == {"Linear": one, "Linear_2": two, "Sequential": critic}


def test_what_a_framework_runs_is_the_model():
    stage = nn.Sequential(nn.Linear(2, 2))
    original, loss = nn.Sequential(stage, nn.Linear(2, 2)), nn.MSELoss()
    found = find_models([original, *original.modules(), loss], {"stage_0": stage})
    assert found == {"MSELoss": loss, "stage_0": stage}


def test_no_module_at_all():
    assert find_models([], {}) == {}
    assert named_models([]) == {}


def test_modules_half_made_are_passed_by():
    """Found in the middle of `__init__`, or made with `__new__` alone."""
    half = nn.Linear.__new__(nn.Linear)
    assert find_models([half], {}) == {}


def test_facts_by_structure():
    model = nn.Sequential(
        nn.Embedding(100, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(6)), nn.Linear(8, 100, bias=False)
    )
    model[2].weight = model[0].weight
    for each in model[1][0].parameters():
        each.requires_grad_(False)
    facts = model_facts({"": model})
    assert facts == {
        "parameters": 100 * 8 + 6 * 72,
        "trainable_parameters": 100 * 8 + 5 * 72,
        "modules": 10,
        "class": "Sequential",
        "layers": 6,
        "hidden_size": 8,
        "attention_heads": None,
        "sequence_length": None,
        "vocabulary": 100,
    }


@pytest.mark.parametrize("kind", [dict, SimpleNamespace])
def test_facts_by_configuration(kind: Any):
    config = kind(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, vocab_size=128_256, n_layer=True)
    facts = model_facts({"": Configured(config)})
    assert {name: facts[name] for name in ("layers", "hidden_size", "attention_heads", "vocabulary")} == {
        "layers": 32, "hidden_size": 4096, "attention_heads": 32, "vocabulary": 128_256
    }  # fmt: skip


def test_a_configuration_that_is_none_is_no_error():
    for config in (None, 7, "text", {"hidden_size": "large"}, object()):
        assert model_facts({"": Configured(config)})["hidden_size"] is None


def test_shared_parameters_count_once_over_models():
    shared = nn.Linear(4, 4)
    assert model_facts({"a": nn.Sequential(shared), "b": nn.Sequential(shared, nn.ReLU())})["parameters"] == 20


def test_living_objects_of_a_class_and_its_subclasses():
    model = Configured(None)
    found = LiveObjects([MODULE, "no.such.Class"])
    assert any(each is model for each in found.of(MODULE))
    assert any(each is model.layer for each in found.of(MODULE))
    assert found.of("no.such.Class") == found.of("another") == []


def test_looking_runs_no_code_of_the_script():
    class Proxy:
        @property
        def __class__(self) -> type:
            raise AssertionError("asked")

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError("asked")

    proxy = [Proxy()]
    LiveObjects([MODULE])
    assert len(proxy) == 1


def test_objects_that_are_gone_are_not_kept():
    model = nn.Linear(2, 2)
    before = len(gc.get_referrers(model))
    found = LiveObjects([MODULE])
    assert len(gc.get_referrers(model)) > before
    del found
    assert len(gc.get_referrers(model)) == before
    assert torch.is_tensor(model.weight)
