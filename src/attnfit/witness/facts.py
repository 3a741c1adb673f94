"""The question's circumstances as engine code may read them: capability, environment facts, variables.

Every environment fact has a name users see (`flashinfer`, `fa3`, `artifactory`...). One that a predicate reads and
nobody stated leaks: the answer is then unknown, naming the fact. Standard library only.
"""

from __future__ import annotations

import importlib.machinery
from collections.abc import Mapping
from typing import Any

from . import stubs
from .env import FACT_OF, OPTIONAL, default_env, requirements
from .lazy import Situation

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


__all__ = ["ALWAYS", "FACT_OF", "OPTIONAL", "Facts", "default_env", "requirements"]
