"""One answer for a machine with several kinds of GPU, of which the launch may not use all.

Which kinds it uses is certain only where it needs more GPUs than all others together: CUDA numbers the devices by a
guess of their speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set, and that order is not the one they are named in.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from attnfit.fit.answer import Fit

_ORDER = ("breaks", "unknown", "may break", "fits")


def combine(kinds: Sequence[tuple[str, int, Fit]]) -> Fit:
    """The worst answer of the kinds that are used for certain; another that breaks makes it *may break*.

    kinds: name, how many there are, the answer for a rank on it. At least one.
    """
    if len(kinds) == 1:
        return kinds[0][2]
    total = sum(count for _, count, _ in kinds)

    def used(kind: tuple[str, int, Fit]) -> bool:
        _, count, fit = kind
        return fit.gpus is not None and fit.gpus > total - count

    def of(kind: tuple[str, int, Fit]) -> Fit:
        name, _, fit = kind
        inputs = (f"mixed GPUs: the figures are those of a rank on {name}", *fit.inputs)
        return msgspec.structs.replace(fit, inputs=inputs)

    worst = min(kinds, key=lambda kind: _ORDER.index(kind[2].verdict))
    certain = min(filter(used, kinds), key=lambda kind: _ORDER.index(kind[2].verdict), default=None)
    if worst[2].files:
        return worst[2]  # the files are the same on every GPU
    if certain is not None and certain[2].verdict == worst[2].verdict:
        return of(certain)
    if worst[2].verdict == "unknown" or len({fit.verdict for _, _, fit in kinds}) == 1:
        return of(worst)
    name, _, fit = worst
    some = "some" if fit.gpus is None else f"{fit.gpus} of the {total}"
    why = f"it uses {some} GPUs, and CUDA's order decides which; on a {name}, {fit.why}"
    return msgspec.structs.replace(of(worst), verdict="may break", why=why)
