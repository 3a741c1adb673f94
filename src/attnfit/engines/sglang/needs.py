"""What a backend needs beside SGLang itself: packages, as environment facts with what `pip install` brings as default.

needs.json says which value of which option needs which package, and in which line each release imports it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from attnfit.engines.sglang.releases import Entry, nearest

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
    effect: str  # "import": without it the backend cannot be built; "kernel": it is, and its kernel cannot run
    where: dict[str, str]  # release -> file:line below sglang/


@functools.cache
def table() -> list[Need]:
    return msgspec.json.decode(TABLE.read_bytes(), type=list[Need])


def brought(entry: Entry) -> dict[str, bool]:
    """The facts of a release as `pip install sglang==X` leaves them."""
    return {fact: any(name in entry.brings for name in names) for fact, names in PACKAGES.items()}


def found(packages: Collection[str]) -> dict[str, bool]:
    """The facts of an environment, by the normalised names of its distributions."""
    return {fact: any(name in packages for name in names) for fact, names in PACKAGES.items()}


def needs(version: str, kind: str, value: str) -> Iterator[tuple[Need, str]]:
    """What a value needs in a release, and the line that says so."""
    release = nearest(version)
    for need in table():
        if need.kind == kind and need.value == value and release in need.where:
            yield need, need.where[release]


def missing(version: str, facts: Mapping[str, bool], kind: str, value: str | None) -> tuple[Need, str] | None:
    """The first package that is not there. A value that needs none, or is None, misses none."""
    each = needs(version, kind, value) if value else iter(())
    return next(((need, where) for need, where in each if not facts.get(need.fact, True)), None)


def sentence(need: Need, where: str) -> str:
    """ "fa4 needs flash-attn-4, which is not there (sglang/...:10 imports it); `--env flash_attn_4=yes` if it is"."""
    package = " or ".join(PACKAGES[need.fact])
    return (
        f"{need.value} needs {package}, which is not there (sglang/{where} imports it); "
        f"--env {need.fact}=yes if it is, else pip install it"
    )
