"""What the chosen backend's implementation refuses when a layer constructs it, after the selector said yes.

Sources (0.33.0) stand at each check. Only checks that a selected backend can still fail are here: most of what the
constructors test (attention type, KV dtype, head size) the selector has already tested.
"""

from __future__ import annotations

from collections.abc import Callable

from attnfit.core import Capability, LayerQuestion
from attnfit.engines.vllm import ours
from attnfit.engines.vllm.launch import ours_checks
from attnfit.engines.vllm.launch.mla_prefill import check_prefill
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal, Unknown

_BACKENDS = "vllm/v1/attention/backends/"
DEVICE = "{device}"  # the device's own name stands here in the engine's text

UNQUANTISED = ("auto", "float16", "bfloat16", "float32")


def check_impl(cfg: EngineConfig, layer: LayerQuestion, capability: Capability, stage: str, kv: str) -> None:
    """Raise Refusal if constructing this layer's implementation fails. `kv` is the layer's KV dtype after the
    backend's own rewriting."""
    backend = layer.selection.chosen
    if backend is None:
        return
    mla = layer.question.use_mla
    if mla:  # MLA layers set up their scales before the implementation, others after it
        _checkpoint_scales(cfg, kv, stage, mla=True)
    check = _CHECKS.get(backend)
    if check is not None:
        check(cfg, layer, capability, stage, kv)
    if not mla:
        _checkpoint_scales(cfg, kv, stage, mla=False)
    if mla:
        check_prefill(cfg, backend, capability, stage)
        if cfg.pcp > 1 and cfg.dcp > 1 and layer.layer_class == "MLAAttention":
            raise Refusal(
                stage,
                f"NotImplementedError: {layer.layer_class} does not support PCP+DCP.",
                "vllm/model_executor/layers/attention/mla_attention.py:690",
            )


def _checkpoint_scales(cfg: EngineConfig, kv: str, stage: str, *, mla: bool) -> None:
    """A quantised checkpoint that brings scales for the KV cache cannot use them with fp8_e5m2."""
    if kv != "fp8_e5m2":
        return
    quant = cfg.quant_config or {}
    brings = {
        "fp8": bool(quant) and not mla,  # fp8.py:205 looks at Attention only
        "modelopt": True,
        "modelopt_fp4": True,
        "modelopt_mxfp8": True,
        "modelopt_mixed": not mla and bool(quant.get("kv_cache_quant_algo") or quant.get("kv_cache_scheme")),
        "compressed-tensors": not mla and quant.get("kv_cache_scheme") is not None,
    }
    if brings.get(cfg.quantization or "", False):
        raise Refusal(
            stage,
            "ValueError: fp8_e5m2 kv-cache is not supported with fp8 checkpoints.",
            "vllm/model_executor/layers/attention/attention.py:218",
        )


Check = Callable[[EngineConfig, LayerQuestion, Capability, str, str], None]


def _triton(name: str, where: str, bf16_where: str, bf16_text: str, since: int = 0) -> Check:
    """since: the first minor release with the check of FP8; before it the kernel fails when it is compiled, which is
    foreseen (foreseen/kernels.py)."""

    def check(cfg: EngineConfig, layer: LayerQuestion, cap: Capability, stage: str, kv: str) -> None:
        if kv.startswith("fp8") and cap < (8, 9) and int(cfg.release.split(".")[1]) >= since:
            suggested = "float16" if cap < (8, 0) else "bfloat16"
            raise Refusal(
                stage,
                f"ValueError: FP8 KV cache is not supported by the {name} backend on {DEVICE} (compute capability "
                f"{cap}); native FP8 (fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype {suggested}.",
                where,
            )
        if kv == "bfloat16" and cap < (8, 0):
            raise Refusal(
                stage,
                f"ValueError: bfloat16 KV cache is not supported {bf16_text}on {DEVICE} (compute capability {cap}); "
                "bfloat16 requires SM80+. Re-run with --kv-cache-dtype float16.",
                bf16_where,
            )

    return check


def _no_window(impl: str, where: str) -> Check:
    """MLA implementations that take neither ALiBi nor a sliding window."""

    def check(cfg: EngineConfig, layer: LayerQuestion, cap: Capability, stage: str, kv: str) -> None:
        if layer.question.has_sliding_window:
            raise Refusal(
                stage,
                f"NotImplementedError: {impl} does not support one of the following: alibi_slopes, sliding_window, "
                "logits_soft_cap",
                where,
            )

    return check


def _both(*checks: Check) -> Check:
    def check(cfg: EngineConfig, layer: LayerQuestion, cap: Capability, stage: str, kv: str) -> None:
        for each in checks:
            each(cfg, layer, cap, stage, kv)

    return check


def _flex(cfg: EngineConfig, layer: LayerQuestion, cap: Capability, stage: str, kv: str) -> None:
    if cfg.text.get("attn_logit_softcapping"):
        raise Refusal(
            stage,
            "NotImplementedError: FlexAttention does not support logits soft cap yet.",
            f"{_BACKENDS}flex_attention.py:1186",
        )
    if kv not in UNQUANTISED:
        raise Refusal(
            stage,
            "NotImplementedError: FlexAttention does not support quantized kv-cache. Yet",
            f"{_BACKENDS}flex_attention.py:1197",
        )


def _tokenspeed(cfg: EngineConfig, layer: LayerQuestion, cap: Capability, stage: str, kv: str) -> None:
    if kv in UNQUANTISED:
        raise Refusal(
            stage,
            "NotImplementedError: TokenspeedMLAImpl requires an FP8 KV cache (--kv-cache-dtype fp8 or fp8_e4m3); got "
            f"kv_cache_dtype={kv!r}.",
            f"{_BACKENDS}mla/tokenspeed_mla.py:226",
        )


def _sm120_sparse(cfg: EngineConfig, layer: LayerQuestion, cap: Capability, stage: str, kv: str) -> None:
    if kv != "fp8_ds_mla":
        raise Refusal(
            stage,
            "NotImplementedError: FLASHINFER_MLA_SPARSE_SM120 requires the packed fp8_ds_mla KV cache layout; got "
            f"kv_cache_dtype={kv!r}.",
            f"{_BACKENDS}mla/flashinfer_mla_sparse_sm120.py:64",
        )


def _flashmla_sparse(cfg: EngineConfig, layer: LayerQuestion, cap: Capability, stage: str, kv: str) -> None:
    if cfg.dcp > 1 and kv in UNQUANTISED:
        raise Refusal(
            stage,
            "NotImplementedError: DCP for FlashMLA sparse requires an fp8_ds_mla kv-cache; the bf16 sparse path is "
            "not supported under DCP.",
            f"{_BACKENDS}mla/flashmla_sparse.py:784",
        )


def _flash_attn_mla_sparse(cfg: EngineConfig, layer: LayerQuestion, cap: Capability, stage: str, kv: str) -> None:
    if kv not in ("auto", "float16", "bfloat16"):
        raise Refusal(
            stage,
            "NotImplementedError: FlashAttnMLASparseImpl currently supports only FP16/BF16 KV cache.",
            f"{_BACKENDS}mla/flashattn_mla_sparse.py:185",
        )


def _b12x(cfg: EngineConfig, layer: LayerQuestion, cap: Capability, stage: str, kv: str) -> None:
    raise Unknown("whether the b12x attention implementation accepts this layer (softmax scale, page size)")


def _hpc(cfg: EngineConfig, layer: LayerQuestion, cap: Capability, stage: str, kv: str) -> None:
    raise Unknown("whether the hpc package is installed")


def _ours(cfg: EngineConfig, layer: LayerQuestion, cap: Capability, stage: str, kv: str) -> None:
    ours_checks.check_layer(cfg, stage)


_CHECKS: dict[str, Check] = {
    "TRITON_ATTN": _triton(
        "Triton attention", f"{_BACKENDS}triton_attn.py:517", f"{_BACKENDS}triton_attn.py:528", "", since=24
    ),
    "TRITON_MLA": _both(
        _no_window("TritonMLAImpl", f"{_BACKENDS}mla/triton_mla.py:185"),
        _triton(
            "Triton MLA",
            f"{_BACKENDS}mla/triton_mla.py:209",
            f"{_BACKENDS}mla/triton_mla.py:218",
            "by the Triton MLA backend ",
        ),
    ),
    "CUTLASS_MLA": _no_window("CutlassMLAImpl", f"{_BACKENDS}mla/cutlass_mla.py:139"),
    "FLASH_ATTN_MLA": _no_window("FlashAttnMLAImpl", f"{_BACKENDS}mla/flashattn_mla.py:335"),
    "FLASHINFER_MLA": _no_window("FlashInferMLAImpl", f"{_BACKENDS}mla/flashinfer_mla.py:290"),
    "FLASHINFER_MLA_SPARSE": _no_window("FlashInferMLASparseImpl", f"{_BACKENDS}mla/flashinfer_mla_sparse.py:465"),
    "FLASHMLA": _no_window("FlashMLAImpl", f"{_BACKENDS}mla/flashmla.py:245"),
    "FLASH_ATTN_MLA_SPARSE": _flash_attn_mla_sparse,
    "FLASHINFER_MLA_SPARSE_SM120": _sm120_sparse,
    "FLASHMLA_SPARSE": _flashmla_sparse,
    "TOKENSPEED_MLA": _both(_no_window("TokenspeedMLAImpl", f"{_BACKENDS}mla/tokenspeed_mla.py:212"), _tokenspeed),
    "FLEX_ATTENTION": _flex,
    "B12X": _b12x,
    **dict.fromkeys(ours.NAMES, _ours),
    "HPC_ATTN": _hpc,
}
