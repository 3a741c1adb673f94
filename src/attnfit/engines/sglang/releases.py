"""The releases that are covered, and what of each is known without running it (releases.json, read off its sources)."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import msgspec
from packaging.version import InvalidVersion, Version

from attnfit.errors import UnknownAnswer, UsageError, did_you_mean

TABLE = Path(__file__).with_name("releases.json")


class Values(msgspec.Struct, frozen=True):
    """The values an option takes, in the order of the release, and where they stand below sglang/."""

    names: tuple[str, ...]
    where: str


class Serve(msgspec.Struct, frozen=True):
    """How `sglang serve` reads its words before the server's own parser does."""

    positional: bool  # `sglang serve MODEL`
    model_type: bool  # takes `--model-type X` away
    model: bool  # looks for `--model` too, not only for `--model-path`
    model_required: str  # where it refuses a launch that names none


class Entry(msgspec.Struct, frozen=True):
    """What is known of one release."""

    choices: dict[str, Values]  # field of ServerArgs -> the values of its option
    brings: dict[str, str]  # distributions that `pip install sglang==X` installs (METADATA) -> their versions
    serve: Serve


class Resolved(NamedTuple):
    version: str
    exact: bool  # one of the series that is covered
    note: str


@functools.cache
def table() -> dict[str, Entry]:
    """release -> what is known of it, oldest first."""
    return msgspec.json.decode(TABLE.read_bytes(), type=dict[str, Entry])


def known() -> list[str]:
    return list(table())


def entry(version: str) -> Entry:
    """The release's own entry, else that of the newest release before it, else the oldest."""
    return table()[nearest(version)]


def nearest(version: str) -> str:
    if version in table():
        return version
    before = [name for name in table() if Version(name) <= Version(version)]
    return (before or known()[:1])[-1]


def resolve(text: str | None) -> Resolved:
    """A release as users write it ("0.5.9", "v0.5.9", "0.5.9+cu130"); None: the newest.

    Raises UsageError for what is no version, UnknownAnswer for a release whose code is too old to be asked.
    """
    if text is None:
        return Resolved(known()[-1], True, "")
    plain = text.strip().removeprefix("v")
    try:
        version = Version(plain)
    except InvalidVersion:
        names = ", ".join(known())
        raise UsageError(f"{text!r} is no SGLang release{did_you_mean(plain, known())}; known are {names}") from None
    public = version.public
    if public in table():
        return Resolved(public, True, "")
    oldest, newest = Version(known()[0]), Version(known()[-1])
    if version.release < oldest.release[:2]:
        raise UnknownAnswer(f"SGLang {plain} is too old to be asked; covered are {known()[0]} to {known()[-1]}")
    inside = oldest.release <= version.release <= newest.release and not version.is_prerelease
    if inside:
        return Resolved(public, True, f"SGLang {public} is answered by its own sources; it is not among those proven")
    return Resolved(public, False, f"SGLang {public} is not among the releases proven, {known()[0]} to {known()[-1]}")
