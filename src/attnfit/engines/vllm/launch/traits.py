"""What a release makes of a model, trait by trait, and from which key each comes: `attnfit model`.

No second opinion: the numbers are those that `sizes`, `engine_config` and `layers` hand to a launch. A key counts as a
trait's source because the function that computes the trait read it, which is watched here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attnfit.core import Capability, Model, Question, Selection
from attnfit.engines.traits import LayerKind, Trait, Traits
from attnfit.engines.vllm.flags import parse_flags
from attnfit.engines.vllm.launch import engine_config, layers, model_side, sizes
from attnfit.engines.vllm.launch.asker import LayerAnswer
from attnfit.engines.vllm.launch.dtype import config_dtype
from attnfit.engines.vllm.launch.quant_traits import quant_traits
from attnfit.engines.vllm.launch.state import EngineConfig, KvLayer, Refusal, Unknown
from attnfit.engines.vllm.launch.way import Way
from attnfit.hf.config import HfConfig

#: no checkpoint is refused for the age of this GPU; nothing else of it shows in the traits
GPU = Capability(10, 0)
_ANY = Selection(chosen="ANY", valid=("ANY",), verdicts=())
#: shown only where the model has them, as its class fills them in
_LATENT = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "q_lora_rank")
_MORE = (
    "index_topk", "index_head_dim", "index_n_heads", "sliding_window", "linear_num_key_heads",
    "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "ssm_state_size", "mamba_num_heads",
    "mamba_head_dim", "n_groups", "num_nextn_predict_layers", "mtp_num_hidden_layers",
)  # fmt: skip


def traits(model: Model, release: str, gpu: Capability = GPU) -> Traits:
    """Everything that could be read; what could not is in `unknown`, a sentence each. Raises nothing."""
    found = Traits(release=release)
    try:
        _read(found, model, release, gpu)
    except (Unknown, Refusal) as missing:
        found.unknown += (_first_words(str(missing)),)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        found.unknown += (f"a value in config.json that cannot be followed ({type(error).__name__}: {error})",)
    return found


def _read(found: Traits, model: Model, release: str, gpu: Capability) -> None:
    flags = parse_flags(release, [model.path.lstrip("-") or "model"], {}, form="serve", files_here=True)
    way = Way(model.config, model.hf_quant, gpu, flags, release, None, model.path, model.files, None, True)
    node = model_side.load_node(way)
    text = node.text()
    source = Sources(model.config, node, text)
    found.traits += tuple(_shape(way, node, text, source))
    resolved = engine_config.resolve_all(
        model.config,
        model.hf_quant,
        gpu,
        flags,
        release,
        path=model.path,
        files=model.files,
        weight_dtypes=model.weight_dtypes,
        hub=model.hub,
    )
    cfg = resolved.config
    found.notes += tuple(f"a plain launch is refused: {_first_words(refusal.message)}" for refusal in resolved.refusals)
    named = config_dtype(node)
    read = "headers of the weights" if named is None and model.weight_dtypes else ""
    found.traits = (
        Trait("architecture", cfg.architecture, source.plain("architectures") or f"model_type {cfg.model_type}"),
        *((Trait("model_class", cfg.model_class, f"vLLM {release}"),) if cfg.model_class else ()),
        *found.traits,
        Trait("max_model_len", cfg.max_model_len, source.of_length(cfg, text)),
        Trait("dtype", named or cfg.dtype, source.plain("dtype", "torch_dtype") or read or "the engine's own choice"),
        *quant_traits(cfg, model),
    )
    watched = Watched(cfg.text)
    cfg.text = watched
    answer = layers.ask(cfg, _selected)
    found.layers = tuple(_kinds(cfg, answer))
    found.layers_from = tuple(dict.fromkeys(source.of(k) for k in watched.read if k in _PATTERNS))
    found.unknown += tuple(answer.unknown)


def _first_words(message: str) -> str:
    """The sentence of a refusal, without pydantic's frame."""
    told = message.rpartition("Value error, ")[2].partition(" [type=")[0]
    line = told.strip().splitlines()[0] if told.strip() else "no reason given"
    return line if len(line) <= 200 else line[:200].rpartition(" ")[0] + " ..."


def _selected(question: Question) -> Selection:
    return _ANY


def _shape(way: Way, node: HfConfig, text: HfConfig, source: Sources) -> Iterator[Trait]:
    """The numbers of `sizes.sizes_of`, each asked for by itself so that its keys are seen."""
    kind, text_kind = str(node.get("model_type")), text.get("model_type")
    whole = sizes.sizes_of(way.facts, node, text, False)
    yield Trait("model_type", kind, source.plain("model_type"))
    if text_kind != kind:
        yield Trait("text_model_type", text_kind, source.of("model_type"))
    yield Trait("config_class", text.cls, f"model_type, in {way.classes.source or 'the release'}")
    heads, mla = whole.total_num_attention_heads, whole.is_deepseek_mla
    readers: list[tuple[str, Any, Callable[[HfConfig], Any]]] = [
        ("hidden_layers", whole.total_num_hidden_layers, lambda t: sizes.layers_of(kind, t)),
        ("hidden_size", whole.hidden_size, lambda t: t.get("hidden_size")),
        ("attention_heads", heads, lambda t: t.get("num_attention_heads")),
        ("kv_heads", whole.total_num_kv_heads, lambda t: sizes.kv_heads_of(kind, t, heads)),
        ("head_size", whole.head_size, lambda t: sizes.head_size_of(kind, t, heads, mla, False)),
        ("experts", whole.num_experts, sizes.experts_of),
        ("experts_per_token", whole.num_experts_per_token, sizes.experts_per_token_of),
        ("vocab_size", whole.vocab_size, lambda t: t.get("vocab_size")),
    ]
    for name, value, reader in readers:
        if value or name not in ("experts", "experts_per_token"):
            where = source.read_by(reader)
            if (name == "kv_heads" and not where) or (name == "head_size" and where == source.of("hidden_size")):
                where = ", ".join(filter(None, (where, source.of("num_attention_heads"))))  # what it falls back on
            yield Trait(name, value, where or "not in config.json")
    for key in (*(_LATENT if mla else ()), *_MORE):
        value = text.attrs.get(text.amap.get(key, key))
        if value is not None and not isinstance(value, HfConfig | dict):
            yield Trait(key, value, source.of(key))


class Sources:
    """Which key of config.json, or which default, an attribute of the language model's config comes from."""

    def __init__(self, raw: dict[str, Any], node: HfConfig, text: HfConfig) -> None:
        self.raw, self.text = raw, text
        self.path = _path_to(node, text) if text is not node else ()
        self.part: Any = raw
        for name in self.path or ():
            self.part = self.part.get(name) if isinstance(self.part, dict) else None

    def of(self, key: str) -> str:
        real = self.text.amap.get(key, key)
        names = [key, real, *(a for a, r in self.text.amap.items() if r == real)]
        if isinstance(self.part, dict):
            for name in names:
                if self.part.get(name) is not None:
                    return ".".join((*(self.path or ()), name))
            if real == "dtype" and self.part.get("torch_dtype") is not None:
                return ".".join((*(self.path or ()), "torch_dtype"))
        return f"{real}, as {self.text.cls} fills it in"

    def plain(self, *names: str) -> str:
        """The first of these at the top of config.json, else in its part for the language model."""
        for name in names:
            if self.raw.get(name) is not None:
                return name
        for name in names:
            if isinstance(self.part, dict) and self.part.get(name) is not None:
                return ".".join((*(self.path or ()), name))
        return ""

    def read_by(self, reader: Callable[[HfConfig], Any]) -> str:
        """The keys that `reader` reads of the text config, where they have a value."""
        watched = WatchedConfig(self.text)
        try:
            reader(watched)
        except (Unknown, ArithmeticError, LookupError, TypeError, ValueError):
            return ""
        keys = [key for key in dict.fromkeys(watched.read) if key != "model_type"]
        return ", ".join(dict.fromkeys(self.of(key) for key in keys))

    def of_length(self, cfg: EngineConfig, text: HfConfig) -> str:
        key = getattr(cfg.sizes, "max_len_key", None)
        rope = text.attrs.get("rope_parameters")
        stretched = isinstance(rope, dict) and rope.get("factor") and cfg.max_model_len != cfg.sizes.max_len
        return (self.of(key) if key else "") + (", rope factor" if stretched else "")


class WatchedConfig(HfConfig):
    """The same config object, remembering which attributes were read and had a value."""

    def __init__(self, node: HfConfig) -> None:
        self.__dict__.update(node.__dict__)
        self.read: list[str] = []

    def peek(self, name: str) -> Any:
        value = super().peek(name)
        if name != "model_type" and value is not None and name in (*self.attrs, *self.amap):
            self.read.append(name)
        return value


class Watched(dict[str, Any]):
    """The same mapping, remembering which keys were read."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.read: dict[str, None] = {}

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        if value is not None and key in self:
            self.read[key] = None
        return value


#: keys that say which layer is of which kind
_PATTERNS = frozenset(
    {
        "layer_types", "layers_block_type", "hybrid_override_pattern", "full_attention_interval", "linear_attn_config",
        "attn_type_list", "layer_group_size", "sliding_window_pattern", "compress_ratios", "compress_rates",
        "interleave_moe_layer_step", "no_rope_layers", "index_topk", "kv_lora_rank", "attention_chunk_size",
        "sliding_window", "indexer_types", "mlp_only_layers",
    }
)  # fmt: skip


def _path_to(node: HfConfig, wanted: HfConfig, depth: int = 0) -> tuple[str, ...] | None:
    for name, value in node.attrs.items():
        if value is wanted:
            return (name,)
    for name, value in node.attrs.items():
        if isinstance(value, HfConfig) and depth < 3 and (rest := _path_to(value, wanted, depth + 1)) is not None:
            return (name, *rest)
    return None


_STATE = {
    "GDN_ATTN": "linear (gated delta net)", "MAMBA2": "Mamba2", "MAMBA1": "Mamba", "SHORT_CONV": "short convolution",
    "LINEAR": "linear", "LINEAR_ATTN": "linear",
}  # fmt: skip


def _kinds(cfg: EngineConfig, answer: LayerAnswer) -> Iterator[LayerKind]:
    """Every kind of cache-bearing layer, in the order the constructor makes them."""
    latent = {q.layer_class for q in answer.layers if q.question.use_mla}
    plain = {q.layer_class for q in answer.layers if not q.question.use_mla}
    if cfg.use_mla:  # classes that bind their backend do not ask
        latent |= {layer.layer_class for layer in answer.kv_layers} - plain
    for layer in answer.kv_layers:
        yield LayerKind(
            kind=_named(cfg, layer, layer.layer_class in latent),
            layer_class=layer.layer_class,
            count=layer.count,
            head_size=layer.head_size or None,
            kv_heads=layer.num_kv_heads,
            window=layer.sliding_window,
        )


def _named(cfg: EngineConfig, layer: KvLayer, latent: bool) -> str:
    if layer.mamba_type is not None:
        kda = any(word in layer.layer_class for word in ("Kimi", "KDA", "DeltaAttention"))
        return "linear (KDA)" if kda else _STATE.get(layer.mamba_type, f"state space ({layer.mamba_type})")
    if "Indexer" in layer.layer_class:
        return "indexer cache"
    if layer.layer_class.endswith("Cache"):
        return "cache beside attention" + (", sliding window" if layer.sliding_window else "")
    if latent or "MLA" in layer.layer_class:
        packed = f", compressed {layer.ratio}x" if layer.ratio and layer.ratio > 1 else ""
        sparse, window = ", sparse" * layer.use_sparse, ", sliding window" * bool(layer.sliding_window)
        return f"MLA{sparse}{packed}{window}"
    if layer.attn_type not in ("decoder", ""):
        return layer.attn_type.replace("_", "-")
    heads, shared = cfg.sizes.total_num_attention_heads, layer.num_kv_heads
    form = "MQA" if shared == 1 and heads > 1 else "GQA" if shared and shared < heads else "MHA"
    chunked = ", chunked" if "ChunkedLocal" in layer.layer_class else ""
    window = ", sliding window" if layer.sliding_window else ""
    return form + (", sparse" if layer.use_sparse else "") + chunked + window
