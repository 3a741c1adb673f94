"""From the layers of a plan to the selector's questions and the cache-bearing layers as built.

Keeps what the engine's constructors keep between layers: the KV cache dtype that an earlier layer may have rewritten
(mla_attention.py:359), layers left unquantised, the backend chosen per kind of layer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import msgspec

from attnfit.core import LayerQuestion, Question, Selection
from attnfit.engines.vllm.launch import (
    plans_bound,
    plans_draft,
    plans_encoder,
    plans_hybrid,
    plans_mla,
    plans_other,
)
from attnfit.engines.vllm.launch.plan import Ctx, Layer, Plan, PlanFunction, decoder
from attnfit.engines.vllm.launch.state import EngineConfig, KvLayer, Unknown

Select = Callable[[Question], Selection]

PLANS: dict[str, PlanFunction] = {
    "decoder": decoder,
    **plans_mla.PLANS,
    **plans_hybrid.PLANS,
    **plans_other.PLANS,
    **plans_bound.PLANS,
    **plans_encoder.PLANS,
    **plans_draft.PLANS,
}


class LayerAnswer(msgspec.Struct, kw_only=True):
    """All questions of one launch, and every cache-bearing layer as built on pipeline rank 0.

    `layers` keeps the order of first occurrence; equal questions are one entry with a count. `unknown` names parts
    (a draft model, a vision tower) that could not be derived; the rest still holds.
    """

    layers: list[LayerQuestion] = msgspec.field(default_factory=list)
    kv_layers: list[KvLayer] = msgspec.field(default_factory=list)
    kv_cache_dtype: str = "auto"  # of the run, after construction
    unknown: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


class Asker:
    """Walks a plan and keeps what the constructors keep: the run's KV dtype, the questions asked so far."""

    def __init__(self, cfg: EngineConfig, select: Select, answer: LayerAnswer) -> None:
        self.cfg, self.select, self.answer = cfg, select, answer
        self.questions: dict[Any, int] = {}
        self.asked: dict[Any, int] = {}  # the same by what of a layer decides its question: most layers are alike
        self.rows: dict[Any, int] = {}
        self.backend = cfg.attention.get("backend")
        self.role = "target"

    def build(self, c: Ctx, plan: Plan) -> None:
        """Every layer of one model, in the order its constructor makes them."""
        self.role = c.role
        self.model_window = _model_window(c)
        made = PLANS[plan["build"]](c, plan)
        asked: Selection | None = None
        while True:
            try:  # a plan may look at the answer to its last question (HYV4)
                layer = made.send(asked) if isinstance(made, Generator) else next(made)
            except StopIteration:
                return
            except (TypeError, ValueError, AttributeError, KeyError, IndexError, ZeroDivisionError) as wrong:
                raise Unknown(
                    f"a value that {c.architecture} reads from config.json is not what it should be ({wrong})"
                ) from wrong
            asked = self.add(layer)

    def add(self, layer: Layer) -> Selection | None:
        if layer.backend is not None:
            self.row(layer, layer.backend, self.bound_kv(layer), layer.window)
            return None
        return self.latent(layer) if layer.mla else self.plain(layer)

    def bound_kv(self, layer: Layer) -> str | None:
        """The KV dtype of a layer that binds its backend; classes that pack the cache write it back for the run."""
        run = self.answer.kv_cache_dtype
        if layer.kv == "fp8_ds_mla":  # deepseek_v4/attention.py:118
            self.answer.kv_cache_dtype = "fp8_ds_mla"
        if layer.kv == "packed":
            run = self.answer.kv_cache_dtype = packed_kv(str(layer.backend), run)
        if layer.kv == "unpacked":  # dots3_note/nvidia/model.py:431
            return "fp8" if run == "fp8_ds_mla" else run
        return run if layer.kv in ("run", "packed") else layer.kv

    def latent(self, layer: Layer) -> Selection:
        own = layer.cls == "MultiHeadLatentAttention"
        kv = self.answer.kv_cache_dtype
        if not own and str(layer.index) in self.cfg.kv_cache_dtype_skip_layers:
            kv = "auto"
        asked = self.question(layer, kv, has_sliding_window=False)
        only_probes = layer.probe and layer.asks_as is not None
        if asked.chosen is not None and not own and not only_probes:
            packed = packed_kv(asked.chosen, kv)
            if packed != kv:
                self.answer.kv_cache_dtype = kv = packed
        if not layer.probe:
            self.row(layer, asked.chosen, kv, layer.window)
        return asked

    def plain(self, layer: Layer) -> Selection:
        window = layer.window
        if window is None and not layer.cacheless:
            window = self.model_window
        run = "auto" if layer.cacheless else self.answer.kv_cache_dtype
        scheme = kv_scheme(self.cfg) if layer.quantised else None
        kv = run
        if scheme is not None and kv == "auto":
            kv = "fp8"
            if not layer.cacheless:
                self.answer.kv_cache_dtype = kv
        skip = () if layer.cacheless else self.cfg.kv_cache_dtype_skip_layers
        if (window is not None and "sliding_window" in skip) or str(layer.index) in skip:
            kv = "auto"
        if layer.early:
            asked = self.question(layer, run, has_sliding_window=False)
        else:
            asked = self.question(
                layer,
                kv,
                has_sink=layer.sink,
                use_mm_prefix=self.cfg.is_mm_prefix_lm,
                use_per_head_quant_scales=scheme is not None and scheme.get("strategy") == "attn_head",
                has_sliding_window=window is not None,
            )
        self.row(layer, asked.chosen, kv, window)
        return asked

    def question(self, layer: Layer, kv: str, **fields: Any) -> Selection:
        cfg, asks_as = self.cfg, layer.asks_as or layer.cls
        backend = self.wanted(layer, fields.get("has_sliding_window", False))
        heads = layer.heads if layer.mla else None
        alike = (
            self.role, asks_as, layer.head_size, layer.mla, layer.sparse, layer.attn_type, heads, kv,
            self.answer.kv_cache_dtype, backend, *fields.items(),
        )  # fmt: skip
        if (known := self.asked.get(alike)) is not None:
            return self._again(known)
        question = Question(
            capability=cfg.capability,
            head_size=int(layer.head_size or 0),
            dtype=cfg.dtype,
            kv_cache_dtype=kv,
            block_size=cfg.block_size if cfg.user_specified_block_size else None,
            use_mla=layer.mla,
            use_sparse=layer.sparse,
            attn_type=layer.attn_type,
            use_non_causal=bool(cfg.attention.get("use_non_causal", False)),
            use_batch_invariant=cfg.flags.env.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"),
            use_kv_connector=has_kv_connector(cfg),
            use_pcp=cfg.pcp > 1,
            use_adaptive_verification=bool((cfg.speculative or {}).get("enable_adaptive_verification")),
            use_dcp=cfg.dcp > 1,
            use_rswa=cfg.rswa_window is not None,
            num_heads=heads,
            backend=backend,
            num_kv_heads=cfg.num_kv_heads,
            hf=cfg.text,
            model_head_size=cfg.head_size,
            model_num_heads=cfg.num_heads,
            run_kv_cache_dtype=self.answer.kv_cache_dtype,
            flash_attn_version=cfg.attention.get("flash_attn_version"),
            dcp_size=cfg.dcp,
            pcp_size=cfg.pcp,
            rswa_window=cfg.rswa_window,
            is_diffusion=cfg.config.get("canvas_length") is not None,  # vllm/config/model.py:1959
            use_trtllm_attention=cfg.attention.get("use_trtllm_attention"),
            **fields,
        )
        key = (self.role, asks_as, *(v for k, v in msgspec.structs.asdict(question).items() if k not in _CONTEXT))
        at = self.questions.get(key)
        layers = self.answer.layers
        if at is None:
            self.questions[key] = self.asked[alike] = len(layers)
            layers.append(
                LayerQuestion(
                    question=question, selection=self.select(question), role=self.role, layer_class=asks_as, count=1
                )
            )
            return layers[-1].selection
        self.asked[alike] = at
        return self._again(at)

    def _again(self, at: int) -> Selection:
        layers = self.answer.layers
        layers[at] = msgspec.structs.replace(layers[at], count=layers[at].count + 1)
        return layers[at].selection

    def wanted(self, layer: Layer, slides: bool) -> str | None:
        """The user's backend for this kind of layer (vllm/v1/attention/selector.py:186)."""
        per_kind = self.cfg.attention.get("backend_per_kind") or {}
        chosen = per_kind.get(spec_kind(layer, slides), self.backend) if per_kind else self.backend
        return None if chosen in (None, "auto") else str(chosen).upper()

    def row(self, layer: Layer, backend: str | None, kv: str | None, window: int | None) -> None:
        refused = backend is None
        if refused:  # the engine stops here; go on with a name, so that the other layers are still seen
            backend = ("FLASHMLA_SPARSE" if layer.sparse else "TRITON_MLA") if layer.mla else "TRITON_ATTN"
        heads = None if layer.cls == "MultiHeadLatentAttention" else layer.kv_heads
        stored = (layer.ratio, layer.width)
        key = (self.role, layer.cls, backend, kv, layer.head_size, layer.heads, heads, window, layer.attn_type, stored)
        at = self.rows.get(key)
        rows = self.answer.kv_layers
        if at is None:
            self.rows[key] = len(rows)
            rows.append(
                KvLayer(
                    layer_class=layer.cls,
                    backend=str(backend),
                    kv_cache_dtype=kv,
                    head_size=layer.head_size,
                    num_kv_heads=heads,
                    mamba_type=layer.mamba,
                    sliding_window=window,
                    attn_type=layer.attn_type,
                    use_sparse=layer.sparse,
                    role=self.role,
                    first_layer=layer.index,
                    ratio=layer.ratio,
                    width=layer.width,
                )
            )
        else:
            rows[at] = msgspec.structs.replace(rows[at], count=rows[at].count + 1)


#: fields of Question that the selector's predicates read but the engine's own question does not carry
_CONTEXT = frozenset(
    {
        "capability",
        "num_kv_heads",
        "hf",
        "model_head_size",
        "model_num_heads",
        "run_kv_cache_dtype",
        "flash_attn_version",
        "dcp_size",
        "pcp_size",
        "rswa_window",
        "is_diffusion",
        "use_trtllm_attention",
    }
)


def _model_window(c: Ctx) -> int | None:
    """cache_config.sliding_window: the model's, when every layer slides (vllm/engine/arg_utils.py:2290)."""
    types = c.cfg.text.get("layer_types")
    if types is not None and not isinstance(types, list):
        raise Unknown("layer_types in config.json is not a list")
    if types is not None and not all(kind == "sliding_attention" for kind in types):
        return None
    value = without_window(c.cfg, c.cfg.text).get("sliding_window")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise Unknown("sliding_window in config.json is not a whole number")
    return value


def spec_kind(layer: Layer, slides: bool) -> str:
    """KVCacheSpecKind of a layer, the keys of backend_per_kind (selector.py:67)."""
    if layer.attn_type == "encoder_only":
        return "encoder_only_attention"
    if layer.attn_type == "encoder_decoder":
        return "cross_attention"
    if layer.mla:
        return "sliding_window_mla" if slides else "mla_attention"
    return "sliding_window" if slides else "full_attention"


def packed_kv(backend: str, kv: str) -> str:
    """The KV dtype a sparse MLA backend stores (mla_attention.py:359)."""
    if backend == "FLASHMLA_SPARSE" and is_quantised(kv) and kv != "nvfp4_ds_mla":
        return "fp8_ds_mla"
    if backend == "FLASHINFER_MLA_SPARSE_SM120" and kv in ("auto", "fp8", "fp8_e4m3"):
        return "fp8_ds_mla"
    return kv


def has_kv_connector(cfg: EngineConfig) -> bool:
    """KVTransferConfig.is_kv_transfer_instance (vllm/config/kv_transfer.py:127)."""
    transfer = cfg.kv_transfer or {}
    return bool(transfer.get("kv_connector") and transfer.get("kv_role"))


def is_quantised(kv: str) -> bool:
    """vllm/v1/kv_cache_interface.py is_quantized_kv_cache."""
    return kv not in ("auto", "float16", "bfloat16", "float32")


def kv_scheme(cfg: EngineConfig) -> dict[str, Any] | None:
    """kv_cache_scheme, which only compressed-tensors' config object carries (compressed_tensors.py:106)."""
    if cfg.quantization != "compressed-tensors" or not cfg.quant_config:
        return None
    scheme = cfg.quant_config.get("kv_cache_scheme")
    return scheme if isinstance(scheme, dict) else None


def without_window(cfg: EngineConfig, text: dict[str, Any]) -> dict[str, Any]:
    """--disable-sliding-window, or a window of 0, clears it (vllm/config/model.py:819, 914)."""
    if text.get("sliding_window") == 0 or (text.get("sliding_window") and cfg.flags.get("disable_sliding_window")):
        return {**text, "sliding_window": None}
    return text
