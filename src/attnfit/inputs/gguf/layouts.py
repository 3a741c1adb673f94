"""What is special about an architecture's keys: one small function for each layout that `architectures` names.

Each reads keys through `Keys`, which notes for every trait the key it came from. What llama.cpp's converter writes
decides; a key that the layout needs and the file lacks leaves the attention unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attnfit.inputs.gguf.header import Array, Value


class NotUnderstood(Exception):
    """The keys do not say how this model attends; names what is missing."""


class Keys:
    """The keys of one architecture, and the traits read from them."""

    def __init__(self, values: dict[str, Value], architecture: str) -> None:
        self._values, self.architecture = values, architecture
        self.config: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.notes: list[str] = []

    def name(self, key: str) -> str:
        """The key in full: `glm-dsa.attention.head_count`."""
        return f"{self.architecture}.{key}"

    def put(self, trait: str, value: Any, source: str) -> None:
        self.config[trait], self.sources[trait] = value, source

    def whole(self, key: str) -> int | None:
        """A whole number, or None where the file has none of that name. Raises NotUnderstood for anything else."""
        value = self._values.get(self.name(key))
        if isinstance(value, Array) and value.values and len(set(value.values)) == 1:
            value = value.values[0]  # one for each layer, all the same
        if value is None or (isinstance(value, Array) and not value.length):
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
            if isinstance(value, Array) and value.values:
                raise NotUnderstood(f"{self.name(key)} differs from layer to layer")
            raise NotUnderstood(f"{self.name(key)} is no whole number")
        return value

    def need(self, key: str) -> int:
        found = self.whole(key)
        if found is None:
            raise NotUnderstood(f"{self.name(key)} is missing")
        return found

    def each(self, key: str, count: int) -> tuple[int, ...]:
        """A whole number for each layer; one for all is repeated. Raises NotUnderstood."""
        value = self._values.get(self.name(key))
        if isinstance(value, int) and not isinstance(value, bool):
            return (value,) * count
        values = value.values if isinstance(value, Array) else None
        if values is None or len(values) < count or not all(isinstance(v, int) and v >= 0 for v in values):
            raise NotUnderstood(f"{self.name(key)} does not say it for each of {count} layers")
        return tuple(int(v) for v in values[:count])

    def has(self, key: str) -> bool:
        return self.name(key) in self._values

    def copy(self, trait: str, key: str) -> int | None:
        """The trait as the key has it; nothing where the file has no such key."""
        found = self.whole(key)
        if found is not None:
            self.put(trait, found, self.name(key))
        return found

    def copy_all(self, traits: dict[str, str]) -> None:
        for trait, key in traits.items():
            self.copy(trait, key)


def _layers(keys: Keys) -> int:
    layers: int = keys.config["num_hidden_layers"]
    return layers


def _kv_layers(keys: Keys) -> tuple[int, ...]:
    """KV heads of each layer; the layers without any attend to nothing. num_key_value_heads becomes the number."""
    counts = keys.each("attention.head_count_kv", _layers(keys))
    attending = {count for count in counts if count}
    if len(attending) > 1:
        raise NotUnderstood(f"{keys.name('attention.head_count_kv')} differs between layers that attend")
    keys.put("num_key_value_heads", max(counts), keys.name("attention.head_count_kv"))
    return counts


def _state(keys: Keys, names: dict[str, str]) -> None:
    """Mamba-2 sizes under the names of a family: heads, head_dim, state, groups, kernel."""
    heads, inner = keys.need("ssm.time_step_rank"), keys.need("ssm.inner_size")
    if not heads or inner % heads:
        raise NotUnderstood(f"{keys.name('ssm.inner_size')} is no multiple of ssm.time_step_rank")
    keys.put(names["heads"], heads, keys.name("ssm.time_step_rank"))
    keys.put(names["head_dim"], inner // heads, f"{keys.name('ssm.inner_size')} / ssm.time_step_rank")
    for trait, key in (("state", "state_size"), ("groups", "group_count"), ("kernel", "conv_kernel")):
        keys.put(names[trait], keys.need(f"ssm.{key}"), keys.name(f"ssm.{key}"))


def plain(keys: Keys) -> None:
    """Attention as the general keys have it."""
    if keys.has("attention.sliding_window_pattern") or keys.whole("attention.sliding_window"):
        raise NotUnderstood(f"which layers use the window of {keys.name('attention.sliding_window')}")


def window(keys: Keys) -> None:
    """A window on some layers: on those the file names, else on those that the config class has by default."""
    size = keys.whole("attention.sliding_window") or None
    keys.put("sliding_window", size, keys.name("attention.sliding_window"))
    if size is None:
        keys.put("layer_types", ["full_attention"] * _layers(keys), "no window in the file")
        return
    name = keys.name("attention.sliding_window_pattern")
    value = keys._values.get(name)
    if isinstance(value, Array) and value.kind == "bool":
        _windowed(keys, [bool(x) for x in value.values or ()], name)
    elif value is not None:
        raise NotUnderstood(f"{name} is no list of true and false")


def _windowed(keys: Keys, pattern: Sequence[bool | int], name: str) -> None:
    if len(pattern) < _layers(keys):
        raise NotUnderstood(f"{name} does not say it for each of {_layers(keys)} layers")
    kinds = ["sliding_attention" if x else "full_attention" for x in pattern[: _layers(keys)]]
    keys.put("layer_types", kinds, name)


def phi3(keys: Keys) -> None:
    """One window for all layers; 0 stands for none."""
    keys.put("sliding_window", keys.whole("attention.sliding_window") or None, keys.name("attention.sliding_window"))


def olmo2(keys: Keys) -> None:
    """Olmo 3 shares the name; only it has a window."""
    if keys.whole("attention.sliding_window"):
        keys.put("model_type", "olmo3", keys.name("attention.sliding_window"))
        keys.put("architectures", ["Olmo3ForCausalLM"], keys.name("attention.sliding_window"))
        window(keys)


def llama(keys: Keys) -> None:
    """Mistral has the same name and the same attention; with experts it is Mixtral."""
    if keys.whole("expert_count"):
        keys.put("model_type", "mixtral", keys.name("expert_count"))
        keys.put("architectures", ["MixtralForCausalLM"], keys.name("expert_count"))
        keys.copy("num_local_experts", "expert_count")
        keys.put("sliding_window", None, "the file has no window")
    plain(keys)


def _latent(keys: Keys) -> None:
    """MLA: with key_length_mla the other lengths are those of the latent cache; before, they were the head's own."""
    rank, rope = keys.need("attention.kv_lora_rank"), keys.need("rope.dimension_count")
    keys.put("kv_lora_rank", rank, keys.name("attention.kv_lora_rank"))
    keys.put("q_lora_rank", keys.whole("attention.q_lora_rank") or None, keys.name("attention.q_lora_rank"))
    keys.put("qk_rope_head_dim", rope, keys.name("rope.dimension_count"))
    suffix = "_mla" if keys.has("attention.key_length_mla") else ""
    key, value = f"attention.key_length{suffix}", f"attention.value_length{suffix}"
    if keys.need(key) <= rope:
        raise NotUnderstood(f"{keys.name(key)} leaves nothing beside rope.dimension_count")
    keys.put("qk_nope_head_dim", keys.need(key) - rope, f"{keys.name(key)} - rope.dimension_count")
    keys.put("v_head_dim", keys.need(value), keys.name(value))
    keys.put("num_key_value_heads", keys.need("attention.head_count"), keys.name("attention.head_count"))
    keys.config.pop("head_dim", None)
    keys.sources.pop("head_dim", None)
    keys.copy_all(
        {
            "first_k_dense_replace": "leading_dense_block_count",
            "n_shared_experts": "expert_shared_count",
            "n_group": "expert_group_count",
            "topk_group": "expert_group_used_count",
        }
    )


def deepseek2(keys: Keys) -> None:
    """DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash and others share the name; gating by softmax is V2's."""
    _latent(keys)
    if keys.whole("expert_gating_func") in (None, 1):
        keys.put("model_type", "deepseek_v2", keys.name("expert_gating_func"))
        keys.put("architectures", ["DeepseekV2ForCausalLM"], keys.name("expert_gating_func"))


def indexed(keys: Keys) -> None:
    """MLA over the tokens that an indexer picks (DeepSeek V3.2, GLM-5)."""
    _latent(keys)
    for trait, key in (("index_n_heads", "head_count"), ("index_head_dim", "key_length"), ("index_topk", "top_k")):
        keys.put(trait, keys.need(f"attention.indexer.{key}"), keys.name(f"attention.indexer.{key}"))
    if keys.has("attention.indexer.types"):  # GLM-5.2: layers that share another layer's pick
        own = keys.each("attention.indexer.types", _layers(keys))
        keys.put("index_topk_pattern", "".join("F" if x else "S" for x in own), keys.name("attention.indexer.types"))


def mimo2(keys: Keys) -> None:
    """Two kinds of attention layers with KV heads of their own, and values shorter than keys."""
    name = keys.name("attention.sliding_window_pattern")
    pattern = keys.each("attention.sliding_window_pattern", _layers(keys))
    counts = keys.each("attention.head_count_kv", _layers(keys))
    found = [sorted({n for n, swa in zip(counts, pattern, strict=True) if bool(swa) == which}) for which in (0, 1)]
    if [len(kind) for kind in found] != [1, 1]:
        raise NotUnderstood(f"{keys.name('attention.head_count_kv')} does not give one number for each kind of layer")
    keys.put("num_key_value_heads", found[0][0], keys.name("attention.head_count_kv"))
    keys.put("swa_num_key_value_heads", found[1][0], keys.name("attention.head_count_kv"))
    keys.put("hybrid_layer_pattern", list(pattern), name)
    keys.copy("sliding_window", "attention.sliding_window")
    for prefix in ("", "swa_"):  # the converter insists that both kinds have the same sizes
        keys.put(f"{prefix}head_dim", keys.need("attention.key_length"), keys.name("attention.key_length"))
        keys.put(f"{prefix}v_head_dim", keys.need("attention.value_length"), keys.name("attention.value_length"))
        if prefix:
            keys.put("swa_num_attention_heads", keys.need("attention.head_count"), keys.name("attention.head_count"))


def gated_delta(keys: Keys) -> None:
    """Gated delta net layers with full attention every so often (Qwen3-Next, Qwen3.5)."""
    heads, inner = keys.need("ssm.time_step_rank"), keys.need("ssm.inner_size")
    if not heads or inner % heads:
        raise NotUnderstood(f"{keys.name('ssm.inner_size')} is no multiple of ssm.time_step_rank")
    keys.put("linear_num_value_heads", heads, keys.name("ssm.time_step_rank"))
    keys.put("linear_value_head_dim", inner // heads, f"{keys.name('ssm.inner_size')} / ssm.time_step_rank")
    keys.put("linear_num_key_heads", keys.need("ssm.group_count"), keys.name("ssm.group_count"))
    keys.put("linear_key_head_dim", keys.need("ssm.state_size"), keys.name("ssm.state_size"))
    keys.put("linear_conv_kernel_dim", keys.need("ssm.conv_kernel"), keys.name("ssm.conv_kernel"))
    if keys.has("attention.recurrent_layers"):
        name, linear = "attention.recurrent_layers", list(keys.each("attention.recurrent_layers", _layers(keys)))
    else:
        name, every = "full_attention_interval", keys.need("full_attention_interval")
        if not every:
            raise NotUnderstood(f"{keys.name(name)} is 0")
        linear = [int((layer + 1) % every != 0) for layer in range(_layers(keys))]
    keys.put("layer_types", ["linear_attention" if x else "full_attention" for x in linear], keys.name(name))


def kimi_linear(keys: Keys) -> None:
    """Kimi delta attention, with MLA on the layers that have KV heads. Layers count from 1 there."""
    counts = keys.each("attention.head_count_kv", _layers(keys))
    heads = keys.need("attention.head_count")
    _latent(keys)
    keys.put(
        "linear_attn_config",
        {
            "full_attn_layers": [layer + 1 for layer, count in enumerate(counts) if count],
            "kda_layers": [layer + 1 for layer, count in enumerate(counts) if not count],
            "head_dim": keys.need("kda.head_dim"),
            "num_heads": heads,
            "short_conv_kernel_size": keys.need("ssm.conv_kernel"),
        },
        f"{keys.name('attention.head_count_kv')}, kda.head_dim, ssm.conv_kernel",
    )


def nemotron_h(keys: Keys) -> None:
    """Mamba-2, attention, feed-forward and expert layers: KV heads and feed-forward lengths of 0 tell which."""
    attend = _kv_layers(keys)
    forward = keys.each("feed_forward_length", _layers(keys))
    moe = "moe" if keys.whole("expert_count") else "mlp"
    if any(a and f for a, f in zip(attend, forward, strict=True)):
        raise NotUnderstood("a layer that is attention and feed-forward at once")
    kinds = ["full_attention" if a else moe if f else "linear_attention" for a, f in zip(attend, forward, strict=True)]
    letters = {"full_attention": "*", "moe": "E", "mlp": "-", "linear_attention": "M"}
    keys.put(
        "hybrid_override_pattern",
        "".join(letters[kind] for kind in kinds),
        f"{keys.name('attention.head_count_kv')}, feed_forward_length",
    )
    keys.put("intermediate_size", max(forward), keys.name("feed_forward_length"))
    _state(keys, {"heads": "mamba_num_heads", "head_dim": "mamba_head_dim", "state": "ssm_state_size",
                  "groups": "n_groups", "kernel": "conv_kernel"})  # fmt: skip


def granite_hybrid(keys: Keys) -> None:
    """Mamba-2 layers, and attention on the layers that have KV heads."""
    kinds = ["attention" if count else "mamba" for count in _kv_layers(keys)]
    keys.put("layer_types", kinds, keys.name("attention.head_count_kv"))
    _state(keys, {"heads": "mamba_n_heads", "head_dim": "mamba_d_head", "state": "mamba_d_state",
                  "groups": "mamba_n_groups", "kernel": "mamba_d_conv"})  # fmt: skip
    inner, hidden = keys.need("ssm.inner_size"), keys.need("embedding_length")
    if hidden and inner % hidden == 0:
        keys.put("mamba_expand", inner // hidden, f"{keys.name('ssm.inner_size')} / embedding_length")


def falcon_h1(keys: Keys) -> None:
    """Attention and Mamba-2 side by side in every layer."""
    _state(keys, {"heads": "mamba_n_heads", "head_dim": "mamba_d_head", "state": "mamba_d_state",
                  "groups": "mamba_n_groups", "kernel": "mamba_d_conv"})  # fmt: skip
    keys.copy("mamba_d_ssm", "ssm.inner_size")


def lfm2(keys: Keys) -> None:
    """Short convolutions, and attention on the layers that have KV heads."""
    kinds = ["full_attention" if count else "conv" for count in _kv_layers(keys)]
    keys.put("layer_types", kinds, keys.name("attention.head_count_kv"))
    keys.put("conv_L_cache", keys.need("shortconv.l_cache"), keys.name("shortconv.l_cache"))


def mamba(keys: Keys) -> None:
    """State-space layers only: no attention heads."""
    for trait in ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"):
        keys.config.pop(trait, None)
        keys.sources.pop(trait, None)
    keys.put("state_size", keys.need("ssm.state_size"), keys.name("ssm.state_size"))
    keys.put("conv_kernel", keys.need("ssm.conv_kernel"), keys.name("ssm.conv_kernel"))
    if keys.architecture == "mamba":
        keys.copy_all({"intermediate_size": "ssm.inner_size", "time_step_rank": "ssm.time_step_rank"})
        return
    _state(keys, {"heads": "num_heads", "head_dim": "head_dim", "state": "state_size", "groups": "n_groups",
                  "kernel": "conv_kernel"})  # fmt: skip


LAYOUTS: dict[str, Callable[[Keys], None]] = {
    layout.__name__: layout
    for layout in (
        plain, window, phi3, olmo2, llama, deepseek2, indexed, mimo2, gated_delta, kimi_linear, nemotron_h,
        granite_hybrid, falcon_h1, lfm2, mamba,
    )
}  # fmt: skip
