"""b12x.attention.paged as far as engines ask it before serving (b12x 1.5, `_lib/gating.py:37-95`)."""

import torch

from attnfit_facts import fact


def is_supported(device=None):
    """Consumer Blackwell only, and only if the package's own needs (CUTLASS DSL, Triton, a visible GPU) are met."""
    if not fact("b12x_device"):
        return False
    major, minor = torch.cuda.get_device_capability()
    return major == 12 and (minor == 0 or minor == 1)
