"""Which linear layers a model builds, in the engine's order, with their sizes on one rank.

Names are vLLM's own: merged matrices have one name ("qkv_proj") and the names that checkpoints give their parts.
Sources (0.33.0): the attention, MLP and vision classes in vllm/model_executor/models and layers/mamba. The first layer
of each kind stands for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from attnfit.engines.vllm.launch.model_asserts import no_vision
from attnfit.engines.vllm.launch.moe_layers import first_moe
from attnfit.engines.vllm.launch.state import EngineConfig


class Projection(NamedTuple):
    """One linear layer on one rank. `outputs` are the merged matrices; `split` says which side is cut."""

    name: str  # below `root`: "self_attn.qkv_proj"
    inputs: int
    outputs: tuple[int, ...]
    split: str  # "column" | "row" | "none"
    whole: int = 0  # inputs before they are divided among ranks; 0: the same
    parts: tuple[str, ...] = ()  # what checkpoints call the merged matrices: "self_attn.q_proj"
    root: str = ""  # "model.layers.0"

    @property
    def full(self) -> int:
        return self.whole or self.inputs

    @property
    def path(self) -> str:
        """The name that the engine prints."""
        return f"{self.root}.{self.name}" if self.root else self.name


Placed = tuple[int, int, Projection]  # decoder layer (-1: before the first), place in it (see construct.Step)
_QKV = ("q_proj", "k_proj", "v_proj")


def projections(cfg: EngineConfig) -> Iterator[Placed]:
    """Every kind of linear layer that may be quantised, where the model class is understood."""
    yield from ((-1, place, p) for place, p in enumerate(_tower(cfg)))
    base = "language_model.model.layers" if cfg.is_multimodal else "model.layers"
    for index, place, p in _decoder(cfg):
        yield index, place, p._replace(root=f"{base}.{index}")


def _decoder(cfg: EngineConfig) -> Iterator[Placed]:
    if cfg.use_mla and cfg.model_class.startswith("vllm.models.deepseek_v32"):
        yield from _sparse_mla(cfg)
    elif cfg.use_mla:
        yield from ((0, 0, p) for p in _mla(cfg))
    elif not cfg.is_hybrid:
        yield from ((0, 0, p) for p in _gqa(cfg))
    elif isinstance(cfg.text.get("linear_num_value_heads"), int):
        yield from ((_first_kind(cfg, ("linear_attention",), 0), 0, p) for p in _gated_delta(cfg))
        interval = cfg.text.get("full_attention_interval")
        full = _first_kind(cfg, ("full_attention",), interval - 1 if isinstance(interval, int) else 3)
        yield from ((full, 0, p) for p in _gqa(cfg))
    elif cfg.architecture == "GraniteMoeHybridForCausalLM":
        yield from _granite_hybrid(cfg)
    site = first_moe(cfg)
    dense = cfg.text.get("intermediate_size")
    plain = cfg.architecture != "DeepseekV4ForCausalLM" and (
        not cfg.is_hybrid or isinstance(cfg.text.get("linear_num_value_heads"), int)
    )
    if isinstance(dense, int) and plain and (site is None or site.number > 0):
        yield from ((0, 3, p) for p in _mlp(cfg, dense, "mlp"))
    shared = _shared_experts(cfg)
    if site is not None and shared and site.layer.parallel.sp_size == 1:
        single = "shared_expert_intermediate_size" in cfg.text
        name = "mlp.shared_expert" if single else "mlp.shared_experts"
        yield from ((site.number, 3, p) for p in _mlp(cfg, shared, name))


def _mla(cfg: EngineConfig) -> list[Projection]:
    t, tp = cfg.text, cfg.tp
    names = ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
    if cfg.architecture == "DeepseekV4ForCausalLM" or not all(isinstance(t.get(name), int) for name in names):
        return []
    heads, nope, rope, v, rank = (int(t[name]) for name in names)
    q_rank, hidden = t.get("q_lora_rank"), _hidden(cfg)
    out = []
    if isinstance(q_rank, int):
        parts = ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa")
        out.append(Projection("self_attn.fused_qkv_a_proj", hidden, (q_rank, rank + rope), "none", parts=parts))
        out.append(Projection("self_attn.q_b_proj", q_rank, (heads * (nope + rope) // tp,), "column"))
    else:
        out.append(Projection("self_attn.kv_a_proj_with_mqa", hidden, (rank + rope,), "none"))
        out.append(Projection("self_attn.q_proj", hidden, (heads * (nope + rope) // tp,), "column"))
    out.append(Projection("self_attn.kv_b_proj", rank, (heads * (nope + v) // tp,), "column"))
    out.append(Projection("self_attn.o_proj", heads * v // tp, (hidden,), "row", heads * v))
    return out


def _sparse_mla(cfg: EngineConfig) -> Iterator[Placed]:
    """vllm/models/deepseek_v32/attention.py:187: what the attention needs comes before it, the rest after."""
    layers = {p.name.removeprefix("self_attn."): p for p in _mla(cfg)}
    if "kv_b_proj" in layers:
        yield 0, 0, layers.pop("kv_b_proj")
    rank, heads, size = (cfg.text.get(key) for key in ("q_lora_rank", "index_n_heads", "index_head_dim"))
    if isinstance(rank, int) and isinstance(heads, int) and isinstance(size, int):
        yield 0, 0, Projection("self_attn.indexer.wq_b", rank, (heads * size,), "none")
    yield from ((0, 2, p) for p in layers.values())


def _hidden(cfg: EngineConfig) -> int:
    hidden = cfg.text.get("hidden_size")
    return hidden if isinstance(hidden, int) else 0


def _first_kind(cfg: EngineConfig, names: tuple[str, ...], otherwise: int) -> int:
    kinds = cfg.text.get("layer_types") or cfg.text.get("layers_block_type")
    kinds = kinds if isinstance(kinds, list) else []
    return next((i for i, kind in enumerate(kinds) if kind in names), otherwise)


def _gated_delta(cfg: EngineConfig) -> list[Projection]:
    """mamba/gdn/qwen_gdn_linear_attn.py:803: Qwen3-Next stores q, k, v, z and b, a interleaved, as one matrix each."""
    t, tp = cfg.text, cfg.tp
    keys = int(t.get("linear_num_key_heads") or 0) * int(t.get("linear_key_head_dim") or 0)
    values = int(t["linear_num_value_heads"]) * int(t.get("linear_value_head_dim") or 0)
    hidden = _hidden(cfg)
    mixed: tuple[int, ...] = (2 * (keys + values) // tp,)
    number = int(t["linear_num_value_heads"])
    gates: tuple[int, ...] = (2 * number // tp,)
    parts: tuple[str, ...] = ()
    narrow: tuple[str, ...] = ()
    if cfg.architecture != "Qwen3NextForCausalLM":
        mixed = (keys // tp, keys // tp, values // tp, values // tp)
        whole = cfg.quantization in (
            "auto_awq",
            "auto_gptq",
            "inc",
        )  # too narrow for Marlin, so every rank has all of it
        gates = (number, number) if whole else (number // tp, number // tp)
        parts = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z")
        narrow = ("linear_attn.in_proj_b", "linear_attn.in_proj_a")
    return [
        Projection("linear_attn.in_proj_qkvz", hidden, mixed, "column", parts=parts),
        Projection("linear_attn.in_proj_ba", hidden, gates, "column", parts=narrow),
        Projection("linear_attn.out_proj", values // tp, (hidden,), "row", values),
    ]


def _gqa(cfg: EngineConfig) -> list[Projection]:
    q, kv = cfg.num_heads * cfg.head_size, cfg.num_kv_heads * cfg.head_size
    side = "attn" if cfg.architecture == "GptOssForCausalLM" else "self_attn"
    parts = tuple(f"{side}.{part}" for part in _QKV)
    hidden = _hidden(cfg)
    return [
        Projection(f"{side}.qkv_proj", hidden, (q, kv, kv), "column", parts=parts),
        Projection(f"{side}.o_proj", q, (hidden,), "row", q * cfg.tp),
    ]


def _granite_hybrid(cfg: EngineConfig) -> Iterator[Placed]:
    """models/granitemoehybrid.py:87, 105; layers/mamba/mamba_mixer2.py:356."""
    hidden, tp, shared = _hidden(cfg), cfg.tp, cfg.text.get("shared_intermediate_size")
    inner, groups, width, heads = (
        int(cfg.text.get(f"mamba_{name}") or 0) for name in ("expand", "n_groups", "d_state", "n_heads")
    )
    inner, whole = inner * hidden, groups % tp == 0
    groups = max(groups // tp, 1) * width
    mixed: tuple[int, ...] = (inner // tp, inner // tp, groups, groups, heads // tp)
    mixed = mixed if whole else (sum(mixed),)  # groups that the ranks share: one matrix
    state = _first_kind(cfg, ("mamba", "linear_attention"), 0)
    full = _first_kind(cfg, ("attention", "full_attention"), 0)
    yield state, 0, Projection("mixer.in_proj", hidden, mixed, "column", parts=("mamba.in_proj",))
    yield state, 0, Projection("mixer.out_proj", inner // tp, (hidden,), "row", inner, parts=("mamba.out_proj",))
    yield from ((full, 0, p) for p in _gqa(cfg))
    if isinstance(shared, int) and shared:
        yield 0, 4, Projection("shared_mlp.input_linear", hidden, (shared // tp, shared // tp), "column")
        yield 0, 4, Projection("shared_mlp.output_linear", shared // tp, (hidden,), "row", shared)


def _mlp(cfg: EngineConfig, size: int, name: str) -> list[Projection]:
    shard, hidden = size // cfg.tp, _hidden(cfg)
    parts = (f"{name}.gate_proj", f"{name}.up_proj")
    return [
        Projection(f"{name}.gate_up_proj", hidden, (shard, shard), "column", parts=parts),
        Projection(f"{name}.down_proj", shard, (hidden,), "row", size),
    ]


def _shared_experts(cfg: EngineConfig) -> int | None:
    t = cfg.text
    if cfg.architecture == "DeepseekV4ForCausalLM":
        return None  # pads its shared experts to whole blocks (models/deepseek_v4/nvidia/model.py:143)
    for key in ("share_expert_dim", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"):
        if isinstance(t.get(key), int):
            return int(t[key])
    count, size = t.get("n_shared_experts"), t.get("moe_intermediate_size")
    return count * size if isinstance(count, int) and isinstance(size, int) and count else None


# ------------------------------------------------------------------------------------------------ vision towers
def _tower(cfg: EngineConfig) -> list[Projection]:
    """The tower's layers in the order that its class builds them; [] where there is none or it is not understood."""
    vision = cfg.config.get("vision_config")
    if not cfg.is_multimodal or not isinstance(vision, dict) or no_vision(cfg):
        return []
    tp = 1 if cfg.flags.get("mm_encoder_tp_mode") == "data" else cfg.tp
    hidden, inner = vision.get("hidden_size"), vision.get("intermediate_size")
    if not (isinstance(hidden, int) and isinstance(inner, int)):
        return []
    if cfg.architecture.startswith("Qwen2_5_VL"):
        return [*_qwen_block(hidden, inner, tp, gated=True), *_merger("visual.merger.mlp.", "0", "2", vision, tp)]
    if cfg.architecture.startswith(("Qwen3VL", "Qwen3_5")):
        merger = _merger("visual.merger.linear_", "fc1", "fc2", vision, tp)
        return [*merger, *_qwen_block(hidden, inner, tp, gated=False)]
    if cfg.architecture == "Gemma3ForConditionalGeneration":
        return _siglip(hidden, inner, tp)
    if cfg.architecture == "Mistral3ForConditionalGeneration":
        return _pixtral(cfg, hidden, inner, tp)
    return []


def _row(name: str, size: int, out: int, tp: int) -> Projection:
    return Projection(name, size // tp, (out,), "row" if tp > 1 else "none", size)


def _column(name: str, size: int, out: tuple[int, ...], tp: int, parts: tuple[str, ...] = ()) -> Projection:
    cut = tuple(each // tp for each in out)
    return Projection(name, size, cut, "column" if tp > 1 else "none", parts=parts)


def _qwen_block(hidden: int, inner: int, tp: int, *, gated: bool) -> list[Projection]:
    """models/qwen2_5_vl.py:294, qwen3_vl.py:406."""
    block = "visual.blocks.0"
    out = [
        _column(f"{block}.attn.qkv", hidden, (hidden, hidden, hidden), tp),
        _row(f"{block}.attn.proj", hidden, hidden, tp),
    ]
    if gated:
        parts = (f"{block}.mlp.gate_proj", f"{block}.mlp.up_proj")
        out.append(_column(f"{block}.mlp.gate_up_proj", hidden, (inner, inner), tp, parts))
        return [*out, _row(f"{block}.mlp.down_proj", inner, hidden, tp)]
    out.append(_column(f"{block}.mlp.linear_fc1", hidden, (inner,), tp))
    return [*out, _row(f"{block}.mlp.linear_fc2", inner, hidden, tp)]


def _merger(stem: str, first: str, second: str, vision: dict[str, object], tp: int) -> list[Projection]:
    hidden, merge, out = vision["hidden_size"], vision.get("spatial_merge_size"), vision.get("out_hidden_size")
    if not (isinstance(hidden, int) and isinstance(merge, int) and isinstance(out, int)):
        return []
    size = hidden * merge * merge
    return [_column(f"{stem}{first}", size, (size,), tp), _row(f"{stem}{second}", size, out, tp)]


def _siglip(hidden: int, inner: int, tp: int) -> list[Projection]:
    """models/siglip.py: the MLP is quantised only where both its sides are multiples of 64."""
    stem = "vision_tower.vision_model.encoder.layers.0"
    parts = tuple(f"{stem}.self_attn.{part}" for part in _QKV)
    out = [
        _column(f"{stem}.self_attn.qkv_proj", hidden, (hidden, hidden, hidden), tp, parts),
        _row(f"{stem}.self_attn.out_proj", hidden, hidden, tp),
    ]
    if hidden % 64 == 0 and inner % 64 == 0:
        out += [_column(f"{stem}.mlp.fc1", hidden, (inner,), tp), _row(f"{stem}.mlp.fc2", inner, hidden, tp)]
    return out


def _pixtral(cfg: EngineConfig, hidden: int, inner: int, tp: int) -> list[Projection]:
    """models/pixtral.py, mistral3.py:149. The projector is divided among all ranks whatever the tower does."""
    stem, wide = "vision_tower.transformer.layers.0", _hidden(cfg)
    qkv = tuple(f"{stem}.attention.{part}" for part in _QKV)
    gates = (f"{stem}.feed_forward.gate_proj", f"{stem}.feed_forward.up_proj")
    return [
        _column(f"{stem}.attention.qkv_proj", hidden, (hidden, hidden, hidden), tp, qkv),
        _row(f"{stem}.attention.o_proj", hidden, hidden, tp),
        _column(f"{stem}.feed_forward.gate_up_proj", hidden, (inner, inner), tp, gates),
        _row(f"{stem}.feed_forward.down_proj", inner, hidden, tp),
        _column("multi_modal_projector.linear_1", hidden, (wide,), cfg.tp),
        _row("multi_modal_projector.linear_2", wide, wide, cfg.tp),
    ]
