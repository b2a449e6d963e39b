"""Facts of a model that FLOP and MFU figures need. In: models. Out: facts, None for what cannot be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from torch.nn import Embedding, Module, ModuleList, Sequential

# Names that the configurations of common model libraries use, the most telling one first.
_OF_CONFIG: Final[dict[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "num_layers", "n_layers", "n_layer"),
    "hidden_size": ("hidden_size", "d_model", "n_embd", "dim"),
    "attention_heads": ("num_attention_heads", "n_heads", "n_head"),
    "sequence_length": ("seq_length", "max_seq_len", "max_position_embeddings", "block_size", "n_positions"),
    "vocabulary": ("vocab_size", "padded_vocab_size"),
}


def model_facts(models: Mapping[str, Module]) -> dict[str, Any]:
    """Facts of what this rank holds: of one pipeline stage, where there are stages.

    parameters: as the framework counts them; a sharded parameter counts whole. layers: the longest row of modules of
    one class, or what the configuration says for the whole model. sequence_length: the longest that the model allows.

    >>> model_facts({"": Sequential(Embedding(100, 8), ModuleList([Module(), Module()]))})["vocabulary"]
    100
    """
    modules = list({id(each): each for model in models.values() for each in model.modules()}.values())
    unique = list({id(each): each for model in models.values() for each in model.parameters()}.values())
    facts: dict[str, Any] = {
        "parameters": sum(each.numel() for each in unique),
        "trainable_parameters": sum(each.numel() for each in unique if each.requires_grad),
        "modules": len(modules),
        "class": ", ".join(sorted({type(each).__name__ for each in models.values()})),
    }
    read = {**_by_structure(modules), **_by_config(modules)}
    return {**facts, **{name: read.get(name) for name in _OF_CONFIG}}


def _by_structure(modules: Iterable[Module]) -> dict[str, int]:
    facts: dict[str, int] = {}
    embeddings = [each for each in modules if isinstance(each, Embedding)]
    if embeddings:
        largest = max(embeddings, key=lambda each: each.num_embeddings)
        facts |= {"vocabulary": largest.num_embeddings, "hidden_size": largest.embedding_dim}
    rows = [
        Counter(type(each) for each in module.children()).most_common(1)[0][1]
        for module in modules
        if isinstance(module, (ModuleList, Sequential)) and len(module)
    ]
    if rows:
        facts["layers"] = max(rows)
    return facts


def _by_config(modules: Iterable[Module]) -> dict[str, int]:
    for module in modules:
        config = vars(module).get("config") or vars(module).get("args")
        found = {fact: value for fact, names in _OF_CONFIG.items() if (value := _first(config, names)) is not None}
        if len(found) > 1:
            return found
    return {}


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
