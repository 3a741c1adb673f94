"""From the keys of a GGUF file to the model's traits, in the terms of a config.json, each with the key it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from attnfit.errors import did_you_mean
from attnfit.inputs.gguf.architectures import FORMS, NAMES, WHAT
from attnfit.inputs.gguf.header import Array
from attnfit.inputs.gguf.layouts import LAYOUTS, Keys, NotUnderstood
from attnfit.inputs.gguf.sets import GgufFiles

_GENERAL = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}

_MOST_LAYERS = 10_000


class GgufModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a GGUF file says of its model."""

    files: GgufFiles
    architecture: str  # general.architecture
    config: dict[str, Any]  # in the terms of a config.json; what could be read, also where not all is understood
    sources: Mapping[str, str]  # trait -> the key it came from
    unknown: str = ""  # why the attention is not understood; empty: it is
    notes: tuple[str, ...] = ()


def describe(files: GgufFiles) -> GgufModel:
    """The model that the header describes. Raises InputError where the file names no architecture."""
    architecture = files.architecture
    form = FORMS.get(architecture)
    keys = Keys(files.header.values, architecture)
    unknown = ""
    if form is not None:
        keys.put("model_type", form.model_type, "general.architecture")
        keys.put("architectures", [form.architecture], "general.architecture")
    try:
        _general(keys, form.experts if form else "")
        _vocabulary(keys, files)
        if form is not None:
            LAYOUTS[form.layout](keys)
    except NotUnderstood as missing:
        unknown = f"how {architecture} (GGUF) attends: {missing}"
    if form is None:
        unknown = _unknown(architecture)
    if files.header.values.get(keys.name("attention.causal")) is False and not unknown:
        unknown = f"how {architecture} (GGUF) attends: {keys.name('attention.causal')} is false"
    return GgufModel(
        files=files,
        architecture=architecture,
        config=keys.config,
        sources=keys.sources,
        unknown=unknown,
        notes=tuple(keys.notes),
    )


def _unknown(architecture: str) -> str:
    if architecture in WHAT:
        return f"how {architecture} (GGUF) attends: it is {WHAT[architecture]}"
    if architecture in NAMES:
        return f"how {architecture} (GGUF) attends: attnfit does not know this architecture's keys"
    guess = did_you_mean(architecture, NAMES) if len(architecture) < 60 else ""
    return f"how {architecture[:60]} (GGUF) attends: no GGUF architecture of that name is known{guess}"


def _general(keys: Keys, experts: str) -> None:
    """Sizes that every architecture has under the same key. The block count includes draft (MTP) layers."""
    blocks, drafts = keys.need("block_count"), keys.whole("nextn_predict_layers") or 0
    if not drafts < blocks <= _MOST_LAYERS:
        raise NotUnderstood(f"{keys.name('block_count')} is {blocks:,}, with {drafts:,} draft layers")
    source = keys.name("block_count") + (" - nextn_predict_layers" if drafts else "")
    keys.put("num_hidden_layers", blocks - drafts, source)
    if drafts:
        keys.copy("num_nextn_predict_layers", "nextn_predict_layers")
    for trait, key in _GENERAL.items():
        try:
            keys.copy(trait, key)
        except NotUnderstood:
            continue  # layers that differ: the layouts that know what it means read it themselves
    if experts:
        keys.copy(experts, "expert_count")
    heads = keys.copy("num_attention_heads", "attention.head_count")
    hidden = keys.whole("embedding_length")
    if keys.copy("head_dim", "attention.key_length") is None and heads and hidden:
        keys.put("head_dim", hidden // heads, f"{keys.name('embedding_length')} / attention.head_count")
    try:
        if keys.copy("num_key_value_heads", "attention.head_count_kv") is None and heads:
            keys.put("num_key_value_heads", heads, keys.name("attention.head_count"))
    except NotUnderstood:
        keys.config.pop("num_key_value_heads", None)  # hybrids: the layouts read one for each layer
        if FORMS.get(keys.architecture) is None or FORMS[keys.architecture].layout in ("plain", "window", "llama"):
            raise


def _vocabulary(keys: Keys, files: GgufFiles) -> None:
    tokens = files.header.values.get("tokenizer.ggml.tokens")
    if keys.copy("vocab_size", "vocab_size") is None and isinstance(tokens, Array):
        keys.put("vocab_size", tokens.length, "tokenizer.ggml.tokens")
    output = any(tensor.name == "output.weight" for tensor in files.tensors)
    if files.tensors and not files.missing:
        keys.put("tie_word_embeddings", not output, "output.weight among the tensors")
