"""MLA *prefill* backend: chosen once the layer is built; a dense MLA model that none of them serves is refused.

Source (0.33.0): vllm/v1/attention/backends/mla/prefill/selector.py:46, vllm/platforms/interface.py:435.
"""

from __future__ import annotations

from typing import NamedTuple

from attnfit.core import Capability
from attnfit.engines.vllm import ours
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal, Unknown

_SINCE = 21  # 0.21.0 is the first release with a choice of MLA prefill backends
_DIR = "vllm/v1/attention/backends/mla/prefill/"
SPARSE_WITHOUT_PREFILL = ("FLASHINFER_MLA_SPARSE_SM120",)  # never builds a dense prefill path


class Dims(NamedTuple):
    nope: int
    rope: int
    v: int

    def __str__(self) -> str:
        return f"(qk_nope_head_dim={self.nope}, qk_rope_head_dim={self.rope}, v_head_dim={self.v})"

    def __repr__(self) -> str:
        return f"MLADimensions(qk_nope_head_dim={self.nope}, qk_rope_head_dim={self.rope}, v_head_dim={self.v})"


class _Prefill(NamedTuple):
    dims: tuple[Dims, ...]
    lists_dims: bool  # its refusal names the dimensions it takes
    blackwell_only: bool
    where: str


_R1 = Dims(128, 64, 128)
_GLM = Dims(192, 64, 256)

PREFILL_BACKENDS: dict[str, _Prefill] = {
    "FLASH_ATTN": _Prefill((_R1, _GLM, Dims(64, 64, 128), Dims(256, 0, 256)), False, False, f"{_DIR}flash_attn.py:313"),
    "TRTLLM_RAGGED": _Prefill((_R1, _GLM), True, True, f"{_DIR}trtllm_ragged.py:39"),
    "FLASHINFER": _Prefill((_R1,), True, True, f"{_DIR}flashinfer.py:41"),
    "TOKENSPEED_MLA": _Prefill((_R1,), True, True, f"{_DIR}tokenspeed_mla.py:25"),
}


def prefill_priorities(capability: Capability, dims: Dims) -> list[str]:
    """vllm/platforms/interface.py:464."""
    if capability.major != 10:
        return ["FLASH_ATTN"]
    first = ["TRTLLM_RAGGED", "FLASH_ATTN"] if dims == _GLM else ["FLASH_ATTN", "TRTLLM_RAGGED"]
    return [*first, "FLASHINFER", "TOKENSPEED_MLA"]


def choose_prefill(cfg: EngineConfig, capability: Capability, stage: str = "model_init") -> str:
    """The MLA prefill backend. Raises Refusal with the engine's text if there is none."""
    dims = Dims(*(int(cfg.text.get(key) or 0) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")))
    asked = cfg.attention.get("mla_prefill_backend")
    if asked:
        name = str(asked).rpartition(".")[2].upper()
        if name not in PREFILL_BACKENDS:
            raise Unknown(f"what the MLA prefill backend {name} of vLLM {cfg.release} asks for")
        reasons = _reasons(name, dims, cfg.dtype, capability)
        if reasons:
            raise Refusal(
                stage,
                f"ValueError: Selected MLA prefill backend {name} is not valid for this configuration. "
                f"Reason: {reasons}",
                f"{_DIR}selector.py:107",
            )
        return name
    refused: dict[str, list[str]] = {}
    for name in prefill_priorities(capability, dims):
        reasons = _reasons(name, dims, cfg.dtype, capability)
        if not reasons:
            return name
        refused[name] = reasons
    listed = ", ".join(f"{name}: [{', '.join(reasons)}]" for name, reasons in refused.items())
    raise Refusal(
        stage,
        "ValueError: No valid MLA prefill backend found with MLAPrefillSelectorConfig("
        f"dtype=torch.{cfg.dtype}, mla_dimensions={dims}). Reasons: {{{listed}}}.",
        "vllm/platforms/interface.py:512",
    )


def check_prefill(cfg: EngineConfig, backend: str, capability: Capability, stage: str) -> None:
    """Raise Refusal if an MLA layer on `backend` needs a prefill backend and none serves it."""
    if int(cfg.release.split(".")[1]) < _SINCE:
        return
    sparse = "SPARSE" in backend or backend in ours.NAMES
    if backend in SPARSE_WITHOUT_PREFILL:
        return
    if sparse and not cfg.attention.get("mla_prefill_backend"):
        return  # falls back to its own top-k path (mla_attention.py:637)
    choose_prefill(cfg, capability, stage)


def _reasons(name: str, dims: Dims, dtype: str, capability: Capability) -> list[str]:
    entry = PREFILL_BACKENDS[name]
    reasons = []
    if entry.blackwell_only and capability.major != 10:
        reasons.append(f"compute capability {capability} not supported")
    if dtype not in ("float16", "bfloat16"):
        reasons.append(f"dtype torch.{dtype} not supported")
    if dims not in entry.dims:
        reason = f"Model does not have supported MLA dimensions (got {dims}"
        if entry.lists_dims:
            reason += "; supported: " + ", ".join(str(each) for each in entry.dims)
        reasons.append(reason + ")")
    return reasons
