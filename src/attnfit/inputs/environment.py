"""Which engine is installed where a command would run. Reads directory names and metadata files; starts nothing.

The environment is found from the command: the path of its executable, `conda run`, `source .../activate`, else the
first program of an engine or `python` on PATH, and the interpreter that script names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from attnfit.engines.entry import EntryPoints, Plugin, entry_of, entry_points
from attnfit.errors import AttnfitError

if TYPE_CHECKING:
    from attnfit.inputs.command import Command

SITES = (
    "lib/python3*/site-packages",
    "lib64/python3*/site-packages",
    "lib/python3*/dist-packages",
    "local/lib/python3*/dist-packages",
    "lib/python3/dist-packages",
    "Lib/site-packages",
)
CONDA_ROOTS = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", ".conda")
_DIST = re.compile(r"^(?P<name>[A-Za-z0-9][\w.]*?)-(?P<version>[^-]+)(?:-.*)?\.(?:dist-info|egg-info)$")


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """An engine in an environment."""

    engine: str
    version: str  # as its metadata says, local part included ("0.33.0+cu129")
    prefix: str
    site_packages: str  # the directory that holds the engine's metadata
    packages: dict[str, str]  # every distribution there: normalised name -> version


def installed(command: Command | None, environ: Mapping[str, str] | None = None) -> Installed | None:
    """The engine the command would run, or None: not installed, in a container, on another machine, or not found.

    `environ` is the environment the command starts in; by default this process's.
    """
    around = dict(os.environ if environ is None else environ)
    for table in _tables(command):
        for prefix in _prefixes(command, table, around):
            found = read_prefix(prefix, table)
            if found is not None:
                return found
    return None


def env_facts(found: Installed) -> dict[str, bool]:
    """The environment facts (`flashinfer`, `fa3`, ... as `--env` names them) of an installed engine.

    Read from the package's own file list and the distributions beside it. Empty when its sources are not there.
    """
    from attnfit.engines import distribution_of
    from attnfit.witness import sources

    entry = entry_of(found.engine)
    beside = {fact: True for distribution, fact in entry.facts_beside.items() if distribution in found.packages}
    beside |= {plugin.fact: True for name, plugin in entry.plugins_beside.items() if _loads(found, name, plugin)}
    try:
        return {**sources.installed(distribution_of(found.engine), found.prefix).env, **beside}
    except (AttnfitError, OSError):
        return beside


def facts_named(command: Command) -> dict[str, bool]:
    """Those that follow from what the command itself puts beside its engine."""
    entry = entry_of(command.engine)
    facts = {**entry.facts_beside, **{name: plugin.fact for name, plugin in entry.plugins_beside.items()}}
    return {facts[name]: True for name in command.beside if name in facts}


def _loads(found: Installed, name: str, plugin: Plugin) -> bool:
    """Whether the engine would find the plug-in: its metadata names the entry point, and what it needs is there."""
    if not {name, *plugin.needs} <= found.packages.keys():
        return False
    for file in Path(found.site_packages).glob(f"{name}-{found.packages[name]}.*-info/entry_points.txt"):
        try:
            if f"[{plugin.group}]" in file.read_text("utf-8", "replace"):
                return True
        except OSError:
            continue
    return False


def read_prefix(prefix: str | Path, table: EntryPoints | None = None) -> Installed | None:
    """The engine in one environment, given its prefix (the directory above `bin/`). Without `table`: any engine."""
    for site in _sites(Path(prefix)):
        packages = distributions(site)
        for one in (table,) if table is not None else entry_points():
            version = packages.get(one.distribution)
            if version is not None:
                return Installed(
                    engine=one.engine, version=version, prefix=str(prefix), site_packages=str(site), packages=packages
                )
    return None


def distributions(site: Path) -> dict[str, str]:
    """Normalised name -> version of every distribution in a site-packages directory, from directory names alone."""
    found: dict[str, str] = {}
    try:
        with os.scandir(site) as entries:
            names = sorted(e.name for e in entries)
    except OSError:
        return found
    for name in names:
        match = _DIST.match(name)
        if match:
            found.setdefault(re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"])
    return found


def _tables(command: Command | None) -> Sequence[EntryPoints]:
    """Of the engine the command starts; without a command of all of them."""
    return [t for t in entry_points() if command is None or t.engine == command.engine]


def _sites(prefix: Path) -> Iterator[Path]:
    for pattern in SITES:
        try:
            yield from sorted(prefix.glob(pattern), reverse=True)
        except (OSError, ValueError):
            continue
    try:
        config = (prefix / "pyvenv.cfg").read_text("utf-8", "replace")
    except OSError:
        return
    settings = dict(re.findall(r"(?m)^\s*([\w-]+)\s*=\s*(.*?)\s*$", config))
    if settings.get("include-system-site-packages", "").lower() == "true" and settings.get("home"):
        for pattern in SITES:
            yield from sorted(Path(settings["home"]).parent.glob(pattern), reverse=True)


def _prefixes(command: Command | None, table: EntryPoints, around: Mapping[str, str]) -> Iterator[str]:
    """Where to look, most specific first. An environment the command names is the only one."""
    if command is not None and (not command.files_here or command.required_release):
        return
    if command is not None and command.prefix:
        yield _home(command.prefix, around)
        return
    if command is not None and command.conda_env:
        yield from _conda(command.conda_env, around)
        return
    if command is not None and "uv" in command.wrappers:
        yield from (str(d / ".venv") for d in (Path.cwd(), *Path.cwd().parents) if (d / ".venv").is_dir())
    path = (command.env.get("PATH") if command is not None else None) or around.get("PATH") or os.defpath
    if "$PATH" in path or "${PATH}" in path:
        path = path.replace("${PATH}", around.get("PATH", "")).replace("$PATH", around.get("PATH", ""))
    first = command.executable if command is not None and command.executable else None
    for name in dict.fromkeys([first or next(iter(table.programs)), "python3", "python"]):
        if "/" in name:
            continue
        import shutil

        program = shutil.which(name, path=path)
        if program:
            yield from _of_program(Path(program))
        if first:
            break
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if around.get(variable):
            yield around[variable]


def _of_program(program: Path) -> Iterator[str]:
    """A script's interpreter decides, then the directory it lies in, then where a link leads."""
    try:
        with program.open("rb") as f:
            head = f.read(2048)
    except OSError:
        head = b""
    if head.startswith(b"#!"):
        first = head.split(b"\n", 1)[0][2:].decode("utf-8", "replace").strip()
        # a long path is written as `#!/bin/sh` followed by `'''exec' /path/bin/python "$0"`
        follow = re.search(rb"exec'?\s+\"?(/[^\s\"]+/python[\d.]*)", head)
        words = [follow[1].decode("utf-8", "replace")] if follow else first.split()[:1]
        for interpreter in words:
            if Path(interpreter).name.startswith("python"):
                yield str(Path(interpreter).parent.parent)
    yield str(program.parent.parent)
    try:
        yield str(program.resolve().parent.parent)
    except OSError:
        return


def _conda(name: str, around: Mapping[str, str]) -> Iterator[str]:
    roots: list[Path] = []
    for variable in ("MAMBA_ROOT_PREFIX", "CONDA_ROOT"):
        if around.get(variable):
            roots.append(Path(around[variable]))
    if around.get("CONDA_EXE"):
        roots.append(Path(around["CONDA_EXE"]).parent.parent)
    if around.get("CONDA_PREFIX"):
        prefix = Path(around["CONDA_PREFIX"])
        roots += [prefix, prefix.parent.parent]
    home = Path(around.get("HOME", "/"))
    roots += [home / r for r in CONDA_ROOTS] + [Path("/opt") / r for r in ("conda", *CONDA_ROOTS[:4])]
    for root in roots:
        if (root / "envs" / name).is_dir():
            yield str(root / "envs" / name)
            return
        if name == "base" and (root / "conda-meta").is_dir():
            yield str(root)
            return


def _home(path: str, around: Mapping[str, str]) -> str:
    if path == "~" or path.startswith("~/"):
        return around.get("HOME", "~") + path[1:]
    return path
