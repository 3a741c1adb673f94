"""The question's circumstances as engine code may read them: capability, environment facts, variables.

Every environment fact has a name users see (`flashinfer`, `fa3`, `artifactory`...). One that a predicate reads and
nobody stated leaks: the answer is then unknown, naming the fact. Standard library only.
"""

from __future__ import annotations

import importlib.machinery
import re
from collections.abc import Iterable, Mapping
from typing import Any

from . import stubs
from .lazy import Situation

FACT_OF = {  # importable module -> fact
    "vllm.vllm_flash_attn._vllm_fa2_C": "fa2",
    "vllm.vllm_flash_attn._vllm_fa3_C": "fa3",
    "vllm._flashmla_C": "flashmla",
    "vllm._flashmla_extension_C": "flashmla",
}
FILE_OF = {"vllm_flash_attn/cute/interface.py": "fa4"}  # file of the release -> fact
PROGRAMS = ("nvcc", "ninja")  # facts of the same name
# Packages every installation of vLLM has; their contents are stubs, their presence is no question.
_ALWAYS = """
    torch numpy triton transformers pydantic pydantic_core typing_extensions PIL psutil cachetools cloudpickle regex
    msgspec zmq huggingface_hub safetensors tokenizers packaging yaml einops prometheus_client filelock tqdm jinja2
    requests pynvml cv2 blake3 cpuinfo openai fastapi aiohttp uvicorn starlette tiktoken lark xgrammar sympy networkx
    scipy six setuptools pybase64 cbor2 numba py torchvision torchaudio depyf compressed_tensors gguf mistral_common
    partial_json_parser outlines_core llguidance diskcache watchfiles ray orjson httpx jsonschema
"""
ALWAYS = frozenset(_ALWAYS.split())
COMPILED = re.compile(r"^(vllm/(?:[\w]+/)*_?\w+?)(?:\.abi3|\.cpython[\w-]*)?\.so$")


class Facts:
    """The circumstances of the question being asked. Values are replaceable and may be tracked objects."""

    machine = "x86_64"

    def __init__(self, situation: Situation, root: str) -> None:
        self.situation, self.root = situation, root.rstrip("/")
        self._capability: Any = None
        self.env: Mapping[str, Any] = {}
        self.variables: Mapping[str, Any] = {}

    @property
    def read(self) -> set[str]:
        """What the current question has looked at, e.g. "env.flashinfer"."""
        return self.situation.reads

    def note(self, facet: str) -> None:
        """Engine code looks at this facet of the situation."""
        self.situation.read(facet)

    @property
    def capability(self) -> Any:
        self.note("capability")
        if self._capability is None:
            stubs.leak("the compute capability was asked for outside any question")
        return self._capability

    def fact(self, name: str) -> Any:
        """An environment fact by its name."""
        self.note(f"env.{name}")
        if name not in self.env:
            stubs.leak(f"environment fact {name!r} is not stated")
        return self.env[name]

    def variable(self, name: str, default: Any) -> Any:
        """An environment variable of the server process."""
        self.note(f"variable.{name}")
        value = self.variables.get(name)
        return default if value is None else value

    def which(self, program: str) -> str | None:
        fact = program.rpartition("/")[2]
        if fact not in PROGRAMS:
            stubs.leak(f"shutil.which({program!r})")
        return f"/usr/local/cuda/bin/{program.rpartition('/')[2]}" if self.fact(fact) else None

    def file_exists(self, path: Any) -> Any:
        if not str(path).startswith(self.root + "/"):
            stubs.leak(f"the file system was asked for {path}")
        relative = str(path)[len(self.root) + 1 :]
        for end, name in FILE_OF.items():
            if relative.endswith(end):
                return self.fact(name)
        stubs.leak(f"the file system was asked for {relative}")

    def present(self, module: str) -> Any:
        """Whether a module outside the source files can be imported."""
        top = module.partition(".")[0]
        for name in (module, top):
            fact = FACT_OF.get(name, name)
            if fact in self.env:
                return self.fact(fact)
        if top in ALWAYS:
            return True
        self.note(f"env.{FACT_OF.get(module, top)}")
        if top == "vllm":
            if self.env.get("wheel"):
                return False  # every file of the wheel is known, and it is not one of them
            stubs.leak(f"whether {module} is in the wheel is not stated")
        stubs.leak(f"environment fact {top!r} is not stated")

    def spec(self, name: str) -> Any:
        """importlib.util.find_spec"""
        if "." in name and not name.startswith("vllm.") and name not in self.env:
            stubs.leak(f"environment fact {name!r} is not stated")
        return importlib.machinery.ModuleSpec(name, None) if self.present(name) else None


OPTIONAL = {  # fact -> distribution that brings it
    "flashinfer": "flashinfer-python", "flashinfer_cubin": "flashinfer-cubin", "tokenspeed_mla": "tokenspeed-mla",
    "deep_gemm": "deep-gemm", "cutlass": "nvidia-cutlass-dsl", "quack": "quack-kernels", "b12x": "b12x",
    "tvm_ffi": "apache-tvm-ffi", "aiter": "aiter", "hpc": "hpc-ops", "fastsafetensors": "fastsafetensors",
    "flash_attn": "flash-attn",
}


OTHER_MACHINE = re.compile(r"platform_machine == \"(?:s390x|ppc64le|aarch64|arm64|riscv64)\"\s*$")


def requirements(metadata: str) -> set[str]:
    """Names of the distributions a plain `pip install` brings on Linux x86_64, from METADATA. Extras left out."""
    names: set[str] = set()
    for line in metadata.splitlines():
        if not line:
            break
        if not line.startswith("Requires-Dist:"):
            continue
        requirement, _, marker = line.partition(":")[2].partition(";")
        if "extra ==" in marker or OTHER_MACHINE.search(marker):
            continue
        match = re.match(r"\s*([A-Za-z0-9._-]+)", requirement)
        if match:
            names.add(re.sub(r"[-_.]+", "-", match[1]).lower())
    return names


def default_env(version: str, metadata_text: str, file_names: Iterable[str], whole: bool = True) -> dict[str, bool]:
    """What `pip install vllm==VERSION` brings on a CUDA machine with internet access and a CUDA toolkit.

    `metadata_text` is the wheel's METADATA, `file_names` every file in the wheel (compiled kernels included);
    `whole` False says that the list is not complete (a checkout): what is not on it is then unknown, not absent.
    """
    names = set(file_names)
    wanted = requirements(metadata_text)
    env = {fact: distribution in wanted for fact, distribution in OPTIONAL.items()}
    for name in names:
        match = COMPILED.match(name)
        if match:
            module = match[1].replace("/", ".")
            env[FACT_OF.get(module, module)] = True
    for fact in ("fa2", "fa3", "flashmla"):
        if whole:
            env.setdefault(fact, False)
    if whole or any(name.startswith("vllm/vllm_flash_attn/cute/") for name in names):
        env["fa4"] = "vllm/vllm_flash_attn/cute/interface.py" in names
    env["deep_gemm"] |= any(name.startswith("vllm/third_party/deep_gemm/") for name in names)
    pinned = re.search(r"^Requires-Dist: *flashinfer-python *==? *(\S+)", metadata_text, re.MULTILINE)
    env.update(flashinfer_facts(pinned[1] if pinned else ""))
    env["b12x"] |= "b12x" in wanted
    # Not in the wheel: the machine. Stated, so that a user can state them otherwise.
    env.update(artifactory=True, nvcc=True, ninja=True, b12x_device=False, wheel=whole)
    if "flashmla" in env:
        env["flashmla_mega"] = env["flashmla"]
    return env


# First flashinfer-python pinned by a release whose wheel holds it (wheels 0.5.3 to 0.7.2.post1 read, November 2026).
IN_FLASHINFER = {
    "flashinfer_sparse_mla": (0, 6, 12),  # decode.py: trtllm_batch_decode_sparse_mla_dsv4
    "flashinfer_sm90_nope_mla": (0, 6, 18),  # mla: BatchMLAPagedAttentionWrapper.run(ckv_scale_arr=...)
    "b12x": (0, 7, 2),  # the b12x package is embedded; 0.7.0.post1 has none
}


def flashinfer_facts(version: str) -> dict[str, bool]:
    """What a flashinfer-python of this version holds. Nothing is stated for an unknown version."""
    found = tuple(int(part) for part in re.findall(r"\d+", version.partition("post")[0])[:3])
    return {fact: found >= since for fact, since in IN_FLASHINFER.items()} if found else {"b12x": False}
