"""The platform's choice: its candidates in order, what it drops on the way, and the texts of its refusals.

Stand-ins take the backends' places, so that only the platform's own code runs. Runs in the witness; stdlib only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from attnfit.engines.vllm.learn.paths import Opaque
from attnfit.engines.vllm.learn.survey import Survey

REASONS = ("<first reason>", "<second reason>")  # what the stand-ins refuse with


def choose(
    survey: Survey, selected: Any, outcome: Callable[[str], list[str]]
) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """Run get_attn_backend_cls with stand-ins for all backends: (who was asked with what, what was raised)."""
    release, asked = survey.release, []
    base = inspect.signature(release.backend_base().validate_configuration.__func__)

    class StandIn:
        def __init__(self, name: str) -> None:
            self.name = name

        def validate_configuration(self, *args: Any, **kwargs: Any) -> list[str]:
            given = base.bind(self, *args, **kwargs).arguments
            asked.append((self.name, given))
            return outcome(self.name)

    real = release.enum.get_class
    release.enum.get_class = lambda member: StandIn(member.name)
    try:
        select = release.platform.get_attn_backend_cls
        takes = inspect.signature(select).parameters
        question = dict(survey.question)
        if "attn_selector_config" in takes:
            extra = {"num_heads": survey.tracked("num_heads")} if "num_heads" in takes else {}
            question = {"attn_selector_config": release.selector_config(**question), **extra}
        select(selected, **question)
    except Exception as error:
        return asked, f"{type(error).__name__}: {error}"
    finally:
        release.enum.get_class = real
    raise Opaque("the engine chose although every backend refused")


def priority(survey: Survey) -> int:
    """The automatic candidates in order, as a tree whose leaves are lists of names."""
    return survey.explore(lambda: [name for name, _ in choose(survey, None, lambda _: list(REASONS))[0]])


def refusals(survey: Survey) -> dict[str, Any]:
    """What the platform drops before it validates, and the texts of its refusals."""
    member = next(iter(m for m in survey.release.enum if m.name in survey.release.names))
    asked, none = survey.once(lambda: choose(survey, None, lambda _: list(REASONS)))
    _, explicit = survey.once(lambda: choose(survey, member, lambda _: list(REASONS)))

    def broken(_: str) -> list[str]:
        raise ModuleNotFoundError("<error>")

    _, none_broken = survey.once(lambda: choose(survey, None, broken))
    _, explicit_broken = survey.once(lambda: choose(survey, member, broken))
    given = asked[0][1]
    dropped = [n for n, value in survey.question.items() if n in given and value is not None and given[n] is None]
    names = [name for name, _ in asked]
    listed = "{" + ", ".join(f"{n}: [{', '.join(REASONS)}]" for n in names) + "}"
    if listed not in none or repr(list(REASONS)) not in explicit or member.name not in explicit:
        raise ValueError(f"the engine's refusals have an unknown form: {none!r}, {explicit!r}")
    head = f"{names[0]}: ["
    unavailable = none_broken.partition(head)[2].partition("]")[0]
    return {
        "drops": dropped,
        "none": none.replace(listed, "{reasons}"),
        "explicit": explicit.replace(repr(list(REASONS)), "{reasons!r}").replace(member.name, "{backend}"),
        "unavailable": unavailable.replace("ModuleNotFoundError", "{type}").replace("<error>", "{error}"),
        "explicit_unavailable": explicit_broken.replace(member.name, "{backend}")
        .replace("[ModuleNotFoundError", "[{type}").replace("<error>", "{error}"),
    }  # fmt: skip
