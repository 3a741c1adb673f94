"""attnfit: which attention backend will serve this launch, and why does every other one refuse?

    import attnfit
    report = attnfit.check(LAUNCH_COMMAND, gpu="h200x8")
    report.verdict, report.launch.layers[0].selection.chosen

The public names are those of `__all__`; everything else may change without notice.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnfit.api import check, select
    from attnfit.core import Capability, Fit, Gpu, Launch, Question, Reason, Report, Selection, Status, Step, Verdict
    from attnfit.errors import AttnfitError, InputError, UnknownAnswer, UsageError
    from attnfit.understand import describe

__version__ = "0.1.0"

__all__ = [
    "AttnfitError",
    "Capability",
    "Fit",
    "Gpu",
    "InputError",
    "Launch",
    "Question",
    "Reason",
    "Report",
    "Selection",
    "Status",
    "Step",
    "UnknownAnswer",
    "UsageError",
    "Verdict",
    "check",
    "describe",
    "select",
]

_ROOMS = {
    "api": ("check", "select"),
    "understand": ("describe",),
    "errors": ("AttnfitError", "InputError", "UnknownAnswer", "UsageError"),
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: `import attnfit` itself costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'attnfit' has no attribute {name!r}")
    from importlib import import_module

    room = next((room for room, names in _ROOMS.items() if name in names), "core")
    return getattr(import_module(f"attnfit.{room}"), name)
