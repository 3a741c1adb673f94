"""b12x.attention.paged as far as engines ask it before serving (b12x 1.5, `_lib/gating.py:37-95`)."""

from attnfit_facts import capability, fact  # type: ignore[import-not-found]  # made by witness.fakes


def is_supported(device: object = None) -> bool:
    """Consumer Blackwell only, and only if the package's own needs (CUTLASS DSL, Triton, a visible GPU) are met."""
    if not fact("b12x_device"):
        return False
    major, minor = capability()
    return bool(major == 12 and (minor == 0 or minor == 1))
