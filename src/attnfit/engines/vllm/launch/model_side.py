"""ModelConfig: the config object, the model class, dtype, length, quantisation method (vllm/config/model.py)."""

from __future__ import annotations

from typing import Any

from attnfit.engines.vllm.launch import quant
from attnfit.engines.vllm.launch.arch import ModelInfo, resolve_architecture, runner_and_convert
from attnfit.engines.vllm.launch.dtype import config_dtype, resolve_dtype
from attnfit.engines.vllm.launch.facts import newer_types
from attnfit.engines.vllm.launch.lengths import resolve_max_model_len
from attnfit.engines.vllm.launch.load import in_the_engines_words, load_config
from attnfit.engines.vllm.launch.messages import value_error
from attnfit.engines.vllm.launch.read import read_int, read_words
from attnfit.engines.vllm.launch.sizes import Sizes
from attnfit.engines.vllm.launch.state import Refusal, Unknown
from attnfit.engines.vllm.launch.way import Way
from attnfit.engines.vllm.launch.weight_dtype import dtype_of_weights
from attnfit.hf.config import HfConfig

_MM_PREFIX_MODALITIES = {
    "gemma3": ("image",), "paligemma": ("image",), "molmo2": ("image", "video"), "bagel": ("image",),
    "moondream3": ("image",),
}  # fmt: skip

#: flags that take the model's description from somewhere we do not look
_ELSEWHERE = {
    "hf_config_path": "the config lies elsewhere; name that directory as the model",
    "model_class_overrides": "a model class of your own",
}


def _mistral_files(way: Way) -> bool:
    names = way.files or frozenset()
    return "params.json" in names and any(n.startswith("consolidated") for n in names)


def load_node(way: Way) -> HfConfig:
    for dest, why in _ELSEWHERE.items():
        if way.flags.get(dest):
            raise Unknown(f"--{dest.replace('_', '-')}: {why}")
    if way.flags.get("config_format") not in (None, "auto", "hf") or _mistral_files(way):
        raise Unknown("a checkpoint in Mistral's own format (params.json) is not read here")
    loaded = load_config(way.classes, way.raw, way.hf_quant, way.flags, way.path, way.files, keep_going=way.keep_going)
    for refusal in loaded.refusals:
        way.met(refusal)
    way.notes += loaded.notes
    node = loaded.node
    if (model_type := node.get("model_type")) in newer_types(way.release):
        way.notes.append(f"transformers 5 assumed: this release takes 4.x too, which does not know {model_type}")
    text = node.text()
    if text is not node and not text.has("num_attention_heads"):
        raise value_error(
            "ModelConfig",
            "The text_config extracted from the model config does not have `num_attention_heads` attribute. This "
            "indicates a mismatch between the model config and vLLM's expectations. Please ensure that the model "
            "config is compatible with vLLM.",
            "vllm/transformers_utils/config.py",
        )
    return node


def architecture(way: Way, node: HfConfig, sizes: Sizes) -> tuple[ModelInfo, str]:
    runner, convert = way.word("runner", "auto"), way.word("convert", "auto")
    if sizes.model_type in ("qwen3_5", "qwen3_omni_moe") and way.files:
        for name in ("joint_head_config.json", "decision_config.json"):
            if name in way.files:
                raise Unknown(f"{name} changes the architecture of this model")
    sees = sizes.model_type == "deepseek_v4" and read_int(node, "vision_n_layers", 0) > 0
    if sees and sizes.architectures == ["DeepseekV4ForCausalLM"]:
        sizes.architectures = ["DeepseekV4ForConditionalGeneration"]
    if sizes.model_type in ("mimo_v2", "mimo_v2_flash") and node.get("vision_config"):
        sizes.architectures = ["MiMoV2OmniForCausalLM"]
    if not sizes.architectures:
        base = way.classes.base_models.get(sizes.model_type)
        if base is not None:
            sizes.architectures = [base]
    impl = way.word("model_impl", "auto")
    if impl not in ("auto", "vllm"):
        raise Unknown(f"--model-impl {impl} is not derived here")
    try:
        info = resolve_architecture(way.facts, way.classes, node, sizes.architectures, runner)
    except Refusal as refusal:
        way.met(refusal)
        info = ModelInfo(sizes.architectures[0] if sizes.architectures else "", "", frozenset({"generates"}))
    try:
        runner, convert = runner_and_convert(info, sizes.architectures, way.facts["architectures"], runner, convert)
    except Refusal as refusal:
        way.met(refusal)
    return info, runner


def model_dtype(way: Way, node: HfConfig, pooling: bool) -> str:
    weights = way.files is not None and any(f.endswith(".safetensors") for f in way.files)
    asked = way.word("dtype", "auto")
    if asked == "auto" and config_dtype(node) is None and not weights:
        way.notes.append("config.json names no dtype; without the weights at hand the engine's preferred one is taken")
    read = None
    if asked == "auto" and weights and config_dtype(node) is None:
        read = dtype_of_weights(way.weight_dtypes, way.release, hub=way.hub)
        if read is not None:
            way.notes.append(f"config.json names no dtype; the engine reads {read} off the weights")
    try:
        return resolve_dtype(way.facts, node, asked, way.capability, pooling, weights, read)
    except Refusal as refusal:
        way.met(refusal)
        return "float16" if asked in ("half", "float16") else asked


def max_len(way: Way, text: HfConfig, sizes: Sizes, window: Any, no_window: bool) -> int:
    asked = way.whole("max_model_len")
    if window is not None and (isinstance(window, bool) or not isinstance(window, int)):
        raise Unknown(f"sliding_window is {window!r} in config.json, not a whole number")
    try:
        return resolve_max_model_len(
            text, sizes, asked, window or None, no_window, way.on("VLLM_ALLOW_LONG_MAX_MODEL_LEN")
        )
    except Refusal as refusal:
        way.met(refusal)
        return int(asked or 0)


def drop_window(way: Way, text: HfConfig) -> None:
    """`--disable-sliding-window`, or a window of 0. A class that insists on a number refuses."""
    try:
        with in_the_engines_words():
            text.assign("sliding_window", None)
    except Refusal as refusal:
        way.met(refusal)
        text.set("sliding_window", None)


def takes_images(way: Way, node: HfConfig) -> bool:
    """Whether multimodal input can still appear; without it a prefix model attends causally."""
    if way.flags.get("language_model_only"):
        return False
    limits = way.flags.get("limit_mm_per_prompt")
    model_type = str(node.get("model_type"))
    if not isinstance(limits, dict) or model_type not in way.facts["mm_prefix_model_types"]:
        return True
    kinds = _MM_PREFIX_MODALITIES.get(model_type)
    if kinds is None:
        raise Unknown(f"which kinds of input {model_type} takes (--limit-mm-per-prompt)")
    counts = [limits.get(k, 1) for k in kinds]
    counts = [c.get("count", 1) if isinstance(c, dict) else c for c in counts]
    return any(c != 0 for c in counts) or bool(way.flags.get("enable_mm_embeds"))


def checkpoint_settings(way: Way, node: HfConfig) -> dict[str, Any] | None:
    try:
        return quant.checkpoint_config(way.facts, node)
    except Refusal as refusal:
        way.met(refusal)
        return None


def quant_method(way: Way, checkpoint: dict[str, Any] | None, model_type: str) -> str | None:
    asked = way.flags.get("quantization")
    try:
        return quant.resolve_method(
            way.facts,
            checkpoint,
            asked,
            model_type,
            bool(way.flags.get("allow_deprecated_quantization")),
            way.capability,
        )
    except Refusal as refusal:
        way.met(refusal)
        return None


def positive_length(way: Way, length: int) -> None:
    """ModelConfig's last word on max_model_len."""
    if length < 1:
        way.met(
            value_error(
                "ModelConfig",
                f"max_model_len must be a positive integer, got int: {length}. Example: max_model_len=2048",
                "vllm/config/model.py",
            )
        )


def is_hybrid(way: Way, info: ModelInfo, node: HfConfig) -> bool:
    if "hybrid" not in info:
        return False
    kinds = read_words(node, "layer_types")
    return kinds is None or not all(k in ("attention", "full_attention") for k in kinds)
