"""Plans of encoder-only and encoder-decoder models."""

from __future__ import annotations

from collections.abc import Iterator

from attnfit.engines.vllm.launch.plan import Ctx, Layer, Plan, attention
from attnfit.engines.vllm.launch.plans_other import gemma4_layer
from attnfit.engines.vllm.launch.state import Unknown


def cross(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Decoder self-attention, then cross-attention; the encoder keeps no cache (whisper.py:445)."""
    heads, width = c.size(p["heads"]), c.size(p["width"])
    total = c.size(p["layers"])
    for i in c.all(total) if p.get("whole") else c.layers(total):
        sides = (("Attention", "decoder"), ("CrossAttention", "encoder_decoder"))
        for name, kind in sides if not p.get("self_only") else sides[:1]:
            yield Layer(
                name,
                i,
                head_size=width // heads,
                heads=c.shard(heads),
                kv_heads=c.shard_kv(heads),
                attn_type=kind,
                early=name == "CrossAttention",
            )


def cohere_asr(c: Ctx, p: Plan) -> Iterator[Layer]:
    """The decoder's sizes stand in transf_decoder.config_dict (cohere_asr.py:345)."""
    sizes = (c.get("transf_decoder") or {}).get("config_dict")
    if not isinstance(sizes, dict):
        raise Unknown("transf_decoder.config_dict in config.json")
    inner = Ctx(c.cfg, sizes, c.architecture)
    yield from cross(inner, {"heads": ["num_attention_heads"], "width": ["hidden_size"], "layers": ["num_layers"]})


def embedding_gemma2(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Gemma4's layers without causality; windows one token further (embedding_gemma2.py:147)."""
    for i in c.all(c.number("num_hidden_layers")):
        layer = gemma4_layer(c, p, i)
        yield layer._replace(attn_type="encoder_only")


def modernbert(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Not split over tensor-parallel ranks; a window reaches local_attention / 2 to each side (modernbert.py:95)."""
    heads = c.number("num_attention_heads")
    for i in c.all(c.number("num_hidden_layers")):
        size = c.get("sliding_window") or c.number("local_attention") // 2
        sliding = c.at("layer_types", i) == "sliding_attention"
        layer = attention(c, p, i)._replace(heads=heads, kv_heads=heads)
        yield layer._replace(window=int(size) + 1 if sliding else None)


def moondream3(c: Ctx, p: Plan) -> Iterator[Layer]:
    for i in c.layers(c.number("n_layers")):
        yield attention(c, p, i)


PLANS = {f.__name__: f for f in (cross, cohere_asr, embedding_gemma2, modernbert, moondream3)}
