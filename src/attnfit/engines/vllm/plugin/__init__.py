"""attnfit inside vLLM: a sparse MLA backend for GPUs where no release has one, found through `vllm.general_plugins`.

`register` runs in every process of vLLM (engine, workers, model inspection) and must never keep vLLM from starting:
where the running release is not one that an adapter was written for, it says so in one sentence and does nothing.
Settings are environment variables (settings.py); what is served is said in serves.py.
"""

from __future__ import annotations

_said = False


def register() -> None:
    """The entry point. Raises nothing."""
    from attnfit.engines.vllm.plugin import settings

    try:
        from attnfit.engines.vllm.plugin import registration

        registration.register(auto=settings.is_on(settings.AUTO), indexer=settings.is_on(settings.INDEXER))
    except (Exception, SystemExit) as error:  # vLLM does not guard this call, and must start without us
        say(f"attnfit's sparse MLA backend is not loaded: {error}")


def say(sentence: str) -> None:
    """One warning in vLLM's log; only the first, for processes ask again."""
    global _said
    if not _said:
        import logging  # `check` imports this package, and has no use for it

        _said = True
        logging.getLogger("vllm.attnfit").warning("%s", " ".join(sentence.split()))
