"""An offer as a step for people and programs: what to change, what it costs, what stays in doubt, the command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from attnfit.core import FlagChange, Launch, Step
from attnfit.engines import Cost, Move, distribution_of
from attnfit.inputs.secrets import hide
from attnfit.inputs.throwaway import made_from, takes_packages
from attnfit.plan.edits import Origin, Part, with_parts
from attnfit.plan.given_up import given_up
from attnfit.plan.judge import Outcome
from attnfit.plan.search import Found

MOST_STEPS = 4

# A change put into the user's own command; None: it cannot be written there.
Render = Callable[[Move], tuple[str, ...] | None]


def steps(origin: Origin, before: Outcome, found: list[Found], render: Render) -> list[Step]:
    """One of a kind, cheapest first; of those that end alike, the cheapest. Where the launch as given runs out of
    memory, those that are sure not to come first."""

    def order(each: Found) -> tuple[bool, int, int]:
        return (before.too_large and each.outcome.tight, each.cost, len(each.parts))

    offered: list[Step] = []
    kinds: set[object] = set()
    ends: set[object] = set()
    ways: set[object] = set()
    for each in sorted(found, key=order):
        end = (each.kind, *ends_as(each.outcome.launch)) if each.kind[1] else ends_as(each.outcome.launch)
        if each.kind in kinds or end in ends or frozenset(each.parts) in ways or len(offered) == MOST_STEPS:
            continue
        if (step := step_of(origin, before.launch, each, render)) is not None:
            kinds.add(each.kind)
            ends.add(end)
            ways.add(frozenset(each.parts))
            offered.append(step)
    return offered


_NO_CODE = re.compile(r"does not appear to have a file named (\w+\.py)")


def perhaps(before: Outcome, tried: Sequence[tuple[Move, Outcome]]) -> list[Step]:
    """The model's own code, which the engine asks for and which is not run here, or not there. These are no offers."""
    if match := _NO_CODE.search(before.launch.error or ""):
        return [Step(f"put {match[1]}, which belongs to the model's repository, beside its config.json")]
    for move, after in tried:
        if move.kind != "trust":
            continue
        if match := _NO_CODE.search(after.launch.error or ""):
            text = f"{move.text} may help, with {match[1]} beside config.json: it belongs to the model's repository"
            return [Step(text, gives_up=move.gives_up)]
        if after.launch.ok is None:
            why = f": {after.launch.unknown[0]}" if after.launch.unknown else ""
            text = f"{move.text} may help: it is past this refusal, but whether it starts then is not known{why}"
            return [Step(text, gives_up=move.gives_up)]
    return []


def step_of(origin: Origin, before: Launch, found: Found, render: Render) -> Step | None:
    """None: it cannot be written in the user's command."""
    request = with_parts(origin, found.parts)
    variables = {part.variable: part.value for part in found.parts if part.variable}
    release = next((part.release for part in found.parts if part.release), "")
    words = render(Move("", request.argv, variables=variables, release=release))
    if words is None:
        return None
    installs = " ".join(part.installs for part in found.parts if part.installs)
    if release and words == render(Move("", request.argv, variables=variables)):  # the command does not name it
        installs = " ".join(filter(None, [f"{distribution_of(origin.engine.name).name}=={release}", installs]))
    text, made = in_words(origin, found), None
    if installs and origin.command is not None:
        inner = found._replace(parts=tuple(part for part in found.parts if not part.installs))
        packages = [f"'{each}'" for each in installs.split()]
        if takes_packages(origin.command):
            words = render(Move("", request.argv, variables=variables, release=release, installs=installs))
            if words is None:
                return None
            text = ", ".join(filter(None, [*(f"--with {each}" for each in packages), in_words(origin, inner)]))
            installs = ""
        elif (made := made_from(origin.command)) is not None:
            text = ", ".join(filter(None, [f"{made} with pip install {' '.join(packages)}", in_words(origin, inner)]))
    return Step(
        text="; ".join([text, *then(found.outcome)]),
        argv=words if made is None else None,
        gives_up="; ".join(dict.fromkeys(given_up(origin, before, found))),
        installs=installs,
        env={name: said for part in found.parts for name, said in part.env},
        kind=str(found.kind[0]),
        cost=found.cost,
        doubts=tuple(found.outcome.doubts),
        changes=tuple(changes(origin, found)),
        engine=origin.engine.name if release else "",
        release=release,
    )


def then(outcome: Outcome) -> Iterator[str]:
    """What serves it then, and what is in doubt."""
    names = ", ".join(dict.fromkeys(serving(outcome.launch)))
    yield f"then {names} serves it" if names else "then it passes"
    yield from outcome.doubts[:2]  # the memory, and a hazard


def serving(launch: Launch) -> list[str]:
    """The backends that serve it."""
    pair = [name for role, name in launch.chosen if role in ("prefill", "decode")]
    return [name for name in (*(layer.selection.chosen for layer in launch.layers), *pair) if name]


def ends_as(launch: Launch) -> tuple[object, ...]:
    """The same for launches that end up alike: one way to each is enough."""
    chosen = tuple((layer.role, layer.selection.chosen, layer.question.num_heads) for layer in launch.layers)
    return (chosen, launch.chosen, launch.dtype, launch.kv_cache_dtype_after_init, launch.block_size_after_load)


def in_words(origin: Origin, found: Found) -> str:
    """ "drop --dtype float16", "--attention-backend triton instead of flashinfer"."""
    idle = {part for move, own in found.moves if move.cost == Cost.NOTHING and move.kind == "inert" for part in own}
    said = [_part(origin, part) + (", which does nothing here" if part in idle else "") for part in found.parts]
    return ", ".join(said) if len(said) < 2 else ", and ".join([", ".join(said[:-1]), said[-1]])


def _part(origin: Origin, part: Part) -> str:
    if part.release:
        return f"{origin.engine.name} {part.release} instead of {origin.request.release.version}"
    if part.installs:
        return f"pip install '{part.installs}' where it runs"
    if part.variable:
        was = origin.request.variables.get(part.variable)
        name, value = part.variable, part.value
        shown = hide([f"{name}={value if value is not None else was}"])[0]
        if value is None:
            return f"drop {shown}"
        return f"{shown} instead of {hide([f'{name}={was}'])[0].partition('=')[2]}" if was is not None else shown
    gone, come = _gone(origin, part), [" ".join(hide(words)) for words in part.put]
    if not come:
        return f"drop {' '.join(gone)}"
    if not gone:
        return " ".join(come)
    old, new = gone[0].split(maxsplit=1), come[0].split(maxsplit=1)
    alike = len(old) == len(new) == 2 and old[0] == new[0]
    return f"{' '.join(come)} instead of {old[1] if alike else ' '.join(gone)}"


def _gone(origin: Origin, part: Part) -> list[str]:
    """What goes, as it may be shown: words that belong to no known flag may be anything, so of those only the name."""
    pieces = origin.pieces[part.at : part.stop]
    shown = [" ".join(hide(p.words)) if p.known else p.words[0].partition("=")[0] if p.flag else "" for p in pieces]
    if any(shown):
        return [text for text in shown if text]
    first = pieces[0].words[0] if pieces else ""
    meant = part.put and not first[:1].isalnum()  # a dash that is none, in front of a flag
    return [first if meant else "the words that belong to no flag"] if first else []


def changes(origin: Origin, found: Found) -> Iterator[FlagChange]:
    """The flag diff."""
    one = {part for unit in found.units if len(unit) > 1 for part in unit}
    for part in found.parts:
        if part.variable:
            was = origin.request.variables.get(part.variable)
            before = None if was is None else hide([f"{part.variable}={was}"])[0].partition("=")[2]
            after = None if part.value is None else hide([f"{part.variable}={part.value}"])[0].partition("=")[2]
            yield FlagChange(part.variable, before, after, variable=True, together=part in one)
        elif part.at >= 0:
            gone = _gone(origin, part)
            come = [" ".join(hide(words)) for words in part.put]
            name = (gone or come)[0].split()[0].partition("=")[0]
            old, new = (" ".join(words) if words else None for words in (gone, come))
            yield FlagChange(name, old, new, together=part in one)
