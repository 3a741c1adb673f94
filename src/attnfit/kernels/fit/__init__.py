"""Whether a Triton kernel fits a GPU, found out without one: compiled ahead of time, read back from the machine code.

    with recording("12.0", limit=101376) as launches:      # limit: shared memory one block may have, bytes
        some_launch_function(q, kv, ...)                    # Triton's own launch path, up to the compiler's door
    for result in compiled(launches):                       # each in a process of its own
        result.verdict, result.shared, result.registers, result.message

As a program (`python -m attnfit.kernels.fit`) it answers one job in JSON; that is how the rest of attnfit asks it.
docs/kernel-fit.md says what is computed and what is not.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "Case": "records",
    "Compiled": "records",
    "Launch": "records",
    "Unknown": "records",
    "compiled": "workers",
    "recording": "recorder",
}

__all__ = ["Case", "Compiled", "Launch", "Unknown", "compiled", "recording"]


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: the program must start, and say so, where torch is missing."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
