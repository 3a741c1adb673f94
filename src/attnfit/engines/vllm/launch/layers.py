"""Which attention questions a model asks the selector, in the order its constructor asks them.

The model class decides: `families/*.json` says per architecture which plan it follows (`plan.py`, `plans_*.py`), and
for which releases that holds (`plan_table.py`); `asker.py` turns a plan's layers into questions.
"""

from __future__ import annotations

from typing import Any

from attnfit.engines.vllm.launch.asker import Asker, LayerAnswer, Select, without_window
from attnfit.engines.vllm.launch.ours_checks import built_by, settle
from attnfit.engines.vllm.launch.plan import Ctx, Plan
from attnfit.engines.vllm.launch.plan_table import PROVEN_ON, Families, families
from attnfit.engines.vllm.launch.state import EngineConfig, Unknown

#: vllm/platforms/cuda.py:521, 538
VISION = (
    "vision tower: picks a backend of its own, by head size and dtype (FLASH_ATTN, TRITON_ATTN or TORCH_SDPA); "
    "which one is not answered here, and it does not refuse unless --mm-encoder-attn-backend names one"
)

__all__ = ["LayerAnswer", "ask", "draft_model", "language_model"]


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
    if cfg.is_multimodal and cfg.release == PROVEN_ON:
        answer.notes.append(VISION)
    asker = Asker(cfg, select, answer)
    target = language_model(table, cfg)
    asker.build(target, _plan(table, target))
    if cfg.speculative:
        try:
            _build_draft(asker, target, table)
        except Unknown as missing:
            answer.unknown.append(str(missing))
    settle(cfg, answer)
    return answer


def _plan(table: Families, c: Ctx) -> Plan:
    name = table.architectures.get(built_by(c.cfg, c.architecture))
    if name is None:
        raise Unknown(
            f"how {c.architecture} builds its attention layers in vLLM {c.cfg.release} (its class is not one that was "
            "read for this release)"
        )
    return table.plans[name]


def _build_draft(asker: Asker, target: Ctx, table: Families) -> None:
    """The draft model asks for itself, with its own backend flag (v1/spec_decode/llm_base_proposer.py:1265)."""
    cfg, answer = asker.cfg, asker.answer
    spec = cfg.speculative or {}
    if spec.get("method") in ("ngram", "ngram_gpu", "suffix", "custom_class"):
        return
    name, text = draft_model(spec, target, table)
    draft = Ctx(cfg, text, name, role="draft")
    wanted = spec.get("attention_backend")
    asker.backend = None if wanted is None else str(wanted)
    run = answer.kv_cache_dtype
    if spec.get("kv_cache_dtype"):
        answer.kv_cache_dtype = str(spec["kv_cache_dtype"])
    asker.build(draft, _plan(table, draft))
    if spec.get("kv_cache_dtype"):  # the draft's cache config is a copy
        answer.kv_cache_dtype = run


def language_model(table: Families, cfg: EngineConfig) -> Ctx:
    """The model that builds the attention layers: the architecture itself or the one inside a multimodal model."""
    architecture, text = cfg.architecture, cfg.text
    for _ in range(4):
        inner = table.language_models.get(architecture)
        if inner is None:
            return Ctx(cfg, without_window(cfg, text), architecture)
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
