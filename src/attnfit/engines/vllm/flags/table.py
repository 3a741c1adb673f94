"""The flag table of one release: data, written by `attnfit learn`, one JSON file a release beside this module."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from attnfit.errors import UnknownAnswer, did_you_mean

HERE = Path(__file__).parent


class Flag(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One action of the release's argparse parser, in the parser's own order."""

    options: tuple[str, ...]  # every spelling it answers to; empty for the positional model
    dest: str
    action: str = "store"  # store | bool | true | false | append | lora | help | or the engine's class (unknown)
    shown: tuple[str, ...] = ()  # spellings argparse names in errors, where they differ from `options`
    negative: tuple[str, ...] = ()  # spellings that mean False
    nargs: int | str | None = None  # None: one value
    const: Any = None  # value of a bare flag with nargs "?"
    type: Any = None  # name, {"optional": t}, {"parsed": t} or {"dataclass": name}; None: unknown
    choices: tuple[Any, ...] | None = None
    default: Any = None
    required: bool = False

    @property
    def name(self) -> str:
        """As argparse names it in an error."""
        return "/".join(self.shown or self.options) or self.dest


class Table(msgspec.Struct, frozen=True, kw_only=True):
    release: str
    flags: tuple[Flag, ...]
    classes: dict[str, Any] = {}  # config classes and enums that JSON-valued flags name
    syntax: dict[str, Any] = {}  # what the release's FlexibleArgumentParser does to the list first
    unsure: dict[str, Any] = {}  # config fields whose type the extraction could not settle
    sources: dict[str, str] = {}  # engine file -> digest

    def by_option(self) -> dict[str, Flag]:
        return {option: flag for flag in self.flags for option in flag.options}


@cache
def load_table(release: str, directory: Path = HERE) -> Table:
    """The table of `release`. Raises UnknownAnswer when there is none."""
    try:
        raw = (directory / f"{release}.json").read_bytes()
    except OSError:
        known = known_releases(directory)
        raise UnknownAnswer(
            f"no flag table for vLLM {release}{did_you_mean(release, known)}; known: {', '.join(known)}"
        ) from None
    return msgspec.json.decode(raw, type=Table)


def known_releases(directory: Path = HERE) -> list[str]:
    names = [p.stem for p in directory.glob("*.json")]
    return sorted(names, key=lambda n: [int(x) if x.isdigit() else 0 for x in n.split(".")])
