"""Where a release's own source files come from: a wheel, a source tree, an installed engine, the package index.

Whatever the origin, the result is a directory holding `vllm/` and the facts that the wheel itself states. Nothing is
imported or executed here.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
import urllib.parse
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from attnfit.errors import InputError, UnknownAnswer, did_you_mean
from attnfit.witness.cache import DISTRIBUTION, Source, cache_dir, kept, members_of, metadata_version, store
from attnfit.witness.facts import OPTIONAL, default_env, flashinfer_facts
from attnfit.witness.index import Index, IndexFile, RangedFile, configured

GAP, SPAN = 200_000, 16 << 20  # members closer than this are fetched in one request, up to this length
Say = Callable[[str], None]


def to_stderr(text: str) -> None:
    """Announce what is about to be fetched."""
    print(text, file=sys.stderr)


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
        return fetched(match[1], offline=offline, say=say)
    raise InputError(f"{spec!r} is neither a wheel, nor a source tree, nor {DISTRIBUTION}==VERSION; give one of these")


def wheel(path: Path) -> Source:
    """A wheel file; its source files are unpacked into the cache once."""
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
    patterns = ("lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3*/dist-packages",
                "Lib/site-packages")
    return [path for pattern in patterns for path in sorted(prefix.glob(pattern))] or [prefix]


def _editable(home: Path) -> Path | None:
    """Where an editable installation has its sources."""
    try:
        origin = json.loads(_text(home / "direct_url.json") or "{}")
        if origin["dir_info"]["editable"] and origin["url"].startswith("file://"):
            return Path(urllib.parse.unquote(urllib.parse.urlsplit(origin["url"]).path))
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


def fetched(version: str, *, offline: bool = False, say: Say = to_stderr, indexes: list[Index] | None = None) -> Source:
    """The source files of a published release: from the cache, else from the user's package index."""
    name = f"{DISTRIBUTION}-{version}"
    found = kept(name)
    if found is not None:
        return found
    if offline:
        raise UnknownAnswer(f"{DISTRIBUTION} {version} is not in the cache; drop --offline, or give a wheel or a tree")
    problems = []
    for index in indexes if indexes is not None else configured():
        try:
            listed = index.files(DISTRIBUTION)
        except UnknownAnswer as error:
            problems.append(str(error))
            continue
        file = _choose(listed, version)
        if file is not None:
            return _from_index(index, file, name, say)
        versions = sorted({_wheel_version(f.name) for f in listed if f.name.endswith(".whl")})
        wanted = f"{DISTRIBUTION} {version}"
        problems.append(f"{index.url} has no Linux x86_64 wheel of {wanted}{did_you_mean(version, versions)}")
    raise UnknownAnswer("; ".join(problems) or "no http(s) package index is configured; give a wheel or a source tree")


def _wheel_version(name: str) -> str:
    return name.split("-")[1] if name.count("-") >= 4 else ""


def _choose(listed: list[IndexFile], version: str) -> IndexFile | None:
    wheels = [f for f in listed if f.name.endswith(".whl") and _wheel_version(f.name) == version]
    built = [f for f in wheels if "x86_64" in f.name and "linux" in f.name]
    wheels = built or [f for f in wheels if f.name.endswith("-any.whl")]
    return min(wheels, key=lambda f: (f.yanked, f.name), default=None)


def _from_index(index: Index, file: IndexFile, name: str, say: Say) -> Source:
    remote = index.ranged(file)
    if remote is not None:
        say(f"fetching the source files of {file.name} from {index.url}")
        try:
            return _ranged(remote, file, name)
        except (zipfile.BadZipFile, EOFError, ValueError):
            say("its parts do not fit together; fetching it whole")
    with tempfile.TemporaryFile() as whole:
        say(f"fetching {file.name} from {index.url}, whole: the server does not serve parts")
        index.download(file, whole, lambda done, total: None)
        try:
            with zipfile.ZipFile(whole) as archive:
                members = members_of(archive, file.name)
                contents = ((member.filename, archive.read(member)) for member in members)
                return store(name, archive.namelist(), file.name, file.sha256, contents)
        except (zipfile.BadZipFile, EOFError, ValueError) as error:
            raise UnknownAnswer(f"{file.name} from {index.url} is damaged ({error}); tell whoever runs it") from error


def _ranged(remote: RangedFile, file: IndexFile, name: str) -> Source:
    """Only the source files: neighbours in one request each; zipfile checks every member's CRC."""
    with zipfile.ZipFile(remote) as archive:
        members = sorted(members_of(archive, file.name), key=lambda m: m.header_offset)
        groups: list[list[zipfile.ZipInfo]] = []
        for member in members:
            last = groups[-1] if groups else None
            if last and member.header_offset - _end(last[-1]) < GAP and _end(member) - last[0].header_offset < SPAN:
                last.append(member)
            else:
                groups.append([member])

        def contents() -> Iterable[tuple[str, bytes]]:
            for group in groups:
                remote.keep(group[0].header_offset, _end(group[-1]))
                for member in group:
                    yield member.filename, archive.read(member)

        return store(name, archive.namelist(), file.name, None, contents())


def _end(member: zipfile.ZipInfo) -> int:
    return member.header_offset + 30 + len(member.filename.encode()) + 512 + member.compress_size


__all__ = ["Source", "cache_dir", "fetched", "find", "installed", "tree", "wheel"]
