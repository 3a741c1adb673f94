"""Refusals after the selector, in releases whose construction was not compared with the real engine.

What is checked while a model is built is known from 0.33.0. Another release may lack the check, so its refusal stands
only where the release's own source has the text; otherwise it is unknown, never a wrong refusal.
"""

from __future__ import annotations

from attnfit.engines.vllm import ours
from attnfit.engines.vllm.launch import facts, kernel_facts
from attnfit.engines.vllm.launch.state import Refusal, Unknown
from attnfit.engines.vllm.launch.way import in_plain_words


def weigh(release: str, refusal: Refusal) -> Refusal | Unknown:
    """The refusal, or what is unknown about it in this release. The selector's own refusals are the book's, and those
    of our plug-in our own."""
    if release in facts.PROVEN or refusal.stage == "selector" or refusal.where.startswith(ours.PLACE):
        return refusal
    minor = int(release.split(".")[1])
    texts: dict[str, int] = kernel_facts.load("since")["texts"]
    found = max((text for text in texts if text in refusal.message), key=len, default=None)  # the most exact one
    if found is not None and texts[found] <= minor:
        return in_plain_words(refusal)
    newest, said = facts.PROVEN[-1], refusal.message.replace(" on {device}", "")
    return Unknown(
        f"whether vLLM {release} refuses while it builds the model, as {newest} would ({said}); only a start tells, "
        f"or another release: {newest} is proven"
    )
