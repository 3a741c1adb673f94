"""Plans of models with multi-head latent attention: what `plan.decoder` cannot say as data."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from attnfit.core import Selection, Status
from attnfit.engines.vllm.launch.plan import Ctx, Layer, Plan, PlanFunction, attention
from attnfit.engines.vllm.launch.state import Unknown


def mla_layer(c: Ctx, i: int, *, cls: str = "MLAAttention", sparse: bool = False, heads: int | None = None) -> Layer:
    """MLAAttention: head size is the latent plus the rope part (mla_attention.py:478)."""
    rank, rope = c.number("kv_lora_rank"), c.number("qk_rope_head_dim")
    return Layer(
        cls,
        i,
        head_size=rank + rope,
        heads=c.shard(heads or c.number("num_attention_heads")),
        kv_heads=1,
        mla=True,
        sparse=sparse,
    )


def indexer(i: int, cls: str = "DeepseekV32IndexerCache", backend: str = "DEEPSEEK_V32_INDEXER") -> Layer:
    return Layer(cls, i, backend=backend)


def has_indexer(c: Ctx, i: int) -> bool:
    """Layers whose top-k another layer shares build no indexer (deepseek_v2.py:1117, deepseek_v32/attention.py:163)."""
    if i >= c.number("num_hidden_layers"):  # MTP layers always do
        return True
    pattern = c.get("index_topk_pattern")
    if pattern is not None:
        return not (0 <= i < len(pattern) and pattern[i] == "S")
    freq, offset = c.get("index_topk_freq", 1), c.get("index_skip_topk_offset", 2)
    if not isinstance(freq, int) or not isinstance(offset, int) or freq < 1:
        raise Unknown("index_topk_freq in config.json")
    return max(i - offset + 1, 0) % freq == 0


def _latent(c: Ctx, i: int, sparse_key: str = "index_topk") -> Iterator[Layer]:
    sparse = sparse_key in c.text
    if sparse and has_indexer(c, i):
        yield indexer(i)
    yield mla_layer(c, i, sparse=sparse)


def unlatent(c: Ctx, i: int, *, causal: bool = True) -> Layer:
    """MLA switched off: plain attention over the whole query/key head (deepseek_v2.py:580)."""
    heads = c.shard(c.number("num_attention_heads"))
    encoder = causal and not c.causal()
    return Layer(
        "EncoderOnlyAttention" if encoder else "Attention",
        i,
        head_size=c.number("qk_nope_head_dim") + c.number("qk_rope_head_dim"),
        heads=heads,
        kv_heads=heads,
        attn_type="encoder_only" if encoder else "decoder",
        early=encoder,
    )


def deepseek_layer(c: Ctx, i: int) -> Iterator[Layer]:
    """DeepseekV2DecoderLayer's choice of attention class (deepseek_v2.py:1283)."""
    nope, rope = c.get("qk_nope_head_dim", 0), c.get("qk_rope_head_dim", 0)
    zero = (nope or 0) == 0 and (rope or 0) == 0
    if zero or (c.get("model_type") == "deepseek" and c.architecture != "AXK1ForCausalLM"):
        window = c.cfg.rswa_window
        name = "Attention" if window is None else "RSWAAttention"
        plain = {"class": name, "head": ["hidden_size/num_attention_heads"], "kv": ["num_key_value_heads"]}
        yield attention(c, plain, i)
    elif c.cfg.use_mla:
        yield from _latent(c, i)
    else:
        yield unlatent(c, i)


def deepseek(c: Ctx, p: Plan) -> Iterator[Layer]:
    for i in c.layers(c.number("num_hidden_layers")):
        yield from deepseek_layer(c, i)


def latent_only(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Every layer MLAAttention through the wrapper, dense, whatever use_mla says (sarvam.py:223)."""
    for i in c.layers(c.number("num_hidden_layers")):
        yield mla_layer(c, i)


def longcat(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Two latent attentions per layer, named self_attn.0 and self_attn.1 (longcat_flash.py:284)."""
    layers = c.get("num_layers") or c.get("num_hidden_layers")
    if not isinstance(layers, int):
        raise Unknown("num_layers in config.json")
    for i in c.layers(layers):
        for _ in range(2):
            yield mla_layer(c, i, sparse="index_topk" in c.text)


def glm_lite(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Glm4MoeLite: DeepSeek's latent layer, or plain attention with MLA off (glm4_moe_lite.py:141)."""
    for i in c.layers(c.number("num_hidden_layers")):
        if c.cfg.use_mla:
            yield from _latent(c, i)
        else:
            yield unlatent(c, i)


def deepseek_v32_layer(c: Ctx, i: int) -> Iterator[Layer]:
    if has_indexer(c, i):
        yield indexer(i)
    yield mla_layer(c, i, cls="DeepseekV32Attention", sparse=True)


def deepseek_v32(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Sparse in every layer, whatever the config says (models/deepseek_v32/attention.py:121)."""
    for i in c.layers(c.number("num_hidden_layers")):
        yield from deepseek_v32_layer(c, i)


def deepseek_v4_layer(c: Ctx, i: int) -> Iterator[Layer]:
    """Never asks the selector: caches bound by the class (models/deepseek_v4/attention.py:132, nvidia/model.py:536)."""
    ratio = 1
    if i < c.number("num_hidden_layers"):
        if c.get("compress_ratios"):  # as the checkpoint says it; releases before transformers' own class read this
            ratio = max(1, int(c.at("compress_ratios", i)))
        else:
            ratio = max(1, int(c.need("compress_rates").get(c.at("layer_types", i), 0)))
    backend, major = c.cfg.attention.get("backend"), c.cfg.capability.major
    flashinfer = backend == "FLASHINFER_MLA_SPARSE_DSV4" or (
        major == 12 and backend not in ("FLASHMLA_SPARSE", "FLASHMLA_SPARSE_DSV4")
    )
    packed = not (flashinfer and major != 12)  # the SM12x and FlashMLA classes pack the cache as fp8_ds_mla
    if flashinfer:
        name = "DeepseekV4FlashInferSM120Attention" if major == 12 else "DeepseekV4FlashInferMLAAttention"
    else:
        name = "DeepseekV4FlashMLAAttention"
    head, index = c.get("head_dim"), c.get("index_head_dim")
    if ratio == 4:
        yield indexer(i, "DeepseekV4IndexerCache", "DEEPSEEK_V4_INDEXER")._replace(ratio=ratio)
        yield v4_compressor(i, ratio, index)
    yield Layer("DeepseekV4SWACache", i, backend="DEEPSEEK_SPARSE_SWA")
    yield Layer(
        name,
        i,
        backend="FLASHINFER_MLA_SPARSE_DSV4" if flashinfer else "FLASHMLA_SPARSE_DSV4",
        kv="fp8_ds_mla" if packed else "run",
        ratio=ratio,
    )
    if ratio > 1:
        yield v4_compressor(i, ratio, head)


def v4_compressor(i: int, ratio: int, head: Any) -> Layer:
    """The states not yet compressed: key/value and score, twice where windows overlap (compressor.py:275)."""
    overlap = 2 if ratio == 4 else 1
    width = 2 * overlap * head if isinstance(head, int) else None
    return Layer(
        "CompressorStateCache", i, backend="CompressorBackend", window=overlap * ratio, ratio=ratio, width=width
    )


def deepseek_v4(c: Ctx, p: Plan) -> Iterator[Layer]:
    for i in c.layers(c.number("num_hidden_layers")):
        yield from deepseek_v4_layer(c, i)


def glm5_next_layer(c: Ctx, i: int, *, mtp: bool = False) -> Iterator[Layer]:
    """Linear attention, or latent attention whose layers all have an indexer (glm5next/common/model.py:376)."""
    types = c.get("layer_types") or []
    if not mtp and i < len(types) and types[i] == "linear_attention":
        yield Layer("Glm5NextLinearAttention", i, backend="GDN_ATTN", mamba="GDN_ATTN")
        return
    sparse = c.get("index_topk") is not None
    if sparse:
        yield indexer(i, "Glm5NextIndexerCache")
        yield Layer("Glm5NextTailCache", i, backend="KPOOL_TAIL")
    yield mla_layer(c, i, sparse=sparse)


def glm5_next(c: Ctx, p: Plan) -> Iterator[Layer]:
    for i in c.layers(c.number("num_hidden_layers")):
        yield from glm5_next_layer(c, i)


def kimi_linear(c: Ctx, p: Plan) -> Iterator[Layer]:
    """KDA layers by number (from 1), latent attention of its own class in between (kimi_k3/nvidia/model.py:707)."""
    kda = c.get("linear_attn_config")
    numbers = set((kda or {}).get("kda_layers") or ())
    for i in c.layers(c.number("num_hidden_layers")):
        if i + 1 in numbers:
            if kda.get("use_full_rank_gate", False):
                yield Layer("KimiK3DeltaAttention", i, backend="KIMI_K3_KDA", mamba="GDN_ATTN")
            else:
                yield Layer("KimiGatedDeltaNetAttention", i, backend="GDN_ATTN", mamba="GDN_ATTN")
        else:
            yield mla_layer(c, i, cls=p.get("class", "MultiHeadLatentAttention"))


def kimi_latent(c: Ctx, i: int) -> Layer:
    """MultiHeadLatentAttention asks by itself (kimi_k3/nvidia/mla.py:324): no skip layers, no KV rewriting."""
    return mla_layer(c, i, cls="MultiHeadLatentAttention")


def openpangu_layer(c: Ctx, i: int) -> Iterator[Layer]:
    """openpangu.py:800: MLA, else attention with static sinks, else plain attention with an interleaved window."""
    if all(c.get(key) is not None for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")):
        yield mla_layer(c, i)
        return
    interleaved = c.get("interleaved_sliding_window")
    window = interleaved[i % len(interleaved)] if isinstance(interleaved, list) and interleaved else interleaved
    if window is not None and not isinstance(window, int):
        raise Unknown("interleaved_sliding_window in config.json")
    if (c.get("param_sink_number") or 0) > 0:
        heads, kv = c.number("num_attention_heads"), c.size(["num_key_value_heads", "num_attention_heads"])
        yield Layer(
            "StaticSinkAttention",
            i,
            head_size=c.size(["qk_nope_dim+qk_rope_dim"]),
            heads=c.shard(heads),
            kv_heads=c.shard_kv(kv),
            window=window,
            backend="FLASH_ATTN_DIFFKV",
            kv="run",
        )
        return
    plain = attention(c, {"head": ["head_dim", "hidden_size/num_attention_heads"], "causal": True}, i)
    yield plain._replace(window=window)


def openpangu(c: Ctx, p: Plan) -> Iterator[Layer]:
    for i in c.layers(c.number("num_hidden_layers")):
        yield from openpangu_layer(c, i)


def bailing_latent(c: Ctx, i: int) -> Layer:
    """BailingMoeV25MLAAttention and its successor carry defaults of their own (bailing_moe_linear.py:90)."""
    rope = int(c.get("qk_rope_head_dim", 64))
    return Layer(
        "MLAAttention",
        i,
        head_size=int(c.get("kv_lora_rank", 512)) + rope,
        heads=c.shard(c.number("num_attention_heads")),
        kv_heads=1,
        mla=True,
    )


def bailing_linear(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Linear attention except the last layer of each group (bailing_moe_linear.py:466)."""
    group = int(c.get("layer_group_size", 1))
    for i in c.layers(c.number("num_hidden_layers")):
        if group <= 0 or (i + 1) % group == 0:
            yield bailing_latent(c, i)
        else:
            yield Layer("BailingMoELinearAttention", i, backend="BAILING_LINEAR_ATTN", mamba="LINEAR")


def bailing_v3(c: Ctx, p: Plan) -> Iterator[Layer]:
    """KDA except the last layer of each group (bailing_moe_v3.py:131)."""
    group, total = c.number("layer_group_size"), c.number("num_hidden_layers")
    for i in c.layers(total):
        if (i + 1) % group == 0 or i >= total // group * group:
            yield bailing_latent(c, i)
        else:
            yield Layer("BailingMoeV3KimiDeltaAttention", i, backend="GDN_ATTN", mamba="GDN_ATTN")


def dots3_layer(c: Ctx, i: int) -> Iterator[Layer]:
    """Sliding layers bind a Triton MLA of their own; full layers ask, then are replaced by a padded layer that binds
    its own backend (dots3_note/nvidia/model.py:243, 467)."""
    if c.at("layer_types", i) == "sliding_attention":
        head = c.number("swa_kv_lora_rank") + c.number("swa_qk_rope_head_dim")
        heads = c.shard(c.number("swa_num_attention_heads"))
        yield Layer(
            "MLAAttention", i, head_size=head, heads=heads, kv_heads=1, backend="TRITON_MLA", kv="unpacked",
            window=c.number("sliding_window_size"),
        )  # fmt: skip
        return
    full = mla_layer(c, i, sparse="index_topk" in c.text)
    if full.sparse and has_indexer(c, i):
        yield indexer(i)
    yield full._replace(probe=True)
    padded = full._replace(cls="Dots3NotePaddedMLAAttention", sparse=True)
    yield padded._replace(backend="DOTS3_NOTE_PADDED_MLA_SPARSE", kv="run")


def dots3(c: Ctx, p: Plan) -> Iterator[Layer]:
    for i in c.layers(c.number("num_hidden_layers")):
        yield from dots3_layer(c, i)


_HY_SPARSE = ("sparse_attention", "sparse", "indexed_attention", "deepseek_sparse_attention")


def hy_v4(c: Ctx, p: Plan) -> Generator[Layer, Selection | None, None]:
    """HYV4 probes the selector for sparse layers, and again for a learnable sink; a backend that takes sinks is then
    bound, else the layer asks for itself (hy_v4/nvidia/attention.py:348, 545)."""
    types = c.get("layer_types")
    for i in c.layers(c.number("num_hidden_layers")):
        sparse = "index_topk" in c.text and types is not None and i < len(types) and types[i] in _HY_SPARSE
        layer = mla_layer(c, i, sparse=sparse)
        probe = layer._replace(asks_as="HYV4MLAAttention", probe=True)
        if sparse:
            yield probe
            shared = c.get("indexer_types")
            if shared is None and c.get("index_topk_freq", 1) != 1:
                raise Unknown("which layers share their top-k indices (index_topk_freq)")
            if shared is None or shared[i] == "full":
                yield indexer(i)
        if c.get("learnable_sink", False):
            answer = yield probe
            bound = sink_backend(answer) if sparse else None
            if bound is not None:
                yield layer._replace(backend=bound, kv="packed")
                continue
        yield layer


def sink_backend(answer: Selection | None) -> str | None:
    """Backend bound for a learnable sink: FLASHMLA_SPARSE's sink-taking subclass wherever FLASHMLA_SPARSE is valid."""
    if answer is None:
        return None
    for verdict in answer.verdicts:
        if verdict.backend == "FLASHMLA_SPARSE":
            if verdict.status is Status.UNKNOWN:
                raise Unknown(verdict.unknown or "whether FLASHMLA_SPARSE takes this layer")
            return "FLASHMLA_SPARSE" if verdict.status is Status.ACCEPTS else None
    raise Unknown("whether FLASHMLA_SPARSE takes this layer")


PLANS: dict[str, PlanFunction] = {
    f.__name__: f
    for f in (
        deepseek,
        latent_only,
        longcat,
        glm_lite,
        deepseek_v32,
        deepseek_v4,
        glm5_next,
        kimi_linear,
        openpangu,
        bailing_linear,
        bailing_v3,
        dots3,
        hy_v4,
    )
}
