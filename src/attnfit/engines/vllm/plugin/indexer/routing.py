"""Which architectures vLLM shall build from models.py, by its public registry of out-of-tree models."""

from __future__ import annotations

ARCHITECTURES = {
    "DeepseekV32ForCausalLM": "DeepseekV32ForCausalLM",
    "GlmMoeDsaForCausalLM": "GlmMoeDsaForCausalLM",
    "DeepSeekMTPModel": "DeepSeekMTP",
    "DeepseekV32MTPModel": "DeepSeekMTP",  # 0.30.0 on (registry.py:677)
}


def install() -> None:
    """Tells the registry; nothing is imported until such a model is loaded."""
    from vllm import ModelRegistry

    for architecture, name in ARCHITECTURES.items():
        ModelRegistry.register_model(architecture, f"attnfit.engines.vllm.plugin.indexer.models:{name}")
