"""What a backend needs beside SGLang itself: packages, as environment facts with what `pip install` brings as default.

needs.json says which value of which option needs which package, and in which line each release imports it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from attnfit.engines.sglang.releases import Entry, entry, nearest

TABLE = Path(__file__).with_name("needs.json")

# fact -> the distributions that make it true (normalised names), whichever a release has
PACKAGES = {
    "flashinfer": ("flashinfer-python",),
    "flashinfer_cubin": ("flashinfer-cubin",),
    "sgl_kernel": ("sglang-kernel", "sgl-kernel"),
    "flash_attn_4": ("flash-attn-4",),
    "flash_mla": ("sgl-flash-mla",),
    "cutlass_dsl": ("nvidia-cutlass-dsl",),
    "deep_gemm": ("sgl-deep-gemm",),
    "tilelang": ("tilelang",),
    "tokenspeed_mla": ("tokenspeed-mla",),
    "hpc": ("hpc-ops", "hpc"),
    "flash_kda": ("flash-kda",),
    "helion": ("helion",),
    "aiter": ("aiter", "amd-aiter"),
}


class Need(msgspec.Struct, frozen=True):
    """One value of one option, and the package its code imports."""

    kind: str  # "attention_backend" | "linear_attn" | "dsa"
    value: str
    fact: str
    # "import": without it the backend cannot be built; "kernel": it is, and its kernel cannot run; "fetch": the kernel
    # is fetched when it first runs
    effect: str
    where: dict[str, str]  # release -> file:line below sglang/


@functools.cache
def table() -> list[Need]:
    return msgspec.json.decode(TABLE.read_bytes(), type=list[Need])


def brought(release: Entry) -> dict[str, bool]:
    """The facts of a release as `pip install sglang==X` leaves them."""
    return found(release.brings)


def found(packages: Collection[str]) -> dict[str, bool]:
    """The facts of an environment, by the normalised names of its distributions."""
    return {fact: any(name in packages for name in names) for fact, names in PACKAGES.items()}


def needs(version: str, kind: str, value: str) -> Iterator[tuple[Need, str]]:
    """What a value needs in a release, and the line that says so."""
    release = nearest(version)
    for need in table():
        if need.kind == kind and need.value == value and release in need.where:
            yield need, need.where[release]


def missing(
    version: str, facts: Mapping[str, bool], kind: str, value: str, effects: Collection[str] = ("import", "kernel")
) -> tuple[Need, str] | None:
    """The first package of a value that is not there."""
    lacking = ((need, where) for need, where in needs(version, kind, value) if not facts.get(need.fact, True))
    return next(((need, where) for need, where in lacking if need.effect in effects), None)


def package(need: Need, version: str) -> str:
    """The distribution that a release installs for it, else every one that would do."""
    brings = entry(version).brings
    return next((name for name in PACKAGES[need.fact] if name in brings), " or ".join(PACKAGES[need.fact]))


def absent(need: Need, version: str, where: str) -> str:
    """ "fa4 needs flash-attn-4, which is not there (sglang/...:10 imports it); pip install it"."""
    name = package(need, version)
    return f"{need.value} needs {name}, which is not there (sglang/{where} imports it); pip install it"


def not_brought(need: Need, version: str) -> str:
    """The same of a package of which nobody said whether it is there."""
    if need.effect == "fetch":
        return (
            f"{need.value} runs on kernels that FlashInfer fetches when they first run: installing sglang {version} "
            f"does not bring {package(need, version)}"
        )
    return (
        f"{need.value} needs {package(need, version)}, which installing sglang {version} does not bring; "
        f"say --env {need.fact}=yes or =no"
    )


def sentence(version: str, facts: Mapping[str, bool], kind: str, value: str) -> str:
    """ "needs flashinfer-python, flashinfer-cubin"; "" for a value that needs nothing beside SGLang."""
    found = dict.fromkeys(
        package(need, version) + ("" if facts.get(need.fact, True) else " (not installed with it)")
        for need, _ in needs(version, kind, value)
    )
    return f"needs {', '.join(found)}" if found else ""
