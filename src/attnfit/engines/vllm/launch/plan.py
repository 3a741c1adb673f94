"""The closed vocabulary in which `families/*.json` says how a model class builds its attention layers.

A *plan* turns a model's config into `Layer`s, in the order the engine's constructor makes them. Plans are data
(`decoder`) where data can say it, else small named functions (`kinds.py`, `special.py`). A key that the config does not
have and the class needs is Unknown, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from attnfit.engines.vllm.launch.state import EngineConfig, Unknown

Plan = dict[str, Any]
MOST_LAYERS = 10_000  # more is not a model


class Layer(NamedTuple):
    """One cache-bearing layer as its constructor is called; sizes are per rank."""

    cls: str  # the class that registers the layer (and asks)
    # decoder layer number in its name, what --kv-cache-dtype-skip-layers counts
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    head_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    window: int | None = None  # per_layer_sliding_window; None: the model's own window, if it has one
    sink: bool = False
    attn_type: str = "decoder"
    mla: bool = False
    sparse: bool = False
    backend: str | None = None  # bound by the class: this layer does not ask
    mamba: str | None = None  # a state-space layer: its MambaAttentionBackendEnum name
    kv: str | None = None  # KV dtype bound by the class
    early: bool = False  # asks before Attention.__init__: without sinks, window, mm prefix, skip layers
    quantised: bool = True  # quant_config is handed to the layer
    cacheless: bool = False  # no cache_config handed over: KV dtype "auto", no model window, no skip layers
    asks_as: str | None = None  # class that asks where it is not the one that registers
    probe: bool = False  # asks, but registers no cache
    ratio: int = 1  # tokens that one stored state covers
    width: int | None = None  # elements of one stored state, where the class does not call it head_size


class Ctx:
    """One model (target, draft, or the language model inside a multimodal one) while its plan runs."""

    def __init__(self, cfg: EngineConfig, text: dict[str, Any], architecture: str, *, role: str = "target") -> None:
        self.cfg, self.text, self.architecture, self.role = cfg, text, architecture, role
        self.tp = cfg.tp
        self.whole_pipeline = role == "draft"  # drafts are not split over pipeline ranks

    def get(self, key: str, default: Any = None) -> Any:
        """getattr(config, key, default)."""
        return self.text.get(key, default)

    def need(self, key: str) -> Any:
        """config.key; Unknown when the config does not say."""
        value = self.text.get(key)
        if value is None:
            raise Unknown(f"{key} in config.json ({self.architecture} needs it)")
        return value

    def number(self, key: str) -> int:
        value = self.need(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Unknown(f"{key} in config.json is not a whole number")
        return int(value)

    def listed(self, key: str) -> list[Any]:
        value = self.need(key)
        if not isinstance(value, list | str):
            raise Unknown(f"{key} in config.json is not a list")
        return list(value)

    def size(self, rules: list[str]) -> int:
        """The first rule that applies: a key, `a/b` (whole division) or `a+b`."""
        for rule in rules:
            if rule.isdecimal():
                return int(rule)
            if "/" in rule:
                a, b = rule.split("/")
                return self.number(a) // self.number(b)
            if "+" in rule:
                a, b = rule.split("+")
                return self.number(a) + self.number(b)
            if self.get(rule):
                return self.number(rule)
        raise Unknown(f"one of {', '.join(rules)} in config.json ({self.architecture} needs it)")

    def at(self, key: str, i: int) -> Any:
        """config.key[i]."""
        values = self.listed(key)
        if not 0 <= i < len(values):
            raise Unknown(f"{key}[{i}] in config.json ({self.architecture} needs it)")
        return values[i]

    def shard(self, total: int) -> int:
        return total // self.tp

    def shard_kv(self, total: int) -> int:
        return max(1, total // self.tp)

    def all(self, count: int) -> range:
        """Every layer, whatever the pipeline."""
        if not 0 <= count <= MOST_LAYERS:
            raise Unknown(f"a plausible number of layers in config.json (not {count:.3g})")
        return range(count)

    def layers(self, count: int) -> range:
        """The decoder layers of pipeline rank 0 (vllm/distributed/utils.py:198)."""
        pp = self.cfg.pp
        if pp <= 1 or self.whole_pipeline:
            return self.all(count)
        given = self.cfg.flags.env.get("VLLM_PP_LAYER_PARTITION")
        if given:
            parts = given.split(",")
            if not all(part.strip().isdecimal() for part in parts):
                raise Unknown("VLLM_PP_LAYER_PARTITION")
            return self.all(int(parts[0]))
        share, rest = divmod(count, pp)
        return self.all(share + (1 if rest >= pp - 1 else 0))  # the rest goes to all but the last rank, from behind

    def causal(self) -> bool:
        return bool(self.get("is_causal", True))


def decoder(c: Ctx, p: Plan) -> Iterator[Layer]:
    """One attention layer per decoder layer."""
    for i in c.layers(c.size(p.get("layers", ["num_hidden_layers"]))):
        yield attention(c, p, i)


def attention(c: Ctx, p: Plan, i: int, index: int | None = None) -> Layer:
    """The attention layer number `i` as plan `p` describes it."""
    heads = c.size(p.get("heads", ["num_attention_heads"]))
    kv_heads = c.size(p.get("kv", ["num_key_value_heads", "num_attention_heads"]))
    name = p.get("class", "Attention")
    if p.get("causal") and not c.causal():
        name = "EncoderOnlyAttention"
    attn_type = "encoder_only" if name == "EncoderOnlyAttention" else "decoder"
    return Layer(
        name,
        i if index is None else index,
        head_size=c.size(p["head"]),
        heads=c.shard(heads),
        kv_heads=c.shard_kv(kv_heads),
        window=window(c, p.get("window"), i),
        sink=sink(c, p.get("sinks"), i),
        attn_type=attn_type,
        early=name in EARLY,
        quantised=p.get("quantised", True),
        cacheless=p.get("cacheless", False),
    )


#: classes that ask before Attention.__init__ runs, with fewer fields (encoder_only_attention.py:70 and its siblings)
EARLY = frozenset(
    {
        "EncoderOnlyAttention", "ChunkedLocalAttention", "CrossAttention", "PrefillPrefixLMAttention",
        "StaticSinkAttention",
    }
)  # fmt: skip


def window(c: Ctx, rule: Plan | None, i: int) -> int | None:
    """per_layer_sliding_window of layer `i`."""
    if rule is None:
        return None
    if "every" in rule:  # layers whose number is a multiple
        sliding = i % int(rule["every"]) == 0
    elif "types" in rule:
        if c.get(rule.get("list", "layer_types")) is None:
            if rule.get("needed"):
                raise Unknown(f"layer_types in config.json ({c.architecture} needs it)")
            return None
        sliding = c.at(rule.get("list", "layer_types"), i) == rule["types"]
    else:
        sliding = True
    if not sliding:
        return None
    value = c.get(rule.get("key", "sliding_window"))
    return None if value is None else int(value) + int(rule.get("plus", 0))


def sink(c: Ctx, rule: Any, i: int) -> bool:
    """Whether the layer hands attention sinks on."""
    if rule is None or isinstance(rule, bool):
        return bool(rule)
    if rule == "granite":  # granite.py:109: wanted where layer_types is used, unless attention_sinks says otherwise
        return bool(c.get("attention_sinks", c.get("layer_types") is not None))
    raise Unknown(f"attention sinks of {c.architecture}")


PlanFunction = Callable[[Ctx, Plan], Iterator[Layer]]
