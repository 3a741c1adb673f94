"""What a GGUF loader does before it builds the model: every weight of transformers' class needs a tensor's name.

For which model types that holds is a table (`tables/gguf-loaders.json`, written by proofs/gguf_loaders.py with the
loaders' own functions: vLLM 0.16.0 and 0.23.0 agree on transformers 4.57.6, vllm-gguf-plugin 0.0.5 on 5.20 and 5.24).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnfit.engines.vllm.launch.facts import newer_types
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal, Unknown

if TYPE_CHECKING:
    from attnfit.inputs.gguf.traits import GgufModel

#: model type -> llama.cpp's name, where the loader does not take the type itself (gguf_loader.py, 0.23.0:130)
_RENAMED = {
    "cohere": "command-r", "gemma3_text": "gemma3", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "minimax_m2": "minimax-m2",
}  # fmt: skip
#: transformers 5 holds all experts of a layer in one weight, for which the loaders have no name
_FUSED = ("deepseek_v2", "deepseek_v3", "qwen2_moe", "qwen3_moe")
#: where "Unknown gguf model_type" is raised, by minor release; gguf_loader.py says it from 0.12 to 0.23
_LINES = {12: 142, 13: 156, 14: 156, 15: 156, 16: 156, 17: 151, 18: 151, 19: 155, 20: 204, 21: 204, 22: 209, 23: 209}
_IN_TREE = "vllm/model_executor/model_loader/gguf_loader.py"
_PLUGIN = "vllm_gguf_plugin/weights_adapter/default.py"


@functools.cache
def _table(plugin: bool) -> dict[str, Any]:
    path = Path(__file__).parent / "tables" / "gguf-loaders.json"
    found: dict[str, Any] = msgspec.json.decode(path.read_bytes())["plugin" if plugin else "in-tree"]
    return found


def major(release: str, model_type: str, *, plugin: bool) -> str:
    """Which transformers is assumed: "4" or "5" (from 0.19.1 to 0.23 either may be installed)."""
    return "5" if plugin or model_type in newer_types(release) else "4"


def refuses(config: Mapping[str, Any], release: str, *, plugin: bool) -> Refusal | None:
    """What the loader says of a model with this config.json. Raises Unknown where the table does not say.

    It is the worker that says it: after create_engine_config, before any layer asks for an attention backend.
    """
    from attnfit.inputs.gguf.architectures import NAMES

    model_type, minor = str(config.get("model_type")), int(release.split(".")[1])
    renamed = _RENAMED if plugin or minor >= 20 else {k: v for k, v in _RENAMED.items() if k != "minimax_m2"}
    if renamed.get(model_type, model_type) not in NAMES:
        where = f"{_PLUGIN}:150" if plugin else f"{_IN_TREE}:{_LINES[minor]}"
        return Refusal("load_weights", f"RuntimeError: Unknown gguf model_type: {model_type}", where)
    fused = model_type in _FUSED and major(release, model_type, plugin=plugin) == "5"
    if fused and (layers := _expert_layers(config)):
        left = [f"model.layers.{layer}.mlp.experts.gate_up_proj" for layer in layers]
        said = f"RuntimeError: Failed to map GGUF parameters ({len(left)}): {left}"
        return Refusal("load_weights", said, f"{_PLUGIN}:227" if plugin else _IN_TREE)
    table = _table(plugin)
    if minor == 12 and model_type in _FUSED:
        raise Unknown(f"whether vLLM {release} has a name for every weight of {model_type} in GGUF")
    if model_type not in table["maps"] and not fused:
        said = str(table["fails"].get(model_type, "")).removeprefix("RuntimeError: ")
        saw = f" (with the class's defaults it stops: {said} ...)" if said else ""
        raise Unknown(f"whether the GGUF loader has a name for every weight of {model_type}{saw}")
    return None


def _expert_layers(config: Mapping[str, Any]) -> list[int]:
    """The layers that have experts, as transformers' classes of `_FUSED` build them. Raises Unknown for odd values."""
    layers = config.get("num_hidden_layers")
    if not isinstance(layers, int) or not 0 < layers <= 10_000:
        raise Unknown("num_hidden_layers of the config.json, which says how many layers hold experts")
    if str(config.get("model_type")).startswith("deepseek"):
        dense = config.get("first_k_dense_replace", 0)
        return [layer for layer in range(layers) if isinstance(dense, int) and layer >= dense]
    step, dense_only = config.get("decoder_sparse_step", 1) or 1, config.get("mlp_only_layers") or []
    experts = config.get("num_experts", 1)
    if not isinstance(step, int) or not isinstance(dense_only, list):
        raise Unknown("decoder_sparse_step and mlp_only_layers of the config.json, which say which layers hold experts")
    return [layer for layer in range(layers) if experts and layer not in dense_only and (layer + 1) % step == 0]


def hints(refusals: list[Refusal], cfg: EngineConfig) -> list[str]:
    """The next action for a model that the loader has no name for, and what another transformers would change."""
    if any(refused.message.startswith("RuntimeError: Unknown gguf model_type") for refused in refusals):
        return [
            "the GGUF loader knows no such architecture, so no flag helps: serve the checkpoint in safetensors, in a "
            "quantisation that vLLM reads (FP8, NVFP4, AWQ), or the GGUF file with llama.cpp"
        ]
    if not refusals and cfg.model_type in _FUSED and newer_types(cfg.release):
        return ["transformers 4 assumed: with 5 the GGUF loader has no name for the experts, and refuses"]
    return []


def misread(header: GgufModel, cfg: EngineConfig) -> str:
    """What keeps the weights from going in although every gate lets the launch pass; empty where nothing does."""
    files, sizes = header.files, cfg.sizes
    if files.header.cut_off:
        return f"the rest of the file: it ends {files.header.cut_off:,} bytes before its last tensor does"
    if files.missing:
        return f"the parts of the model that are not there: {', '.join(files.missing[:3])}"
    if said := _split({tensor.name for tensor in files.tensors}, cfg.config):
        return said
    seen = {
        "num_attention_heads": sizes.total_num_attention_heads,
        "num_key_value_heads": sizes.total_num_kv_heads,
        "num_hidden_layers": sizes.total_num_hidden_layers,
        "hidden_size": sizes.hidden_size,
        "head_dim": sizes.head_size,
        "num_local_experts": sizes.num_experts,
        "num_experts": sizes.num_experts,
    }
    if header.unknown or sizes.is_deepseek_mla:
        return ""
    other = [
        f"{name} {header.config[name]} ({header.sources[name]}), the engine takes {value}"
        for name, value in seen.items()
        if header.config.get(name) is not None and header.config[name] != value
    ]
    return f"whether the weights go in: the file has {'; '.join(other)}" if other else ""


def _split(tensors: Collection[str], config: Mapping[str, Any]) -> str:
    """What the loader leaves unloaded without a word, though it has a name for every weight; empty: nothing known.

    llama.cpp's converter has written kv_b as two tensors since 2025; the loaders know only the one.
    """
    if "blk.0.attn_k_b.weight" in tensors and "blk.0.attn_kv_b.weight" not in tensors:
        also = ", and the indexer has no name there" if config.get("index_topk") else ""
        return (
            "what the layers compute: the file holds attn_k_b and attn_v_b, the loader asks for attn_kv_b and leaves "
            f"kv_b_proj unloaded without a word{also}"
        )
    return ""
