"""What is neither weights nor KV cache: activations of the largest batch, logits, CUDA graphs, libraries.

vLLM measures it on the GPU; without one there is only a range. The lower end is what must be there, the upper end a
generous rule of thumb, so that "fits" means room to spare. Every term is named in the answer.
"""

from __future__ import annotations

from attnfit.core import Capability
from attnfit.engines.vllm.fit.scheduler import Batch
from attnfit.engines.vllm.launch.pages import DTYPE_BYTES
from attnfit.engines.vllm.launch.state import EngineConfig
from attnfit.fit.span import Span

GIB = 1 << 30
_HIDDEN_COPIES = 10  # residual, norms, projections and their inputs that live at once
_LOGIT_COPIES = 4  # float32 copies of the sampler


def overhead(cfg: EngineConfig, batch: Batch, length: int) -> tuple[Span, str]:
    """Bytes of one rank, and the sentence that says from what."""
    text = cfg.text
    hidden, vocab = _int(text, "hidden_size"), _int(text, "vocab_size")
    element = DTYPE_BYTES[cfg.dtype]
    width = max(
        _int(text, "intermediate_size"), _int(text, "moe_intermediate_size") * _int(text, "num_experts_per_tok")
    )
    one = batch.tokens * hidden * element
    layers = one * _HIDDEN_COPIES + 3 * batch.tokens * (width // cfg.tp + _routed(text) * hidden) * element
    logits = batch.seqs * vocab * 4 * _LOGIT_COPIES
    graphs = 0 if cfg.enforce_eager or cfg.cudagraph_mode == "NONE" else 3 * GIB
    libraries = GIB if cfg.tp * cfg.pp * cfg.dp == 1 else 5 * GIB // 2
    encoder = 3 * GIB if cfg.is_multimodal and not cfg.flags.get("language_model_only") else 0
    latent = GIB if cfg.use_mla else 0
    high = layers + logits + graphs + libraries + encoder + latent
    said = (
        f"activations, CUDA graphs and libraries are estimated for {batch.tokens:,} tokens a batch and "
        f"{batch.seqs:,} requests; the engine measures them on the GPU"
    )
    return Span(one, max(one, high)), said


# Compute capabilities whose GPUs (Jetson, Thor, GB10) share the machine's main memory (gpus/catalog.json).
_SHARED = (Capability(7, 2), Capability(8, 7), Capability(11, 0), Capability(12, 1))


def elsewhere(capability: Capability, total: int) -> int:
    """Bytes that the engine counts as its own and that other programs, or the system, may take meanwhile.

    It measures what is free of the whole machine there (vllm/utils/mem_utils.py, MemorySnapshot.measure). Two GB10 were
    reported with 17 to 19 GiB less than weights and budget leave (spark-vllm-docker issue 396), of which the estimate
    above has 7: a tenth of the memory is the rest.
    """
    return total // 10 if capability in _SHARED else 0


def _routed(text: dict[str, object]) -> int:
    """Copies of each token that go to experts."""
    return _int(text, "num_experts_per_tok") or 0


def _int(text: dict[str, object], key: str) -> int:
    value = text.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def absorbed(cfg: EngineConfig, element: int) -> int:
    """Bytes of the latent projections that MLA keeps a second time, transposed (layers/attention/mla_attention.py)."""
    if not cfg.use_mla:
        return 0
    text = cfg.text
    rows = _int(text, "num_attention_heads") // cfg.tp * (_int(text, "qk_nope_head_dim") + _int(text, "v_head_dim"))
    return rows * _int(text, "kv_lora_rank") * _int(text, "num_hidden_layers") // cfg.pp * element
