"""Makes vLLM know the backend: under a name of its own, or as CUSTOM; on request also in its own choice."""

from __future__ import annotations

from typing import Any

from attnfit.engines.vllm.plugin import releases
from attnfit.engines.vllm.plugin.serves import CUSTOM, NAME, NAME_IF_TAKEN, NAMED

PATH = "attnfit.engines.vllm.plugin.backend.TritonMLASparseBackend"


def register(*, auto: bool, indexer: bool) -> None:
    """Raises what keeps the plug-in from working here; nothing is changed then."""
    release = releases.running()
    from vllm.platforms import current_platform

    from attnfit.engines.vllm.plugin import backend  # noqa: F401  (fails here, not in the middle of a launch)

    # Of the class: an instance warns of a name it lacks. Where the platform is ours: no GPU, no choice, no DeepGEMM.
    on_cpu = getattr(type(current_platform), "serves_dsa", False)
    auto = auto and not on_cpu
    theirs = _choice() if auto else None
    if indexer or on_cpu:
        from attnfit.engines.vllm.plugin.indexer import routing

        routing.install()
    member = _registered(release)
    if auto:
        _append_to_choice(theirs, member)


def _registered(release: str) -> Any:
    """The enum member that stands for our backend; CUSTOM always does, unless another plug-in has taken it."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    custom = AttentionBackendEnum[CUSTOM]
    if not custom.is_overridden():
        register_backend(custom, PATH)
    if release not in NAMED:
        if custom.get_path() != PATH:
            raise RuntimeError(f"the name {CUSTOM} is taken by {custom.get_path()}, and this release has no other")
        return custom
    name = NAME if _is_free(AttentionBackendEnum, NAME) else NAME_IF_TAKEN
    if name not in AttentionBackendEnum.__members__:  # a process may load plug-ins again, and a name is added once
        register_backend(name, PATH)
    return AttentionBackendEnum[name]


def _is_free(names: Any, name: str) -> bool:
    return name not in names.__members__ or names[name].get_path() == PATH


def _choice() -> Any:
    """vLLM's own function for the order of its choice. Raises UnknownReleaseError where it is not where it was."""
    from vllm.platforms import cuda

    try:
        return cuda._get_backend_priorities
    except AttributeError as error:
        raise releases.UnknownReleaseError(f"this vLLM is not the one it knows: {error}") from error


def _append_to_choice(theirs: Any, member: Any) -> None:
    """The last of the backends that vLLM tries for MLA by itself: chosen only where it would have none."""
    from vllm.platforms import cuda

    if getattr(theirs, "attnfit", False):
        return

    def priorities(use_mla: bool, *rest: Any, **named: Any) -> list[Any]:
        found = list(theirs(use_mla, *rest, **named))
        return [*found, member] if use_mla else found

    priorities.attnfit = True  # type: ignore[attr-defined]
    priorities.cache_clear = getattr(theirs, "cache_clear", None)  # type: ignore[attr-defined]
    cuda._get_backend_priorities = priorities
