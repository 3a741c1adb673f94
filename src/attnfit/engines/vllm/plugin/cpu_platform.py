"""vLLM's CPU platform, with DSA models: the class that cpu.py names. What is not said here is vLLM's own."""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger
from vllm.platforms import cpu_platform_plugin
from vllm.utils.import_utils import resolve_obj_by_qualname

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
        scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
        asked = (scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens, cache.enable_prefix_caching)
        block_size = cache.block_size
        super().check_and_update_config(vllm_config)
        if not _is_dsa(vllm_config.model_config):
            return
        scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens, cache.enable_prefix_caching = asked
        if cache.user_specified_block_size:
            cache.block_size = block_size
        # The operator `_C.rotary_embedding` of the CPU build turns one head of a [tokens, heads, size] tensor only.
        operators = vllm_config.compilation_config.custom_ops
        if f"+{_ROTARY}" in operators:
            operators.remove(f"+{_ROTARY}")
        if f"-{_ROTARY}" not in operators:
            operators.append(f"-{_ROTARY}")
            logger.info_once("attnfit: block size, chunked prefill and prefix caching stay as asked; native rotary.")


def _is_dsa(model_config: Any) -> bool:
    """Whether it is a model of those whose layers ask for a sparse backend and whose indexer is ours."""
    from attnfit.engines.vllm.plugin.indexer.routing import ARCHITECTURES

    return model_config is not None and bool(set(model_config.architectures) & set(ARCHITECTURES))
