"""Where a release's own source files come from: a wheel, a source tree, an installed engine, the package index.

Whatever the origin, the result is a directory holding `vllm/` and the facts that the wheel itself states. Nothing is
imported or executed here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from attnfit.errors import InputError, UnknownAnswer
from attnfit.witness.cache import DISTRIBUTION, Say, Source, kept, members_of, metadata_version, store, to_stderr
from attnfit.witness.env import OPTIONAL, default_env, flashinfer_facts


def find(spec: str, *, offline: bool = False, say: Say = to_stderr) -> Source:
    """`vllm==X`, a wheel, a source tree, or "installed". Raises InputError or UnknownAnswer."""
    path = Path(spec)
    if spec in ("installed", "--installed"):
        return installed()
    if path.is_dir():
        return tree(path)
    if path.is_file():
        return wheel(path)
    match = re.fullmatch(rf"{DISTRIBUTION}==([\w.+!-]+)", spec)
    if match:
        from attnfit.witness.fetch import fetched

        return fetched(match[1], offline=offline, say=say)
    raise InputError(f"{spec!r} is neither a wheel, nor a source tree, nor {DISTRIBUTION}==VERSION; give one of these")


def wheel(path: Path) -> Source:
    """A wheel file; its source files are unpacked into the cache once."""
    import hashlib
    import zipfile

    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        name = f"sha256-{digest.hexdigest()[:16]}"
        found = kept(name)
        if found is not None:
            return found
        with zipfile.ZipFile(path) as archive:
            members = members_of(archive, path.name)
            contents = ((member.filename, archive.read(member)) for member in members)
            return store(name, archive.namelist(), path.name, digest.hexdigest(), contents)
    except (OSError, zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a wheel ({error}); download it again, or give a tree") from error


def tree(path: Path) -> Source:
    """A checkout or an unpacked wheel. Of a checkout, the compiled modules its setup.py builds count as built."""
    root = path.resolve()
    if not (root / "vllm" / "platforms").is_dir():
        raise InputError(f"{path} holds no vllm/platforms; give the directory that holds `vllm/`")
    unpacked = next(iter(root.glob(f"{DISTRIBUTION}-*.dist-info")), None)
    names = _files(root)
    recorded = _recorded(unpacked / "RECORD") if unpacked is not None else []
    metadata = _text(unpacked / "METADATA") if unpacked is not None else _requirements(root)
    whole = bool(recorded) or any(name.endswith(".so") for name in names)
    if not whole:
        names += [f"{module.replace('.', '/')}.abi3.so" for module in _extensions(root)]
    version = metadata_version(metadata) if unpacked is not None else _tree_version(root)
    env = default_env(version, metadata, [*names, *recorded], whole=whole)
    return Source(root=str(root), version=version, env=env, origin=str(path))


def _recorded(record: Path) -> list[str]:
    """Every file of a wheel, as its RECORD lists them."""
    return [line.split(",")[0] for line in _text(record).splitlines()]


def _requirements(root: Path) -> str:
    """requirements/*.txt of a checkout, in the form of METADATA."""
    texts = [_text(root / "requirements" / name) for name in ("common.txt", "cuda.txt")]
    lines = [line.split("#")[0].strip() for text in texts for line in text.splitlines() if line[:1].isalnum()]
    return "\n".join(f"Requires-Dist: {line}" for line in lines) + "\n\n"


def _extensions(root: Path) -> list[str]:
    """Names of the compiled modules that setup.py declares."""
    return re.findall(r"CMakeExtension\(\s*(?:name=)?[\"']([\w.]+)[\"']", _text(root / "setup.py"))


def _tree_version(root: Path) -> str:
    text = _text(root / "vllm" / "_version.py")
    match = re.search(r"^__version__ *=(?: *version *=)? *['\"]([^'\"]+)", text, re.MULTILINE)
    return match[1] if match else "unknown"


def installed(prefix: str | Path | None = None) -> Source:
    """The engine installed in an environment (its prefix; default: this one), with the packages installed beside it."""
    paths = _site_packages(Path(prefix)) if prefix is not None else [Path(p) for p in sys.path if p]
    where = str(prefix) if prefix is not None else sys.prefix
    found = _distributions(paths)
    if DISTRIBUTION not in found:
        raise UnknownAnswer(f"no {DISTRIBUTION} is installed in {where}; give a wheel, a source tree or a version")
    home = found[DISTRIBUTION]
    editable = _editable(home)
    root = editable or home.parent
    if not (root / "vllm" / "platforms").is_dir():
        raise UnknownAnswer(f"the {DISTRIBUTION} in {where} has no source files there; give a wheel or a source tree")
    names = _files(root) if editable is not None else _recorded(home / "RECORD")
    metadata = _text(home / "METADATA")
    version = metadata_version(metadata)
    env = default_env(version, metadata, names, whole=bool(names))
    for fact, package in OPTIONAL.items():
        if fact != "deep_gemm" or not env[fact]:  # vendored in newer wheels
            env[fact] = package in found
    if "flashinfer-python" in found:
        flashinfer = found["flashinfer-python"]
        env.update(flashinfer_facts(flashinfer.name.removesuffix(".dist-info").partition("-")[2]))
        env["b12x"] = "b12x" in found or (flashinfer.parent / "b12x" / "__init__.py").is_file()
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
        origin = json.loads(_text(home / "direct_url.json") or "{}")
        if origin["dir_info"]["editable"] and origin["url"].startswith("file://"):
            from urllib.parse import unquote

            return Path(unquote(origin["url"].removeprefix("file://")))
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _files(root: Path) -> list[str]:
    return [file.relative_to(root).as_posix() for file in root.glob("vllm/**/*") if file.suffix in (".py", ".so")]


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""
