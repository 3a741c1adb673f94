"""What a machine has that decides whether an engine starts: read, never judged (doctor.py does that), nothing started
but `nvcc --version`. No engine and no torch is imported: versions come from names of files and from metadata.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from attnfit.core import Capability
from attnfit.engines.entry import entry_of
from attnfit.errors import UsageError
from attnfit.inputs import nvml
from attnfit.inputs.environment import Installed, env_facts, installed, read_prefix

_DRIVER = Path("/proc/driver/nvidia/version")
_SHM = Path("/dev/shm")
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_CHOOSE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_FILES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
_RELEASE = re.compile(r"release (\d+\.\d+)")
_TORCH_CUDA = re.compile(r"^cuda(?:: [^=]+)? *= *['\"]([\d.]+)['\"]", re.MULTILINE)
_WANTED = re.compile(r"^Requires-Dist: *(.+)$", re.MULTILINE)
_NEEDS_PYTHON = re.compile(r"^Requires-Python: *(.+)$", re.MULTILINE)


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as it is installed in one environment."""

    name: str
    version: str
    prefix: str
    python: str = ""  # "3.12", from the name of its directory
    requires_python: str = ""
    metadata: bool = True  # whether what it says of itself could be read
    packages: dict[str, str] = {}  # every distribution there: normalised name -> version
    pins: dict[str, str] = {}  # those that its metadata asks for in exactly one version
    torch_cuda: str = ""  # the CUDA that its torch was built for, "12.8"; "": none, or not read
    torch_triton: str = ""  # the Triton that its torch asks for
    torch_file: bool = True  # whether torch's own files are there
    facts: dict[str, bool] = {}  # environment facts, as `check --env` names them


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """None, "" and empty: not there, or not known."""

    python: str
    driver: str = ""  # "580.65.06"
    driver_cuda: str = ""  # the newest CUDA that the driver serves, "13.0"
    gpus: tuple[tuple[str, Capability], ...] = ()  # every GPU: name and compute capability
    gpus_why: str = ""  # why there are none
    gpus_hidden: str = ""  # why a process sees none of them
    nvcc: str = ""  # its path
    nvcc_cuda: str = ""  # "12.9"
    ninja: bool = False
    compiler: bool = False  # a host compiler, c++ or g++
    engine: Engine | None = None
    variables: dict[str, str] = {}  # of those that decide, the ones that are set; no secret is among them
    cache: str = ""  # where models are kept
    cache_free: int | None = None  # bytes
    token: str = ""  # where a token for the hub was found, never the token
    shm: int | None = None  # bytes of /dev/shm
    gone: tuple[str, ...] = ()  # of the variables those that name a file that is not there


def read(environ: Mapping[str, str] | None = None, prefix: str | None = None) -> Machine:
    """This machine, and the engine in `prefix` or, without one, the one a command would find.

    Raises UsageError for a prefix that holds no engine.
    """
    around = dict(os.environ if environ is None else environ)
    driver, cuda, gpus, why, hidden = _driver(around)
    nvcc = _nvcc(around)
    cache = _cache(around)
    return Machine(
        python="{}.{}.{}".format(*sys.version_info[:3]),
        driver=driver,
        driver_cuda=cuda,
        gpus=gpus,
        gpus_why=why,
        gpus_hidden=hidden,
        nvcc=nvcc,
        nvcc_cuda=_nvcc_cuda(nvcc),
        ninja=bool(shutil.which("ninja", path=around.get("PATH"))),
        compiler=any(shutil.which(name, path=around.get("PATH")) for name in ("c++", "g++", "clang++")),
        engine=_engine(around, prefix),
        variables={name: around[name] for name in (*_CHOOSE, *_FILES) if name in around},
        gone=tuple(name for name in _FILES if around.get(name) and not Path(around[name]).is_file()),
        cache=str(cache),
        cache_free=_free(cache),
        token=_token(around),
        shm=_size(_SHM),
    )


def _driver(around: Mapping[str, str]) -> tuple[str, str, tuple[tuple[str, Capability], ...], str, str]:
    """(driver, newest CUDA, GPUs, why there are none, why none of them is seen)."""
    try:
        library = nvml.library()
        devices = nvml.read(library)
        version, cuda = nvml.versions(library)
    except UsageError as error:
        match = re.search(r"Kernel Module\D*([\d.]+)", _text(_DRIVER))
        return (match[1] if match else "", "", (), _bare(error), "")
    hidden = ""
    try:
        nvml.decide(devices, around)
    except UsageError as error:
        hidden = _bare(error) if devices else ""
    return version, cuda, tuple((device.name, device.capability) for device in devices), "", hidden


def _bare(error: UsageError) -> str:
    """What is wrong, without the option of `check` that it was said of."""
    text = str(error).removeprefix("--gpu auto").lstrip(": ").partition(";")[0]
    return text.removesuffix(nvml.INSTEAD).removesuffix(", or ")


def _nvcc(around: Mapping[str, str]) -> str:
    """As FlashInfer and torch look for it: CUDA_HOME first, then PATH, then the usual place."""
    homes = [around[name] for name in ("CUDA_HOME", "CUDA_PATH") if around.get(name)]
    for home in homes:
        if (Path(home) / "bin/nvcc").is_file():
            return f"{home}/bin/nvcc"
    found = shutil.which("nvcc", path=around.get("PATH"))
    usual = Path("/usr/local/cuda/bin/nvcc")
    return found or (str(usual) if usual.is_file() else "")


def _nvcc_cuda(nvcc: str) -> str:
    if not nvcc:
        return ""
    try:
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    match = _RELEASE.search(said)
    return match[1] if match else ""


def _engine(around: Mapping[str, str], prefix: str | None) -> Engine | None:
    found = read_prefix(prefix) if prefix is not None else installed(None, around)
    if found is None:
        if prefix is not None:
            raise UsageError(f"no engine is installed in {prefix}; name the directory above its bin/")
        return None
    site = Path(found.site_packages)
    own = _metadata(site, found, entry_of(found.engine).distribution)
    torch = _metadata(site, found, "torch")
    wanted = _NEEDS_PYTHON.search(own)
    cuda = _TORCH_CUDA.search(_text(site / "torch/version.py"))
    python = re.search(r"python(\d\.\d+)", found.site_packages)
    return Engine(
        name=found.engine,
        version=found.version,
        prefix=found.prefix,
        python=python[1] if python else "",
        requires_python=wanted[1].strip() if wanted else "",
        metadata=bool(own),
        packages=found.packages,
        pins=_pins(own, python[1] if python else ""),
        torch_cuda=cuda[1] if cuda else "",
        torch_triton=_pins(torch, python[1] if python else "").get("triton", ""),
        torch_file=(site / "torch/version.py").is_file(),
        facts=env_facts(found),
    )


def _metadata(site: Path, found: Installed, name: str) -> str:
    stem = name.replace("-", "_")
    return _text(site / f"{stem}-{found.packages.get(name, '')}.dist-info/METADATA")


def _pins(metadata: str, python: str) -> dict[str, str]:
    """Requirements for this system, without an extra, that name one version. python: of the environment."""
    from packaging.requirements import InvalidRequirement, Requirement

    around = {"extra": "", **({"python_version": python, "python_full_version": f"{python}.0"} if python else {})}
    pins = {}
    for text in _WANTED.findall(metadata):
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        exact = [one.version for one in wanted.specifier if one.operator == "==" and not one.version.endswith("*")]
        if len(exact) == len(wanted.specifier) == 1 and (wanted.marker is None or wanted.marker.evaluate(around)):
            pins[re.sub(r"[-_.]+", "-", wanted.name).lower()] = exact[0]
    return pins


def _cache(around: Mapping[str, str]) -> Path:
    """The hub's cache, as huggingface_hub documents its variables."""
    if around.get("HF_HUB_CACHE"):
        return Path(around["HF_HUB_CACHE"])
    return _hub_home(around) / "hub"


def _hub_home(around: Mapping[str, str]) -> Path:
    if around.get("HF_HOME"):
        return Path(around["HF_HOME"])
    base = around.get("XDG_CACHE_HOME") or str(Path(around.get("HOME", "/")) / ".cache")
    return Path(base) / "huggingface"


def _token(around: Mapping[str, str]) -> str:
    for name in _TOKENS:
        if around.get(name):
            return name
    file = Path(around.get("HF_TOKEN_PATH") or _hub_home(around) / "token")
    try:
        return str(file) if file.stat().st_size else ""
    except OSError:
        return ""


def _free(folder: Path) -> int | None:
    """Bytes free on the disk where the folder is, or would be made."""
    for place in (folder, *folder.parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return None


def _size(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""
