"""The draft model, as SpeculativeConfig builds it next to its target."""

from __future__ import annotations

from typing import Any

from attnfit.engines.vllm.launch import parallel, speculative
from attnfit.engines.vllm.launch.arch import ModelInfo, resolve_architecture
from attnfit.engines.vllm.launch.lengths import resolve_max_model_len, rope_parts
from attnfit.engines.vllm.launch.load import load_config
from attnfit.engines.vllm.launch.sizes import Sizes, sizes_of
from attnfit.engines.vllm.launch.state import ParsedFlags, Refusal, Unknown
from attnfit.engines.vllm.launch.way import Way
from attnfit.hf.config import HfConfig

#: rope types for which max_position_embeddings only sizes a cache (vllm/config/speculative.py:104)
_CACHE_ONLY_ROPE = ("default", "linear", "llama3", "ntk", "proportional")


def resolve_speculative(
    way: Way, sizes: Sizes, groups: parallel.Parallel, info: ModelInfo, length: int, use_mla: bool
) -> dict[str, Any] | None:
    """`--speculative-config` resolved: method, tokens and, for MTP, the draft's own facts. None: no speculation."""
    asked = speculative.asked(way.flags)
    if asked is None:
        return None
    try:
        return _draft(way, asked, sizes, groups, info, length, use_mla)
    except Refusal as refusal:
        way.met(refusal)
        return None


def _draft(
    way: Way,
    asked: dict[str, Any],
    sizes: Sizes,
    groups: parallel.Parallel,
    info: ModelInfo,
    length: int,
    use_mla: bool,
) -> dict[str, Any] | None:
    method = speculative.method_of(asked)
    out: dict[str, Any] = {**asked, "method": method}
    if method in ("ngram", "ngram_gpu"):
        speculative.check_ngram(asked)
        out["num_speculative_tokens"] = speculative.check_tokens(asked, None)
        _verify_in(way, asked, groups, sizes, info, use_mla)
        return out
    if method != "mtp" or asked.get("model") is not None:
        raise Unknown(f"the draft model of speculative method {method!r}: its config.json is not at hand")
    if asked.get("num_speculative_tokens") is None:
        raise Unknown("num_speculative_tokens is not given (the engine then looks for a draft of its own)")
    draft, n = speculative.mtp_draft(_reload(way))
    tokens = speculative.check_tokens(asked, n)
    _as_the_release_calls_it(way, draft)
    own = sizes_of(way.facts, draft, draft.text(), way.on("VLLM_MLA_DISABLE"))
    own_info = resolve_architecture(way.facts, way.classes, draft, own.architectures, "draft")
    own_len = resolve_max_model_len(
        draft.text(), own, None, None, False, True, target_len=length, model="DraftModelConfig"
    )
    alone = parallel.Parallel(tp=groups.tp, pp=1, dp=1, dcp=1, pcp=1, expert=groups.expert and own.num_experts > 0)
    _verify_in(way, asked, alone, own, own_info, own.is_deepseek_mla)
    return out | {
        "num_speculative_tokens": tokens,
        "n_predict": n,
        "architecture": own_info.architecture,
        "model_class": own_info.at,
        "model_type": own.model_type,
        "head_size": own.head_size,
        "use_mla": own.is_deepseek_mla,
        "num_hidden_layers": own.total_num_hidden_layers,
        "max_model_len": min(own_len, length),
        "positions_follow_target": all(p.get("rope_type", "default") in _CACHE_ONLY_ROPE for p in rope_parts(draft)),
        "config": draft.plain(),
        "text": draft.text().plain(),
    }


def _as_the_release_calls_it(way: Way, draft: HfConfig) -> None:
    """Sparse DeepSeek drafts share the dense draft's class up to 0.28 (0.28.0: vllm/config/speculative.py).

    Raises Unknown where the release has no class of the name that 0.33 rewrites to: what it does instead is not known.
    """
    names = draft.get("architectures") or []
    known = way.facts["architectures"]
    if names == ["DeepseekV32MTPModel"] and names[0] not in known:
        names = ["DeepSeekMTPModel"]
        draft.set("architectures", names)
    if names and names[0] not in known:
        raise Unknown(f"the MTP draft of this checkpoint in vLLM {way.release}, which has no {names[0]}")


def limit_to_draft(spec: dict[str, Any] | None, length: int) -> int:
    """The served length is the draft's where that is shorter and its positions cannot be stretched."""
    if spec is None or spec.get("max_model_len") is None or spec.get("positions_follow_target", True):
        return length
    return min(length, int(spec["max_model_len"]))


def _reload(way: Way) -> HfConfig:
    """The draft reads the checkpoint again: dict overrides of the target do not reach it."""
    bare = ParsedFlags(
        values={k: v for k, v in way.flags.values.items() if k != "hf_overrides"},
        defaults=way.flags.defaults,
        env=way.flags.env,
    )
    return load_config(way.classes, way.raw, way.hf_quant, bare, way.path, way.files, keep_going=True).node


def _verify_in(
    way: Way,
    asked: dict[str, Any],
    groups: parallel.Parallel,
    sizes: Sizes,
    info: ModelInfo,
    use_mla: bool,
) -> None:
    """The draft is held against its groups inside SpeculativeConfig, before the target is."""
    try:
        parallel.verify_model(groups, sizes, info, use_mla, "VllmConfig")
    except Refusal as refusal:
        if "Value error, " not in refusal.message:
            raise
        text = refusal.message.split("Value error, ", 1)[1].split(" [type=", 1)[0]
        raise speculative.view(asked, text) from None
