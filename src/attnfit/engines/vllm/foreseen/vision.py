"""What the vision encoder makes of the backend that was asked for it: it takes the word for it, and does not look."""

from __future__ import annotations

from attnfit.engines.vllm.foreseen.seen import MAY_BREAK, Found, Seen
from attnfit.engines.vllm.launch.model_asserts import no_vision

# Where vllm/platforms/cuda.py asserts that the encoder can do with it, in the newest patch of each minor from 0.13 on;
# the list is the function above it, which 0.17 made longer.
_ASSERTED = {13: 375, 15: 388, 16: 391, 17: 431, 18: 351, 19: 368, 20: 401, 21: 405, 22: 411, 24: 517, 25: 513,
             26: 519, 28: 523, 29: 529, 30: 575, 31: 563, 32: 543, 33: 545}  # fmt: skip
_TAKEN, _SINCE_17 = ("FLASH_ATTN", "TORCH_SDPA"), ("TRITON_ATTN", "FLASHINFER")


def vit_backend(seen: Seen) -> Found | None:
    """AF229: it is none that encoders know, or FlashAttention where its kernels have no code for the GPU."""
    name = seen.cfg.flags.get("mm_encoder_attn_backend")
    if not isinstance(name, str) or not seen.cfg.is_multimodal or seen.minor < 13 or no_vision(seen.cfg):
        return None
    name = name.upper()
    needs = "whether this model's encoder attends through the engine's own layers"
    given = f"--mm-encoder-attn-backend {name}"
    taken = (*_TAKEN, *(_SINCE_17 if seen.minor >= 17 else ()))
    if name not in taken:
        line = _ASSERTED[max(minor for minor in _ASSERTED if minor <= seen.minor)]
        because = f"{given}, and encoders take {', '.join(taken)}"
        return Found("AF229", MAY_BREAK, because, f"vllm/platforms/cuda.py:{line}", needs)
    if name == "FLASH_ATTN" and seen.capability.major < 8:
        because = f"{given}, whose kernels need compute capability 8.0, here {seen.capability}"
        line = 58 if seen.minor >= 17 else 45
        return Found("AF229", MAY_BREAK, because, f"vllm/vllm_flash_attn/flash_attn_interface.py:{line}", needs)
    return None
