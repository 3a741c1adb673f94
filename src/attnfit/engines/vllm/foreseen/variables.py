"""Environment variables that a release does not read: they do nothing, and nothing refuses them.

variables.json has every VLLM_* name of the releases' own files (`proofs/vllm_surroundings.py` writes it).
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from packaging.version import Version

from attnfit.core import Hazard

TABLE = Path(__file__).with_name("variables.json")
SAID = ("VLLM_ATTENTION_BACKEND",)  # launch/forced.py has a note of its own
INSTEAD = {  # the flag that took its place, looked up in the newer releases' own parsers
    "VLLM_FLASH_ATTN_VERSION": "--attention-config.flash_attn_version",
    "VLLM_USE_TRTLLM_ATTENTION": "--attention-config.use_trtllm_attention",
    "VLLM_DISABLE_FLASHINFER_PREFILL": "--attention-config.disable_flashinfer_prefill",
    "VLLM_FLASHINFER_DISABLE_Q_QUANTIZATION": "--attention-config.disable_flashinfer_q_quantization",
    "VLLM_ALL2ALL_BACKEND": "--all2all-backend",
    "VLLM_NVFP4_GEMM_BACKEND": "--linear-backend",
    "VLLM_FLASHINFER_MOE_BACKEND": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP4": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP8": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP16": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS": "--moe-backend",
    "VLLM_MXFP4_USE_MARLIN": "--moe-backend marlin",
}

# Read up to some release before the first of the table: vllm/envs.py at commit 001f69f8b52e, of 2025.
EARLIER = (
    "VLLM_USE_V1", "VLLM_USE_TRITON_FLASH_ATTN", "VLLM_FLASHINFER_FORCE_TENSOR_CORES", "VLLM_USE_RAY_SPMD_WORKER",
    "VLLM_USE_RAY_COMPILED_DAG", "VLLM_LOGITS_PROCESSOR_THREADS", "VLLM_NO_DEPRECATION_WARNING",
    "VLLM_V0_USE_OUTLINES_CACHE",
)  # fmt: skip
_OTHERS_S = {"TPU", "XLA", "ROCM", "AITER", "CPU", "XPU", "HPU", "NEURON", "SPYRE"}  # hardware that is not NVIDIA's
_LEAST = 0.85  # of two names without VLLM_, how alike: a letter or two in a name of ten


class _Table(msgspec.Struct):
    releases: list[str]
    variables: dict[str, tuple[str, str]]  # first and last release that has it


@functools.cache
def table() -> _Table:
    return msgspec.json.decode(TABLE.read_bytes(), type=_Table)


def unread(release: str, variables: Mapping[str, str]) -> Iterator[Hazard]:
    """Of the VLLM_* variables of a command those that stand nowhere in the release's files."""
    given = [name for name in variables if name.startswith("VLLM_") and name not in SAID]
    if not given or release not in table().releases:
        return
    known = table().variables
    for name in given:
        text = f"{name} does nothing: vLLM {release} reads no such variable"
        if name in EARLIER:
            yield Hazard("unread-variable", f"{text}; releases before {table().releases[0]} did", flag=name)
        elif name not in known:
            near = _near(name, [n for n, span in known.items() if _within(release, span)])
            yield Hazard("unread-variable", f"{text}, nor does any release known here{near}", flag=name)
        elif not _within(release, known[name]):
            first, last = known[name]
            gone = Version(last) < Version(release)
            then = f"; {last} was the last to" if gone else f"; {first} is the first to"
            instead = f", say {INSTEAD[name]}" if gone and name in INSTEAD else ""
            yield Hazard("unread-variable", f"{text}{then}{instead}", "vllm/envs.py", name)


def _near(name: str, valid: list[str]) -> str:
    """`; did you mean 'x'?` of a variable that an NVIDIA GPU's user may mean, or an empty string."""
    words = {each.removeprefix("VLLM_"): each for each in valid if not _OTHERS_S & set(each.split("_"))}
    close = difflib.get_close_matches(name.removeprefix("VLLM_"), words, n=1, cutoff=_LEAST)
    return f"; did you mean {words[close[0]]!r}?" if close else ""


def _within(release: str, span: tuple[str, str]) -> bool:
    return Version(span[0]) <= Version(release) <= Version(span[1])
