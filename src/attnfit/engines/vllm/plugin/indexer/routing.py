"""Which architectures vLLM shall build from models.py, by its public registry of out-of-tree models."""

from __future__ import annotations

from attnfit.engines.vllm.plugin import releases

ARCHITECTURES = {
    "DeepseekV32ForCausalLM": "DeepseekV32ForCausalLM",
    "GlmMoeDsaForCausalLM": "GlmMoeDsaForCausalLM",
    "DeepSeekMTPModel": "DeepSeekMTP",
    "DeepseekV32MTPModel": "DeepSeekMTP",  # 0.30.0 on (registry.py:677)
}


OPERATOR = "attnfit_sparse_indexer"  # op.py


def install() -> None:
    """Tells the registry, and that graphs are split at our operator; nothing is imported until such a model is loaded.

    vLLM copies the names of the operators into its configuration before it loads a model, and then captures whatever
    lies between them: an indexer inside a captured piece would be replayed with the keys of the batch it was captured
    with. Raises UnknownReleaseError where the list is not where it was.
    """
    from vllm import ModelRegistry
    from vllm.config.compilation import CompilationConfig

    try:
        operators = CompilationConfig._attention_ops
    except AttributeError as error:
        raise releases.UnknownReleaseError(f"this vLLM is not the one it knows: {error}") from error
    if f"vllm::{OPERATOR}" not in operators:
        operators.append(f"vllm::{OPERATOR}")
    for architecture, name in ARCHITECTURES.items():
        ModelRegistry.register_model(architecture, f"attnfit.engines.vllm.plugin.indexer.models:{name}")
