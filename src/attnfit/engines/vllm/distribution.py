"""vLLM's distribution: what its wheels hold, and which environment facts follow from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from attnfit.engines.vllm.witness.env import OPTIONAL, default_env, flashinfer_facts
from attnfit.witness.distribution import Checkout, Distribution, read_text

_VERSION = re.compile(r"^__version__ *=(?: *version *=)? *['\"]([^'\"]+)", re.MULTILINE)


def _beside(env: dict[str, bool], found: Mapping[str, Path]) -> dict[str, bool]:
    """The facts with the distributions that are installed beside vLLM."""
    env = dict(env)
    for fact, package in OPTIONAL.items():
        if fact != "deep_gemm" or not env[fact]:  # vendored in newer wheels
            env[fact] = package in found
    if "flashinfer-python" in found:
        flashinfer = found["flashinfer-python"]
        env.update(flashinfer_facts(flashinfer.name.removesuffix(".dist-info").partition("-")[2]))
        env["b12x"] = "b12x" in found or (flashinfer.parent / "b12x" / "__init__.py").is_file()
    return env


def _checkout(root: Path) -> Checkout:
    version = _VERSION.search(read_text(root / "vllm" / "_version.py"))
    return Checkout(
        version=version[1] if version else "unknown",
        metadata=_requirements(root),
        built=tuple(f"{module.replace('.', '/')}.abi3.so" for module in _extensions(root)),
    )


def _requirements(root: Path) -> str:
    """requirements/*.txt of a checkout, in the form of METADATA."""
    texts = [read_text(root / "requirements" / name) for name in ("common.txt", "cuda.txt")]
    lines = [line.split("#")[0].strip() for text in texts for line in text.splitlines() if line[:1].isalnum()]
    return "\n".join(f"Requires-Dist: {line}" for line in lines) + "\n\n"


def _extensions(root: Path) -> list[str]:
    """Names of the compiled modules that setup.py declares."""
    return re.findall(r"CMakeExtension\(\s*(?:name=)?[\"']([\w.]+)[\"']", read_text(root / "setup.py"))


DISTRIBUTION = Distribution(
    name="vllm",
    package="vllm",
    holds="vllm/platforms",
    telling=("vllm/vllm_flash_attn/cute/", "vllm/third_party/deep_gemm/"),
    env=default_env,
    beside=_beside,
    checkout=_checkout,
)
