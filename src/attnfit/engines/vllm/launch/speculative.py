"""`--speculative-config`: the method, and the draft that comes with the checkpoint (MTP).

vllm/config/speculative.py. A separate draft model lies in a directory of its own; without its config the answer names
what is missing.
"""

from __future__ import annotations

import copy
from typing import Any

from attnfit.engines.vllm.launch.messages import plain
from attnfit.engines.vllm.launch.state import ParsedFlags, Refusal, Unknown
from attnfit.hf.config import HfConfig

_WHERE = "vllm/config/speculative.py"
MTP_METHODS = (
    "deepseek_mtp", "dots3_note_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp", "glm_ocr_mtp",
    "ernie_mtp", "nemotron_h_mtp", "exaone_moe_mtp", "exaone4_5_mtp", "qwen3_next_mtp", "qwen4_exp_mtp",
    "qwen3_5_mtp", "longcat_flash_mtp", "bailing_hybrid_v3_mtp", "minimax_m3_mtp", "bailing_hybrid_mtp", "mtp",
    "kimi_k3_mtp", "pangu_ultra_moe_mtp", "step3p5_mtp", "step5_mtp", "hy_v3_mtp", "hy_v4_mtp", "gemma4_mtp",
    "inkling_mtp", "glm5_next_mtp",
)  # fmt: skip

#: model_type of the checkpoint -> (draft model_type, draft architecture, attribute that counts its MTP layers)
_BY_TYPE: dict[str, tuple[str, str, str]] = {
    "deepseek_v3": ("deepseek_mtp", "DeepSeekMTPModel", "num_nextn_predict_layers"),
    "deepseek_mtp": ("deepseek_mtp", "DeepSeekMTPModel", "num_nextn_predict_layers"),
    "deepseek_v32": ("deepseek_mtp", "DeepseekV32MTPModel", "num_nextn_predict_layers"),
    "glm_moe_dsa": ("deepseek_mtp", "DeepseekV32MTPModel", "num_nextn_predict_layers"),
    "deepseek_v4": ("deepseek_mtp", "DeepSeekV4MTPModel", "num_nextn_predict_layers"),
    "pangu_ultra_moe": ("pangu_ultra_moe_mtp", "OpenPanguMTPModel", "num_nextn_predict_layers"),
    "kimi_k3": ("kimi_k3_mtp", "KimiK3MTPModel", "text_config.num_nextn_predict_layers"),
    "ernie4_5_moe": ("ernie_mtp", "ErnieMTPModel", "num_nextn_predict_layers"),
    "qwen3_next": ("qwen3_next_mtp", "Qwen3NextMTP", "num_nextn_predict_layers"),
    "exaone_moe": ("exaone_moe_mtp", "ExaoneMoeMTP", "num_nextn_predict_layers"),
    "longcat_flash": ("longcat_flash_mtp", "LongCatFlashMTPModel", "num_nextn_predict_layers"),
    "hy_v3": ("hy_v3_mtp", "HYV3MTPModel", "num_nextn_predict_layers"),
    "hy_v4": ("hy_v4_mtp", "HYV4MTPModel", "num_nextn_predict_layers"),
    "bailing_hybrid": ("bailing_hybrid_mtp", "BailingMoeV25MTPModel", "num_nextn_predict_layers"),
    "glm5_next": ("glm5_next_mtp", "Glm5NextMTPModel", "text.num_nextn_predict_layers"),
    "qwen3_5": ("qwen3_5_mtp", "Qwen3_5MTP", "text.mtp_num_hidden_layers"),
    "qwen3_5_text": ("qwen3_5_mtp", "Qwen3_5MTP", "text.mtp_num_hidden_layers"),
    "qwen3_5_moe": ("qwen3_5_mtp", "Qwen3_5MoeMTP", "text.mtp_num_hidden_layers"),
    "qwen3_5_moe_text": ("qwen3_5_mtp", "Qwen3_5MoeMTP", "text.mtp_num_hidden_layers"),
}
#: by architecture: (draft model_type, draft architecture, counting attribute, layers the draft keeps)
_BY_ARCH: dict[str, tuple[str, str, str, int | None]] = {
    "MiMoForCausalLM": ("mimo_mtp", "MiMoMTPModel", "num_nextn_predict_layers", 0),
    "Glm4MoeForCausalLM": ("glm4_moe_mtp", "Glm4MoeMTPModel", "num_nextn_predict_layers", None),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite_mtp", "Glm4MoeLiteMTPModel", "num_nextn_predict_layers", 0),
    "GlmOcrForConditionalGeneration": ("glm_ocr_mtp", "GlmOcrMTPModel", "num_nextn_predict_layers", 0),
}
#: rewrites we do not follow: their draft is unknown
_NOT_DERIVED = (
    "dots3_note", "deepseek_v41", "qwen4_exp", "qwen4_exp_text", "exaone4_5", "intern_s2_preview", "interns2_mobius",
    "step3p5", "step3p7", "step5", "step5_vl", "inkling_mm_model", "inkling_model", "gemma4_assistant",
    "gemma4_unified_assistant", "minimax_m3_vl", "minimax_m3_mtp", "muse_glimmer_assistant", "mimo_v2",
    "mimo_v2_flash", "bailing_moe_v3_vl",
)  # fmt: skip


def asked(flags: ParsedFlags) -> dict[str, Any] | None:
    """The speculative settings the user gave, short flags merged in. Raises Refusal."""
    config = flags.get("speculative_config")
    out = dict(config) if isinstance(config, dict) else None
    for flag, key, dest in (
        ("--spec-method", "method", "spec_method"),
        ("--spec-model", "model", "spec_model"),
        ("--spec-tokens", "num_speculative_tokens", "spec_tokens"),
    ):
        value = flags.get(dest)
        if value is None:
            continue
        out = {} if out is None else out
        if key in out:
            raise plain("ValueError", f"{flag} and --speculative-config['{key}'] are mutually exclusive", _WHERE)
        out[key] = value
    return None if out is None else {k.replace("-", "_"): v for k, v in out.items()}


def view(config: dict[str, Any], text: str, kind: str = "value_error") -> Refusal:
    """A ValueError inside SpeculativeConfig, in pydantic's frame (its first argument is the user's first key)."""
    key, value = next(iter(config.items()))
    head = f"ArgsKwargs((), {{{key!r}: {value!r}, "[:25]
    tail = "umpy_config': None})"
    del tail
    return Refusal(
        "create_engine_config",
        f"ValidationError: 1 validation error for SpeculativeConfig\n  Value error, {text} [type={kind}, "
        f"input_value={head}...numa_bind_cpus=None)}}), input_type=ArgsKwargs]\n    For further information visit "
        f"https://errors.pydantic.dev/2.14/v/{kind}",
        _WHERE,
    )


def method_of(config: dict[str, Any]) -> str:
    """The method before the draft is looked at. Raises Refusal, Unknown."""
    method, model = config.get("method"), config.get("model")
    if method is None:
        if model in ("ngram", "[ngram]"):
            return "ngram"
        return "draft_model"
    if not isinstance(method, str):
        raise Unknown("speculative method is not a word")
    if method in MTP_METHODS:
        return "mtp"
    return "ngram" if method == "[ngram]" else method


def check_ngram(config: dict[str, Any]) -> None:
    low, high = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
    if low is not None and high is not None and low > high:
        raise view(config, f"prompt_lookup_min={low} must be <= prompt_lookup_max={high}")


def mtp_draft(node: HfConfig) -> tuple[HfConfig, int | None]:
    """The config of the checkpoint's own MTP draft and how many layers it has.

    Raises Refusal where the checkpoint has no MTP the engine knows, Unknown where its rewrite is not followed.
    """
    model_type = str(node.get("model_type"))
    archs = node.get("architectures") or [""]
    arch = str(archs[0])
    draft = copy.deepcopy(node)
    if model_type in _NOT_DERIVED or arch in ("BailingMoeV3ForCausalLM", "NemotronH_Super_Omni_Reasoning_V3"):
        raise Unknown(f"the MTP draft of {arch} ({model_type}) is not derived here")
    if arch in _BY_ARCH:
        new_type, new_arch, key, layers = _BY_ARCH[arch]
        n = draft.get(key)
        _become(draft, new_type, new_arch)
        if layers is not None:
            draft.set("num_hidden_layers", layers)
    elif model_type in ("nemotron_h", "nemotron_h_puzzle"):
        n = draft.get("num_nextn_predict_layers", 0)
        if not isinstance(n, int) or n <= 0:
            raise _unsupported()
        _become(draft, "nemotron_h_mtp", "NemotronHMTPModel")
    elif model_type in _BY_TYPE:
        new_type, new_arch, key = _BY_TYPE[model_type]
        source = draft.text() if "." in key else draft
        n = source.get(key.split(".")[-1])
        _become(draft, new_type, new_arch)
    elif arch == "MistralLarge3ForCausalLM":
        raise Unknown("the EAGLE draft of MistralLarge3ForCausalLM is not derived here")
    else:
        raise _unsupported()
    if n is not None and (isinstance(n, bool) or not isinstance(n, int)):
        raise Unknown("the number of MTP layers in config.json is not a whole number")
    return draft, n


def _become(draft: HfConfig, model_type: str, arch: str) -> None:
    draft.attrs["model_type"] = model_type
    draft.set("architectures", [arch])


def _unsupported() -> Refusal:
    return plain("NotImplementedError", "Unsupported speculative method: 'mtp'", f"{_WHERE}:1499")


def check_tokens(config: dict[str, Any], n_predict: int | None) -> int:
    """num_speculative_tokens against the draft's layers. Raises Refusal."""
    tokens = config.get("num_speculative_tokens")
    if tokens is None:
        if n_predict is None:
            raise view(config, "A speculative model was provided, but `num_speculative_tokens` was not provided")
        return n_predict
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise Unknown(f"num_speculative_tokens is {tokens!r}")
    if n_predict is not None and tokens > n_predict:
        if n_predict == 0:
            raise plain("ZeroDivisionError", "integer modulo by zero", _WHERE)
        if tokens % n_predict:
            raise view(config, f"num_speculative_tokens:{tokens} must be divisible by n_predict={n_predict}")
    return tokens
