"""Where a release's own source files come from: a wheel, an sdist, a source tree, an installation, the package index.

Whatever the origin, the result is a directory holding the engine's package and the facts that the release itself
states. Nothing is imported or executed here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from attnfit.errors import InputError, UnknownAnswer
from attnfit.witness.cache import Say, Source, kept, members_of, metadata_version, store, to_stderr
from attnfit.witness.distribution import Distribution, read_text

INSTALLED = ("installed", "--installed")


def find(distribution: Distribution, spec: str, *, offline: bool = False, say: Say = to_stderr) -> Source:
    """`NAME==VERSION`, a wheel, an sdist, a source tree, or "installed". Raises InputError or UnknownAnswer."""
    path = Path(spec)
    if spec in INSTALLED:
        return installed(distribution)
    if path.is_dir():
        return tree(distribution, path)
    if path.is_file():
        return archive(distribution, path)
    match = re.fullmatch(rf"{re.escape(distribution.name)}==([\w.+!-]+)", spec)
    if match:
        from attnfit.witness.fetch import fetched

        return fetched(distribution, match[1], offline=offline, say=say)
    raise InputError(
        f"{spec!r} is neither a wheel or sdist, nor a source tree, nor {distribution.name}==VERSION; give one of these"
    )


def which(distributions: Iterable[Distribution], spec: str) -> Distribution | None:
    """The distribution that `spec` (as `find` takes it) is of, or None. Looks at names only; opens no archive."""
    path = Path(spec)
    for distribution in distributions:
        if spec in INSTALLED:
            there = distribution.name in _distributions(Path(p) for p in sys.path if p)
        elif path.is_dir():
            there = _package_root(distribution, path) is not None
        elif path.is_file():
            there = re.sub(r"[-_.]+", "_", path.name).startswith(f"{distribution.stem}_")
        else:
            there = spec.partition("==")[0] == distribution.name
        if there:
            return distribution
    return None


def archive(distribution: Distribution, path: Path) -> Source:
    """A wheel or an sdist; its source files are unpacked into the cache once."""
    import hashlib
    import zipfile

    from attnfit.witness.sdist import DAMAGED, is_sdist

    digest = hashlib.sha256()
    kind = "an sdist" if is_sdist(path.name) else "a wheel"
    try:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        name = f"sha256-{digest.hexdigest()[:16]}"
        return kept(distribution, name) or _unpacked(distribution, path, name, digest.hexdigest())
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError, *DAMAGED) as error:
        raise InputError(f"{path} cannot be read as {kind} ({error}); download it again, or give a tree") from error


def _unpacked(distribution: Distribution, path: Path, name: str, sha256: str) -> Source:
    import tarfile
    import zipfile

    from attnfit.witness.sdist import contents, is_sdist

    if is_sdist(path.name):
        with tarfile.open(path, "r:gz") as packed:
            members = contents(distribution, packed, path.name)
            return store(distribution, name, (), path.name, sha256, members, whole=False)
    with zipfile.ZipFile(path) as wheel:
        pairs = ((m.filename, wheel.read(m)) for m in members_of(distribution, wheel, path.name))
        return store(distribution, name, wheel.namelist(), path.name, sha256, pairs)


def _package_root(distribution: Distribution, path: Path) -> Path | None:
    """The directory in a source tree that holds the package."""
    places = (path / folder for folder in distribution.folders)
    return next((place for place in places if (place / distribution.holds).is_dir()), None)


def tree(distribution: Distribution, path: Path) -> Source:
    """A checkout or an unpacked release. Of a checkout, the compiled modules that its build makes count as built."""
    root = _package_root(distribution, path.resolve())
    if root is None:
        package = distribution.package
        raise InputError(f"{path} holds no {distribution.holds}; give the directory that holds `{package}/`")
    unpacked = next(iter(root.glob(f"{distribution.stem}-*.dist-info")), None)
    names = _files(distribution, root)
    recorded = _recorded(unpacked / "RECORD") if unpacked is not None else []
    whole = bool(recorded) or any(name.endswith(".so") for name in names)
    checkout = distribution.read_checkout(root)
    metadata = read_text(unpacked / "METADATA") if unpacked is not None else checkout.metadata
    if not whole:
        names += checkout.built
    version = metadata_version(metadata) if unpacked is not None else checkout.version
    env = distribution.env(version, metadata, [*names, *recorded], whole)
    return Source(root=str(root), version=version, env=env, origin=str(path))


def _recorded(record: Path) -> list[str]:
    """Every file of a wheel, as its RECORD lists them."""
    return [line.split(",")[0] for line in read_text(record).splitlines()]


def installed(distribution: Distribution, prefix: str | Path | None = None) -> Source:
    """The engine installed in an environment (its prefix; default: this one), with the packages installed beside it."""
    paths = _site_packages(Path(prefix)) if prefix is not None else [Path(p) for p in sys.path if p]
    where = str(prefix) if prefix is not None else sys.prefix
    found = _distributions(paths)
    if distribution.name not in found:
        raise UnknownAnswer(f"no {distribution.name} is installed in {where}; give a wheel, a source tree or a version")
    home = found[distribution.name]
    editable = _editable(home)
    root = _package_root(distribution, editable) or editable if editable is not None else home.parent
    if not (root / distribution.holds).is_dir():
        name = distribution.name
        raise UnknownAnswer(f"the {name} in {where} has no source files there; give a wheel or a source tree")
    names = _files(distribution, root) if editable is not None else _recorded(home / "RECORD")
    metadata = read_text(home / "METADATA")
    version = metadata_version(metadata)
    env = distribution.beside(distribution.env(version, metadata, names, bool(names)), found)
    return Source(root=str(root), version=version, env=env, origin=f"installed in {where}")


def _distributions(paths: Iterable[Path]) -> dict[str, Path]:
    """Normalised name -> its .dist-info, the first on the path winning, without reading any of them."""
    found: dict[str, Path] = {}
    for path in paths:
        for entry in sorted(path.glob("*.dist-info")) if path.is_dir() else ():
            name = re.sub(r"[-_.]+", "-", entry.name.partition("-")[0]).lower()
            found.setdefault(name, entry)
    return found


def _site_packages(prefix: Path) -> list[Path]:
    patterns = (
        "lib/python3*/site-packages",
        "lib64/python3*/site-packages",
        "lib/python3*/dist-packages",
        "Lib/site-packages",
    )
    return [path for pattern in patterns for path in sorted(prefix.glob(pattern))] or [prefix]


def _editable(home: Path) -> Path | None:
    """Where an editable installation has its sources."""
    try:
        origin = json.loads(read_text(home / "direct_url.json") or "{}")
        if origin["dir_info"]["editable"] and origin["url"].startswith("file://"):
            from urllib.parse import unquote

            return Path(unquote(origin["url"].removeprefix("file://")))
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _files(distribution: Distribution, root: Path) -> list[str]:
    files = root.glob(f"{distribution.package}/**/*")
    return [file.relative_to(root).as_posix() for file in files if file.suffix in (".py", ".so")]
