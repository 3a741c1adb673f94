"""What of a machine is ready to serve, what wants attention, and what is not known. Pure: a `Machine` in, areas out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from attnfit import engines
from attnfit.core import Capability
from attnfit.engines.entry import entry_of
from attnfit.errors import AttnfitError
from attnfit.gpus import driver, ptxas, toolkit
from attnfit.gpus.mixed import mixed
from attnfit.inputs.machine import Engine, Machine

READY, ATTENTION, UNKNOWN = "ready", "attention", "unknown"
GIB = 1 << 30
LEAST_ROOM, LEAST_SHM = 20 * GIB, GIB  # below these a model, or the ranks' exchange, often finds no place

COMPATIBLE = "docs.nvidia.com/deploy/cuda-compatibility"


class Area(msgspec.Struct, frozen=True):
    """One line: the state of one area, what was seen, and what to run or to do."""

    name: str
    state: str  # ready | attention | unknown
    seen: str
    run: str = ""


def examine(machine: Machine) -> tuple[Area, ...]:
    """Every area, in the order in which a launch meets them."""
    return tuple(area(machine) for area in AREAS)


def exit_code(areas: Sequence[Area]) -> int:
    """1 where something is to be mended; else 0."""
    return 1 if any(area.state == ATTENTION for area in areas) else 0


def _python(m: Machine) -> Area:
    if m.engine is None:
        return Area("Python", READY, f"attnfit runs on {m.python}")
    if not m.engine.python:
        return Area("Python", UNKNOWN, f"which one is in {m.engine.prefix} does not stand in its directories")
    seen = f"{m.engine.python} in {m.engine.prefix}"
    if not any(_allows(m.engine.requires_python, f"{m.engine.python}.{patch}") for patch in (0, 99)):
        wants = f"{m.engine.name} {m.engine.version} asks for {m.engine.requires_python}"
        return Area("Python", ATTENTION, f"{seen}; {wants}", "make an environment with a Python that it takes")
    return Area("Python", READY, seen)


def _driver(m: Machine) -> Area:
    name = "NVIDIA driver"
    if not m.driver:
        return Area(name, UNKNOWN, m.gpus_why or "not found", "run attnfit doctor where the engine is to run")
    seen = f"{m.driver}, serves CUDA {m.driver_cuda}" if m.driver_cuda else m.driver
    cuda = m.engine.torch_cuda if m.engine else ""
    major = int(cuda.partition(".")[0] or 0)
    if major not in driver.OLDEST:
        return Area(name, READY if m.driver_cuda or m.engine is None else UNKNOWN, seen)
    if needed := driver.needs(m.driver, major):
        seen += f"; torch was built for CUDA {cuda}, which needs {needed} or newer"
        older = "a newer driver, or a build for an older CUDA; data centre GPUs may take the cuda-compat package"
        return Area(name, ATTENTION, seen, f"{older} ({COMPATIBLE})")
    return Area(name, READY, f"{seen}; torch's CUDA {cuda} needs {driver.OLDEST[major]} or newer")


def _gpus(m: Machine) -> Area:
    if not m.gpus:
        return Area("GPUs", UNKNOWN, m.gpus_why or "none seen", "attnfit check --gpu NAME answers without a GPU")
    counts = {each: m.gpus.count(each) for each in dict.fromkeys(m.gpus)}
    seen = ", ".join(f"{n} x {gpu} ({capability})" for (gpu, capability), n in counts.items())
    visible = m.variables.get("CUDA_VISIBLE_DEVICES")
    if m.gpus_hidden:
        mig = "make an instance: nvidia-smi mig -cgi PROFILE -C"
        todo = mig if visible is None else "unset CUDA_VISIBLE_DEVICES, or give what nvidia-smi -L lists"
        return Area("GPUs", ATTENTION, f"{seen}; {m.gpus_hidden}", todo)
    if mixed([capability for _, capability in m.gpus], m.variables):
        todo = "show one kind: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=N,... (nvidia-smi has the numbers)"
        return Area("GPUs", ATTENTION, f"{seen}: they differ, and a server judges all by the first", todo)
    return Area("GPUs", READY, seen)


def _toolkit(m: Machine) -> Area:
    name, packages = "CUDA toolkit", m.engine.packages if m.engine else {}
    if m.nvcc and m.nvcc_cuda:
        seen = f"nvcc of CUDA {m.nvcc_cuda} ({m.nvcc})"
        if late := toolkit.too_old(m.nvcc_cuda, _capabilities(m)):
            return Area(name, ATTENTION, f"{seen}; compute capability {late}", "install that CUDA toolkit or newer")
        if toolkit.left_out(m.nvcc_cuda, _capabilities(m)):
            seen += f", which compiles for no GPU older than {toolkit.OLDEST_OF_13}"
            return Area(name, ATTENTION, seen, "install a CUDA 12 toolkit, and let CUDA_HOME name it")
        lacks = [tool for tool, there in (("ninja", m.ninja), ("C++ compiler", m.compiler)) if not there]
        if lacks and "flashinfer-python" in packages and "flashinfer-jit-cache" not in packages:
            return Area(name, ATTENTION, f"{seen}, but no {' and no '.join(lacks)}", "apt install ninja-build g++")
        return Area(name, READY, seen)
    if m.nvcc:
        return Area(name, UNKNOWN, f"{m.nvcc} does not say its version", f"{m.nvcc} --version")
    if "flashinfer-jit-cache" in packages:
        return Area(name, READY, "no nvcc; FlashInfer's kernels are installed compiled (flashinfer-jit-cache)")
    if "flashinfer-python" in packages and m.gpus:
        todo = "install the CUDA toolkit and put nvcc on PATH, or pip install flashinfer-jit-cache of the same version"
        return Area(name, ATTENTION, "no nvcc: FlashInfer cannot compile a kernel when it needs one", todo)
    return Area(name, UNKNOWN, "no nvcc; only kernels that are compiled at start need it")


def _installed(m: Machine) -> Area:
    if m.engine is None:
        names = ", ".join(entry_of(name).distribution for name in engines.ENGINES)
        return Area("Engine", UNKNOWN, f"none found ({names})", "attnfit doctor --prefix DIR looks into an environment")
    seen = f"{m.engine.name} {m.engine.version} in {m.engine.prefix}"
    for other in (entry_of(name).distribution for name in engines.ENGINES if name != m.engine.name):
        if other in m.engine.packages:
            seen += f", beside {other} {m.engine.packages[other]}, which is not looked at"
    if not m.engine.metadata:
        return Area("Engine", ATTENTION, f"{seen}; its metadata cannot be read: it is not whole", _again(m.engine))
    try:
        release = engines.engine(m.engine.name).release(m.engine.version)
    except AttnfitError as error:
        return Area("Engine", ATTENTION, f"{seen}; {error}")
    if release.exact:
        return Area("Engine", READY, f"{seen}; its rules are known")
    seen += f"; no rule book of its own, {release.book} stands in"
    return Area("Engine", ATTENTION, seen, f"attnfit learn {m.engine.name}=={m.engine.version}")


def _torch(m: Machine) -> Area:
    name = "torch, Triton"
    if m.engine is None:
        return Area(name, UNKNOWN, "no engine found, so nothing to compare with")
    have = m.engine.packages
    seen = ", ".join(f"{each} {have[each]}" for each in ("torch", "triton") if each in have) or "neither is installed"
    if "torch" not in have or not m.engine.torch_file:
        lost = "torch is not installed" if "torch" not in have else f"torch {have['torch']} has lost its files"
        return Area(name, ATTENTION, f"{lost}, and {m.engine.name} does not start without it", _again(m.engine))
    if wrong := _not_for(m, m.engine):
        return Area(name, ATTENTION, f"{seen}; {wrong}", "a build of the engine, and its torch, for that CUDA")
    if not m.engine.metadata:
        return Area(name, UNKNOWN, f"{seen}; which {m.engine.name} asks for cannot be read")
    wanted = {each: version for each in ("torch", "triton") if (version := m.engine.pins.get(each))}
    if m.engine.torch_triton:
        wanted.setdefault("triton", m.engine.torch_triton)
    return _compared(name, m.engine, seen, wanted)


def _ptxas(m: Machine) -> Area:
    have = m.engine.packages.get("triton", "") if m.engine else ""
    brought = ptxas.BROUGHT.get(".".join(have.split(".")[:2]))
    if brought is None or not m.gpus:
        why = (
            f"not known of Triton {have}" if have and brought is None else "needs a GPU and an installed Triton to tell"
        )
        return Area("ptxas", UNKNOWN, why)
    seen = f"Triton {have} brings that of CUDA {brought.cuda}"
    lacks = [f"{c}" for c in sorted(_capabilities(m)) if not ptxas.knows(brought, c)]
    if not lacks:
        return Area("ptxas", READY, f"{seen}, which knows these GPUs")
    if brought.variable in m.gone:
        todo = "let it name the ptxas of a CUDA toolkit: /usr/local/cuda/bin/ptxas"
        return Area("ptxas", ATTENTION, f"{seen}; {brought.variable} names a file that is not there", todo)
    if m.variables.get(brought.variable):
        return Area("ptxas", READY, f"{seen}; {brought.variable} names another")
    seen += f", which does not know compute capability {', '.join(lacks)}"
    return Area("ptxas", ATTENTION, seen, f"export {brought.variable}=/usr/local/cuda/bin/ptxas")


def _flashinfer(m: Machine) -> Area:
    name = "FlashInfer"
    have = m.engine.packages if m.engine else {}
    kept = {each: have[each] for each in sorted(have) if each.startswith("flashinfer")}
    if m.engine is not None and not kept and (pinned := m.engine.pins.get("flashinfer-python")):
        seen = f"not installed, and {m.engine.name} {m.engine.version} asks for {pinned}"
        return Area(name, ATTENTION, seen, f"pip install flashinfer-python=={pinned}")
    if m.engine is None or not kept:
        missing = "not installed" if m.engine else "no engine found"
        return Area(name, UNKNOWN, f"{missing}; backends that need it are then left out")
    pinned = m.engine.pins.get("flashinfer-python", "")
    own = pinned or kept.get("flashinfer-python", "")
    differ = [each for each, version in kept.items() if _plain(version) != _plain(own)]
    seen = ", ".join(f"{each} {version}" for each, version in kept.items())
    if own and differ:
        todo = f"pip install {' '.join(f'{each}=={_plain(own)}' for each in differ)}"
        asks = f"; {m.engine.name} {m.engine.version} asks for flashinfer-python=={pinned}"
        off = pinned and "flashinfer-python" in differ
        return Area(name, ATTENTION, seen + (asks if off else ": they must be of one version"), todo)
    return _compared(name, m.engine, seen, {each: v for each, v in m.engine.pins.items() if each in kept})


def _deep_gemm(m: Machine) -> Area:
    if m.engine is None:
        return Area("DeepGEMM", UNKNOWN, "no engine found")
    own = next((f"{each} {m.engine.packages[each]}" for each in sorted(m.engine.packages) if "deep-gemm" in each), "")
    if own or m.engine.facts.get("deep_gemm"):
        return Area("DeepGEMM", READY, own or "inside the engine's package")
    return Area(
        "DeepGEMM", UNKNOWN, "not found; sparse attention's indexer and some FP8 kernels need it (9.0, 10.x, 12.x)"
    )


def _plugin(m: Machine) -> Area:
    name = "attnfit plug-in"
    if m.engine is None:
        return Area(name, UNKNOWN, "no engine found")
    beside = entry_of(m.engine.name).plugins_beside
    if not beside:
        return Area(name, READY, f"none for {m.engine.name}")
    if any(m.engine.facts.get(plugin.fact) for plugin in beside.values()):
        return Area(name, READY, "beside the engine")
    return Area(name, UNKNOWN, "not beside the engine; only launches that no backend of its own serves need it")


def _disk(m: Machine) -> Area:
    name = "Model cache"
    if m.cache_free is None:
        return Area(name, UNKNOWN, f"{m.cache}: free space cannot be read")
    seen = f"{m.cache_free / GIB:,.0f} GiB free for {m.cache}"
    if m.cache_free < LEAST_ROOM:
        return Area(
            name, ATTENTION, seen, "make room, or put HF_HOME on a larger disk; attnfit model says a model's size"
        )
    return Area(name, READY, seen)


def _token(m: Machine) -> Area:
    if m.token:
        return Area("Hub token", READY, f"there is one ({m.token})")
    return Area("Hub token", UNKNOWN, "none; gated models need it", "hf auth login, or set HF_TOKEN")


def _shm(m: Machine) -> Area:
    name = "Shared memory"
    if m.shm is None:
        return Area(name, UNKNOWN, "/dev/shm is not there")
    seen = f"/dev/shm has {m.shm / GIB:,.1f} GiB"
    if m.shm < LEAST_SHM and len(m.gpus) > 1:
        return Area(
            name, ATTENTION, f"{seen}, little for {len(m.gpus)} GPUs", "in a container: --ipc=host, or --shm-size=16g"
        )
    return Area(name, READY, seen)


AREAS: Sequence[Callable[[Machine], Area]] = (
    _python, _driver, _gpus, _installed, _torch, _ptxas, _toolkit, _flashinfer, _deep_gemm, _plugin, _shm, _disk,
    _token,
)  # fmt: skip


def _again(engine: Engine) -> str:
    """How an installation is made whole."""
    return f"pip install --force-reinstall {entry_of(engine.name).distribution}=={engine.version}"


def _not_for(m: Machine, engine: Engine) -> str:
    """Why the torch that is installed cannot compute on the GPUs that are here; "" where nothing says so."""
    if not m.gpus:
        return ""
    if engine.packages["torch"].partition("+")[2] == "cpu":
        return "it was built without CUDA"
    if late := toolkit.too_old(engine.torch_cuda, _capabilities(m)):
        return f"it was built for CUDA {engine.torch_cuda}, and {late}"
    if toolkit.left_out(engine.torch_cuda, _capabilities(m)):
        return f"it was built for CUDA {engine.torch_cuda}, which compiles for no GPU older than {toolkit.OLDEST_OF_13}"
    return ""


def _compared(name: str, engine: Engine, seen: str, wanted: dict[str, str]) -> Area:
    """What is installed against what was asked for in exactly one version."""
    off = list(_off(engine, wanted))
    if off:
        todo = f"pip install {' '.join(off)}"
        return Area(name, ATTENTION, f"{seen}; {engine.name} {engine.version} asks for {', '.join(off)}", todo)
    return Area(name, READY, f"{seen}, as {engine.name} asks for" if wanted else seen)


def _off(engine: Engine, wanted: dict[str, str]) -> Iterator[str]:
    for name, version in wanted.items():
        have = engine.packages.get(name)
        if have is None or _plain(have) != _plain(version):
            yield f"{name}=={version}"


def _plain(version: str) -> str:
    return version.partition("+")[0]  # without the local part: 2.9.1+cu128 is 2.9.1


def _capabilities(m: Machine) -> set[Capability]:
    return {capability for _, capability in m.gpus}


def _allows(specifier: str, version: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(version)
    except (InvalidSpecifier, InvalidVersion):
        return True
