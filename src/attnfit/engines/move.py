"""A change of a launch, and what it costs its user.

The classes are in the order in which a user would take them; the search adds them up. The gaps between them only have
to keep that order for the few changes that one offer combines (docs/planner.md has the table).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from attnfit.core import Launch


class Cost(IntEnum):
    NOTHING = 1  # a flag that does nothing goes; a misspelt one is put right
    BACKEND = 4  # another backend or kernel: the same numbers, another speed
    GRAPHS = 10  # CUDA graphs, fusions, compilation: speed
    BLOCK = 14  # block or page size: speed, and how finely caches are shared
    KV_DTYPE = 20  # precision, or room, of the KV cache
    DTYPE = 30  # precision of the activations
    FEATURE = 40  # something that was asked for goes: speculative decoding, LoRA, quantisation on the fly, ...
    SIZE = 50  # fewer requests at once, shorter ones, another share of the memory
    SPLIT = 60  # the model divided otherwise among the GPUs
    PACKAGE = 80  # a package to install
    DENSE = 100  # sparse attention off: beyond its top-k another model, and slower
    PLUGIN = 120  # attnfit's own backend: not run on every GPU yet
    RELEASE = 150  # another release of the engine; one more for every release in between
    FORMAT = 200  # another checkpoint of the same model
    ENGINE = 260  # the other engine
    GPU = 400  # other hardware


def starts(launch: Launch) -> bool:
    """It passes, and nothing that is known stops it for sure: then only what does nothing is worth a change."""
    broken = any(hazard.breaks for hazard in launch.hazards) or any(kernel.breaks for kernel in launch.kernels)
    return bool(launch.ok) and not broken


class Move(NamedTuple):
    """A change of a launch: what it is in words, the server's flags after it, and what the user gives up."""

    text: str
    argv: tuple[str, ...]
    gives_up: str = ""
    variables: Mapping[str, str | None] = {}
    gpus: int | None = None  # that the server sees then, where that changes
    kind: str = ""  # of several moves of one class and kind that help at most one is worth offering
    installs: str = ""  # what pip must install first, where the command runs
    env: Mapping[str, bool] = {}  # environment facts that are then so
    cost: int = Cost.FEATURE
    whole: bool = False  # its parts are one thing: a flag in the place of two
    release: str = ""  # of the engine, where that is what changes


def trusting(argv: tuple[str, ...], said: str) -> Iterator[Move]:
    """What transformers asks for where a model brings code of its own. Both engines have the flag."""
    flag = "--trust-remote-code"
    if "trust_remote_code=True" in said and flag not in argv:
        lost = "safety: code that comes with the model is run; look at it first"
        yield Move(flag, (*argv, flag), lost, cost=Cost.FEATURE, kind="trust")


def close(word: str, names: Iterable[str], cutoff: float) -> list[str]:
    """Names of flags that `word` was probably meant to be: word by word, none that says the opposite, or more."""
    import difflib  # only for those who misspelt

    names = list(names)
    full = "-".join(_SHORT.get(part, part) for part in _parts(word))
    spelt_out = [name for name in names if name.strip("-") in (full, f"{full}-size")] if full != word.strip("-") else []
    if spelt_out:
        return spelt_out[:1]
    found = difflib.get_close_matches(word, names, n=8, cutoff=cutoff)
    return [name for name in found if _meant(_parts(word), _parts(name))][:2]


def _parts(name: str) -> list[str]:
    return [part for part in name.strip("-").split("-") if part]


# What one engine abbreviates, and another spells out.
_SHORT = {"tp": "tensor-parallel", "pp": "pipeline-parallel", "dp": "data-parallel", "ep": "expert-parallel",
          "dcp": "decode-context-parallel"}  # fmt: skip
_DENYING = frozenset({"no", "not", "disable", "without"})
_SAYING_NOTHING = frozenset({"size", "name", "path", "enable", "config"})


def _meant(given: list[str], name: list[str]) -> bool:
    if _DENYING.isdisjoint(given) != _DENYING.isdisjoint(name):
        return False  # --disable-x is not --enable-x misspelt
    whole, other = "".join(given), "".join(name)
    if abs(len(whole) - len(other)) < 2 and _alike(whole, other, 0.9):
        return True  # words run together, or apart
    left = list(name)
    for part in given:
        at = next((i for i, other in enumerate(left) if _alike(part, other, 0.66)), None)
        if at is None or not _SAYING_NOTHING.issuperset(left[:at]):
            return False
        left = left[at + 1 :]
    return _SAYING_NOTHING.issuperset(left)


def _alike(part: str, other: str, least: float) -> bool:
    """A letter or two apart, or one cut short: attn for attention, length for len."""
    import difflib

    letters = iter(other)
    short = len(part) > 2 and part[0] == other[:1] and all(letter in letters for letter in part)
    longer = len(other) > 2 and part.startswith(other)
    return short or longer or difflib.SequenceMatcher(None, part, other, autojunk=False).ratio() >= least
