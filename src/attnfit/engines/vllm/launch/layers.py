"""Which attention questions a model asks the selector, in the order its constructor asks them.

The model class decides: `families/*.json` says per architecture which plan it follows (`plan.py`, `plans_*.py`).
`ask` walks the plan and keeps what the constructors keep: the KV cache dtype that an earlier layer may have rewritten
(mla_attention.py:359), layers left unquantised, the backend chosen per kind of layer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from attnfit.core import LayerQuestion, Question, Selection
from attnfit.engines.vllm.launch import plans_bound, plans_draft, plans_encoder, plans_hybrid, plans_mla, plans_other
from attnfit.engines.vllm.launch.plan import Ctx, Layer, PlanFunction, decoder
from attnfit.engines.vllm.launch.state import EngineConfig, KvLayer, Unknown

Select = Callable[[Question], Selection]

PROVEN_ON = "0.33.0"
PLANS: dict[str, PlanFunction] = {
    "decoder": decoder,
    **plans_mla.PLANS,
    **plans_hybrid.PLANS,
    **plans_other.PLANS,
    **plans_bound.PLANS,
    **plans_encoder.PLANS,
    **plans_draft.PLANS,
}


class Families(msgspec.Struct, frozen=True):
    """`families/*.json`; see its read_me."""

    proven_on: str
    plans: dict[str, dict[str, Any]]
    architectures: dict[str, str]
    language_models: dict[str, tuple[str, str | None]]
    text_architectures: dict[str, str]
    drafts_of: dict[str, str]  # target architecture -> architecture of its MTP draft


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


class Followed(msgspec.Struct, frozen=True):
    """`families/RELEASE.json`: which architectures of another release follow a plan (attnfit.learn.model_plans)."""

    same: frozenset[str]
    other: dict[str, str]


@cache
def families(release: str) -> Families:
    """The plans as they hold for a release. Raises Unknown for one that was not compared."""
    folder = files("attnfit.engines.vllm.launch").joinpath("families")
    base = msgspec.json.decode(folder.joinpath(f"{PROVEN_ON}.json").read_bytes(), type=Families)
    if release == PROVEN_ON:
        return base
    found = folder.joinpath(f"{release}.json")
    if not found.is_file():
        raise Unknown(f"how the model classes of vLLM {release} build their attention layers")
    followed = msgspec.json.decode(found.read_bytes(), type=Followed)
    kept = {name: plan for name, plan in base.architectures.items() if name in followed.same or name in INNER}
    return msgspec.structs.replace(base, architectures=kept | followed.other)


#: names of language models that only live inside a multimodal model; no registry lists them
INNER = frozenset(
    {
        "AriaText", "ClipText", "Cosmos3EdgeText", "Dots3NoteText", "InternS1ProMoe", "ModernBertText", "SiglipText",
        "UltraBertText",
    }
)  # fmt: skip


def ask(cfg: EngineConfig, select: Select) -> LayerAnswer:
    """Every question the target model (and its draft) asks, and what was chosen.

    Raises Unknown when the model class is not known or a key it needs is missing.
    """
    table = families(cfg.release)
    answer = LayerAnswer(kv_cache_dtype=cfg.kv_cache_dtype)
    if cfg.release != PROVEN_ON:
        answer.notes.append(
            f"layers: read from vLLM {PROVEN_ON}, whose model class builds them as that of {cfg.release} does"
        )
    asker = _Asker(cfg, select, answer)
    target = language_model(table, cfg)
    asker.build(target, table)
    if cfg.speculative:
        try:
            asker.build_draft(target, table)
        except Unknown as missing:
            answer.unknown.append(str(missing))
    return answer


def language_model(table: Families, cfg: EngineConfig) -> Ctx:
    """The model that builds the attention layers: the architecture itself or the one inside a multimodal model."""
    architecture, text = cfg.architecture, cfg.text
    for _ in range(4):
        inner = table.language_models.get(architecture)
        if inner is None:
            return Ctx(cfg, _without_window(cfg, text), architecture)
        path, name = inner
        if path:
            text = cfg.text if path.endswith("text_config") else _sub_config(cfg, path)
        if name is None:
            name = _own_architecture(table, text, architecture)
        architecture = name
    raise Unknown(f"the language model inside {cfg.architecture}")


def _sub_config(cfg: EngineConfig, path: str) -> dict[str, Any]:
    node: Any = cfg.config
    for part in path.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    if not isinstance(node, dict):
        raise Unknown(f"{path} in config.json")
    return node


def _own_architecture(table: Families, text: dict[str, Any], outer: str) -> str:
    """vllm/config/vllm.py:972: the sub-config's architectures, else transformers' mapping of its model_type."""
    given = text.get("architectures")
    if isinstance(given, list) and given:
        return str(given[0])
    kind = text.get("model_type")
    name = table.text_architectures.get(str(kind))
    if name is None:
        raise Unknown(f"the language model inside {outer} (model_type {kind!r} names no architecture)")
    return name


def _without_window(cfg: EngineConfig, text: dict[str, Any]) -> dict[str, Any]:
    """--disable-sliding-window, or a window of 0, clears it (vllm/config/model.py:819, 914)."""
    if text.get("sliding_window") == 0 or (text.get("sliding_window") and cfg.flags.get("disable_sliding_window")):
        return {**text, "sliding_window": None}
    return text


def draft_model(spec: dict[str, Any], target: Ctx, table: Families) -> tuple[str, dict[str, Any]]:
    """Architecture and config of the draft: as resolved before, or the checkpoint's own MTP layers."""
    name, text = spec.get("architecture"), spec.get("text")
    if isinstance(name, str) and isinstance(text, dict):
        return name, text
    if spec.get("method") == "mtp":
        own = table.drafts_of.get(target.cfg.architecture) or table.drafts_of.get(target.architecture)
        if own is not None:
            return own, {**target.text, **table.plans[table.architectures[own]].get("set", {})}
    raise Unknown(f"the config of the draft model (speculative method {spec.get('method')!r})")


class _Asker:
    def __init__(self, cfg: EngineConfig, select: Select, answer: LayerAnswer) -> None:
        self.cfg, self.select, self.answer = cfg, select, answer
        self.questions: dict[Any, int] = {}
        self.rows: dict[Any, int] = {}
        self.backend = cfg.attention.get("backend")
        self.role = "target"

    def build(self, c: Ctx, table: Families) -> None:
        name = table.architectures.get(c.architecture)
        if name is None:
            raise Unknown(f"how {c.architecture} builds its attention layers")
        plan = table.plans[name]
        self.role = c.role
        self.model_window = _model_window(c)
        made = PLANS[plan["build"]](c, plan)
        asked: Selection | None = None
        while True:
            try:  # a plan may look at the answer to its last question (HYV4)
                layer = made.send(asked) if isinstance(made, Generator) else next(made)
            except StopIteration:
                return
            asked = self.add(layer)

    def build_draft(self, target: Ctx, table: Families) -> None:
        """The draft model asks for itself, with its own backend flag (v1/spec_decode/llm_base_proposer.py:1265)."""
        spec = self.cfg.speculative or {}
        method = spec.get("method")
        if method in ("ngram", "ngram_gpu", "suffix", "custom_class"):
            return
        name, text = draft_model(spec, target, table)
        wanted = spec.get("attention_backend")
        self.backend = None if wanted is None else str(wanted)
        if spec.get("kv_cache_dtype"):
            self.answer.kv_cache_dtype = str(spec["kv_cache_dtype"])
        before = self.answer.kv_cache_dtype
        self.build(Ctx(self.cfg, text, name, role="draft"), table)
        if spec.get("kv_cache_dtype"):
            self.answer.kv_cache_dtype = before

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
        cfg = self.cfg
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
            num_heads=layer.heads if layer.mla else None,
            backend=self.wanted(layer, fields.get("has_sliding_window", False)),
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
        asks_as = layer.asks_as or layer.cls
        key = (self.role, asks_as, *(v for k, v in msgspec.structs.asdict(question).items() if k not in _CONTEXT))
        at = self.questions.get(key)
        layers = self.answer.layers
        if at is None:
            self.questions[key] = len(layers)
            layers.append(
                LayerQuestion(
                    question=question, selection=self.select(question), role=self.role, layer_class=asks_as, count=1
                )
            )
            return layers[-1].selection
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
        key = (self.role, layer.cls, backend, kv, layer.head_size, layer.heads, heads, window, layer.attn_type)
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
    if types is not None and not all(kind == "sliding_attention" for kind in types):
        return None
    value = _without_window(c.cfg, c.cfg.text).get("sliding_window")
    return None if value is None else int(value)


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
