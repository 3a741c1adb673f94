"""vLLM's CPU platform, with DSA models: the class that cpu.py names. What is not said here is vLLM's own."""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger
from vllm.platforms import cpu_platform_plugin
from vllm.utils.import_utils import resolve_obj_by_qualname

from attnfit.engines.vllm.plugin.indexer.routing import ARCHITECTURES

_BACKEND = "attnfit.engines.vllm.plugin.cpu_backend.TritonMLASparseCpuBackend"
_ROTARY = "rotary_embedding"

logger = init_logger("vllm.attnfit")


class DsaCpuPlatform(resolve_obj_by_qualname(cpu_platform_plugin())):  # type: ignore[misc]
    serves_dsa = True  # what registration.py looks for

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Our backend for sparse layers, and vLLM's own choice for all others. Raises ValueError with all reasons."""
        if not attn_selector_config.use_sparse:
            return super().get_attn_backend_cls(selected_backend, attn_selector_config, num_heads)
        backend = resolve_obj_by_qualname(_BACKEND)
        reasons = backend.validate_configuration(device_capability=None, **attn_selector_config._asdict())
        architectures = _architectures()
        if not set(architectures) & set(ARCHITECTURES):
            reasons.append(f"{' or '.join(ARCHITECTURES)} required but got {', '.join(architectures)}")
        if selected_backend is not None and selected_backend.name not in backend.names():
            reasons.append(f"backend {' or '.join(backend.names())} required but got {selected_backend.name}")
        if reasons:
            raise ValueError(
                f"No valid attention backend found for cpu with {attn_selector_config!r}. "
                f"Reasons: {{{backend.get_name()}: [{', '.join(reasons)}]}}."
            )
        return _BACKEND

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """vLLM's own sets what its dense MLA kernels for CPUs need; ours need none of that, so it is put back."""
        scheduler, cache, model = vllm_config.scheduler_config, vllm_config.cache_config, vllm_config.model_config
        asked = (scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens, cache.enable_prefix_caching)
        block_size = cache.block_size
        super().check_and_update_config(vllm_config)
        if model is None:
            return
        if getattr(model.hf_text_config, "kv_lora_rank", None):
            _rotate_natively(vllm_config.compilation_config.custom_ops)
        if set(model.architectures) & set(ARCHITECTURES):
            scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens, cache.enable_prefix_caching = asked
            if cache.user_specified_block_size:
                cache.block_size = block_size
            logger.info_once("attnfit: block size, chunked prefill and prefix caching stay as asked for.")


def _architectures() -> list[str]:
    """Of the model that is being built: others have an indexer of their own, which does not run here."""
    from vllm.config import get_current_vllm_config

    return list(get_current_vllm_config().model_config.architectures)


def _rotate_natively(operators: list[str]) -> None:
    """Turns off `_C.rotary_embedding`: that of 0.32.0's CPU build answers nonsense, without a word, for queries of
    [tokens, heads, size] with more than one head, which is what MLA layers of rope_type "default" give it."""
    if f"+{_ROTARY}" in operators:
        operators.remove(f"+{_ROTARY}")
    if f"-{_ROTARY}" not in operators:
        operators.append(f"-{_ROTARY}")
        logger.info_once("attnfit: the rotary operator of the CPU build is wrong for MLA; PyTorch's own is used.")
