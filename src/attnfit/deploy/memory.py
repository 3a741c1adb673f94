"""What GPU memory the machine's GPUs hold, asked of NVML: an engine that has ended must have given its own back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from attnfit.errors import AttnfitError
from attnfit.inputs import nvml

WAIT_S = 60.0
SLACK_MIB = 256  # other processes may have grown a little
_NO_NVML = "no NVIDIA driver answers here, so whether its GPU memory is free is not checked"


class Used(NamedTuple):
    """MiB in use, by GPU; empty: there is nothing to ask, and `why`."""

    mib: tuple[int, ...]
    why: str = ""


def used(library: Callable[[], Any] = nvml.library) -> Used:
    try:
        found = nvml.used(library())
    except AttnfitError:
        return Used((), _NO_NVML)
    return Used(found) if found else Used((), _NO_NVML)


def wait_free(
    before: Used,
    given_up: Callable[[], bool] = lambda: False,
    library: Callable[[], Any] = nvml.library,
    *,
    seconds: float = WAIT_S,
) -> str:
    """Waits until no more is in use than before the engine was started. "": it is free; else what to say of it.

    given_up: asked again and again whether to wait no longer.
    """
    if not before.mib:
        return before.why
    until = time.monotonic() + seconds
    while True:
        now = used(library)
        over = [(i, n - b) for i, (n, b) in enumerate(zip(now.mib, before.mib, strict=False)) if n > b + SLACK_MIB]
        if not over:
            return ""
        if time.monotonic() >= until or given_up():
            which = ", ".join(f"GPU {i}: {more} MiB more" for i, more in over)
            waited = time.monotonic() - until + seconds
            return f"after {waited:.0f} s more GPU memory is in use than before the start ({which})"
        time.sleep(0.2)
