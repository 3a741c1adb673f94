"""A record's remedies in words, for whoever prints or foresees it."""

from __future__ import annotations

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


def meant(record: Record, engine: str, release: str) -> list[Remedy]:
    """Of the remedies those for this engine and release that hold no figure of a log."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    def holds(remedy: Remedy) -> bool:
        of = remedy.engine in ("", engine)
        filled = not any("{" in value for value in (remedy.text, *remedy.set.values()))
        return of and filled and SpecifierSet(remedy.release).contains(Version(release).base_version, prereleases=True)

    return [remedy for remedy in record.remedies if holds(remedy)]
