"""A record's remedies in words, for whoever prints or foresees it."""

from __future__ import annotations

from collections.abc import Collection

from attnfit.hazards.record import Record, Remedy


def remedy_line(remedy: Remedy) -> str:
    """One line: what it means, and in brackets the flags, variables, packages and releases."""
    parts = [f"{flag} {value}".strip() for flag, value in remedy.set.items()]
    parts += [f"drop {flag}" for flag in remedy.drop]
    parts += [f"unset {name}" if value is None else f"{name}={value}" for name, value in remedy.variables.items()]
    parts += [f"pip install '{name}'" for name in remedy.installs]
    parts += [f"release {remedy.release}"] if remedy.release else []
    flags = f" [{', '.join(parts)}]" if parts else ""
    gives_up = f"; gives up: {remedy.gives_up}" if remedy.gives_up else ""
    return f"{remedy.text}{flags}{gives_up}"


def suits(remedy: Remedy, said: str) -> bool:
    """said: what a log says of the failure: the line, the traceback above it, and what was read of the launch."""
    low = said.lower()
    named = not remedy.near or any(literal.lower() in low for literal in remedy.near)
    return named and not any(literal.lower() in low for literal in remedy.lacks)


def does_nothing(remedy: Remedy, given: Collection[str]) -> bool:
    """Whether all that it does is to take away, or to leave to the engine, what the launch has not asked for.

    given: its flags and variables.
    """
    sets = any(value != "auto" for value in remedy.set.values()) or any(
        v is not None for v in remedy.variables.values()
    )
    named = {flag.partition(".")[0] for flag in (*remedy.drop, *remedy.set)} | remedy.variables.keys()
    return bool(named) and not (sets or remedy.installs or remedy.release) and not named & set(given)


def meant(
    record: Record, engine: str, release: str, predicate: str = "", given: Collection[str] | None = None
) -> list[Remedy]:
    """Of the remedies those that cure, for this engine and release, and hold no figure of a log.

    predicate: by which the launch meets the record. given: its flags and variables, where they are known.
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    def holds(remedy: Remedy) -> bool:
        of = remedy.engine in ("", engine) and not remedy.shows  # nothing has failed that could be looked into
        filled = not any("{" in value for value in (remedy.text, *remedy.set.values()))
        if not (of and filled) or (remedy.when and predicate not in remedy.when):
            return False
        if given is not None and does_nothing(remedy, given):
            return False
        return SpecifierSet(remedy.release).contains(Version(release).base_version, prereleases=True)

    return [remedy for remedy in record.remedies if holds(remedy)]
