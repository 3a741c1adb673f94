"""Makes vLLM know the backend: under a name of its own, or as CUSTOM; on request also in its own choice."""

from __future__ import annotations

from typing import Any

from attnfit.engines.vllm.plugin import releases
from attnfit.engines.vllm.plugin.serves import CUSTOM, NAME, NAME_IF_TAKEN, NAMED

PATH = "attnfit.engines.vllm.plugin.backend.TritonMLASparseBackend"


def register(*, auto: bool, indexer: bool) -> None:
    """Raises what keeps the plug-in from working here; nothing is changed then."""
    release = releases.running()
    from attnfit.engines.vllm.plugin import backend  # noqa: F401  (fails here, not in the middle of a launch)

    member = _registered(release)
    if indexer:
        from attnfit.engines.vllm.plugin.indexer import routing

        routing.install()
    if auto:
        _append_to_choice(member)


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
    register_backend(name, PATH)
    return AttentionBackendEnum[name]


def _is_free(names: Any, name: str) -> bool:
    return name not in names.__members__ or names[name].get_path() == PATH


def _append_to_choice(member: Any) -> None:
    """The last of the backends that vLLM tries for MLA by itself: chosen only where it would have none."""
    from vllm.platforms import cuda

    theirs = cuda._get_backend_priorities
    if getattr(theirs, "attnfit", False):
        return

    def priorities(use_mla: bool, *rest: Any, **named: Any) -> list[Any]:
        found = list(theirs(use_mla, *rest, **named))
        return [*found, member] if use_mla else found

    priorities.attnfit = True  # type: ignore[attr-defined]
    priorities.cache_clear = getattr(theirs, "cache_clear", None)  # type: ignore[attr-defined]
    cuda._get_backend_priorities = priorities
