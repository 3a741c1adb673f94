"""Linear layers that cannot be built: shards that are not whole blocks or groups of scales, schemes that do not exist.

Sources (0.33.0): vllm/model_executor/layers/quantization/: each method's `create_weights`. Which linear layers a model
has is `projections`; what a method says to one of them is here, for compressed-tensors in `ct_scheme`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.launch import ct_scheme, kernel_facts
from attnfit.engines.vllm.launch.expert_blocks import one_group
from attnfit.engines.vllm.launch.inc_scheme import inc_linear
from attnfit.engines.vllm.launch.linear_packed import awq_linear, gptq_linear
from attnfit.engines.vllm.launch.model_asserts import LayerCheck
from attnfit.engines.vllm.launch.moe import in_capabilities
from attnfit.engines.vllm.launch.projections import Projection, projections
from attnfit.engines.vllm.launch.quark_scheme import check_quark
from attnfit.engines.vllm.launch.scheme_capability import too_old
from attnfit.engines.vllm.launch.skipped import excluded_modules, is_skipped, names_of
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal, Unknown

STAGE = "model_init"
_FOLDER = "vllm/model_executor/layers/quantization"
_WHERE = f"{_FOLDER}/utils/fp8_utils.py"
AWQ, GPTQ = ("awq", "awq_marlin", "auto_awq"), ("gptq", "gptq_marlin", "auto_gptq")

Check = Callable[[Projection], None]


def linear_steps(cfg: EngineConfig, capability: Capability) -> Iterator[LayerCheck]:
    """(decoder layer, place, check) of every linear layer kind that the method may refuse."""
    check = _check(cfg, capability)
    if check is None:
        return
    if cfg.quantization == "compressed-tensors" and not cfg.use_mla:
        first = next((index for index, _, p in projections(cfg) if p.name.endswith(".qkv_proj") and p.root), 0)
        yield first, 1, partial(ct_scheme.check_kv_scheme, cfg.quant_config or {})  # attention, once it has a backend
    skipped = excluded_modules(cfg.quant_config or {})
    kimi = cfg.architecture == "KimiK3ForConditionalGeneration" and cfg.tp > 1
    if kimi and not is_skipped(_KDA, skipped, cfg.quantization):
        yield 0, 0, partial(_padded, cfg)
    for index, place, p in projections(cfg):
        if cfg.quantization == "inc" or not is_skipped(p, skipped, cfg.quantization):
            yield index, place, partial(check, p)


def _check(cfg: EngineConfig, capability: Capability) -> Check | None:
    """What the checkpoint's method does with a quantised linear layer; None where it refuses none."""
    quant, method = cfg.quant_config or {}, cfg.quantization
    if not quant:
        online = method in _ONLINE and cfg.flags.get("quantization_config") is None
        return partial(_online, str(method)) if online else None
    if method == "moe_wna16":
        method = "auto_gptq" if quant.get("quant_method") == "gptq" else "auto_awq"
    if method in ("fp8", "deepseek_v4_fp8"):
        block = quant.get("weight_block_size")
        if isinstance(block, list) and len(block) == 2:
            return partial(check_blocks, rows=int(block[0]), cols=int(block[1]), tp=cfg.tp)
    elif method == "compressed-tensors":
        return partial(_compressed_tensors, cfg, capability)
    elif method in AWQ:
        return partial(awq_linear, quant)
    elif method in GPTQ:
        return partial(gptq_linear, quant)
    elif method == "inc":
        return partial(inc_linear, quant)
    elif method == "quark":
        return partial(check_quark, quant, capability)
    elif str(method).startswith("modelopt"):
        return partial(_modelopt, quant)
    return None


#: kimi_k3/nvidia/kda.py:653, the first layer's
_KDA = Projection(
    "self_attn.in_proj_qkvgfab", 0, (), "column", root="language_model.model.layers.0",
    parts=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
)  # fmt: skip


def _padded(cfg: EngineConfig) -> None:
    """kimi_k3/nvidia/kda.py:128 pads a `weight`, which packed formats do not have."""
    packed = any("pack" in str(part) for part in (cfg.quant_config or {}).get("config_groups", {}).values())
    if cfg.quantization in (*AWQ, *GPTQ, "inc") or packed or "pack" in str((cfg.quant_config or {}).get("format")):
        raise Unknown("whether Kimi-K3's padded projections take packed weights")


def _compressed_tensors(cfg: EngineConfig, capability: Capability, p: Projection) -> None:
    parts = [names_of(p, part) for part in p.parts]
    group = ct_scheme.group_of(cfg.quant_config or {}, names_of(p), parts)
    if group is None:
        return
    scheme = ct_scheme.linear_scheme(group, capability, p.path)
    too_old(cfg, scheme, capability)
    block = group.weights.block_structure
    if scheme == "fp8" and block:
        check_blocks(p, int(block[0]), int(block[1]), cfg.tp, merged=True)
    ct_scheme.check_linear(group, scheme, p)


#: quantised while weights load, scales shared by 32 inputs -> where a shard of other sizes is refused
_ONLINE = {"mxfp4": f"{_FOLDER}/online/mxfp4.py:101", "mxfp8": f"{_FOLDER}/online/mxfp8.py:57"}


def _online(method: str, p: Projection) -> None:
    if p.inputs % 32:
        raise Refusal(
            STAGE,
            f"ValueError: {method.upper()} requires input_size_per_partition ({p.inputs}) to be divisible by 32.",
            _ONLINE[method],
        )


#: ModelOpt algorithm -> what a shard's inputs must be a multiple of, and the engine's words
_MODELOPT = {
    "NVFP4": (16, "Unsupported model when in features size is not multiple of 16", 2027),
    "W4A16_NVFP4": (16, "Unsupported model when in features size is not multiple of 16", 2027),
    "MXFP8": (32, "MXFP8 requires input size divisible by 32, got {inputs}", 2336),
    "FP8_PB_WO": (128, "FP8_PB_WO requires in divisible by 128, got {inputs}", 2271),
}


def _modelopt(quant: dict[str, Any], p: Projection) -> None:
    inner = quant.get("quantization")
    algorithm = str((inner if isinstance(inner, dict) else quant).get("quant_algo") or "").upper()
    if algorithm not in _MODELOPT or any(word in p.name for word in ("vision_tower", "vision_model")):
        return
    multiple, text, line = _MODELOPT[algorithm]
    if p.inputs % multiple:
        raise Refusal(STAGE, f"ValueError: {text.format(inputs=p.inputs)}", f"{_FOLDER}/modelopt.py:{line}")


def check_linear_backend(cfg: EngineConfig, capability: Capability) -> None:
    """Raise Unknown if `--linear-backend` names a kernel whose support is not known here. Automatic selection always
    finds one from capability 7.5 (Marlin, Humming)."""
    asked = str(cfg.flags.get("linear_backend") or "auto").lower().replace("-", "_")
    scheme = _linear_scheme(cfg)
    if asked == "auto" or scheme is None:
        return
    named = kernel_facts.load("linear_kernels")["schemes"][scheme].get(asked)
    block = (cfg.quant_config or {}).get("weight_block_size") or [128, 128]
    own = scheme == "fp8_block" and asked == "cutlass" and block != [128, 128]  # not its activation groups
    if named is not None and (own or not in_capabilities(capability, named)):
        raise Unknown(f"whether --linear-backend {asked} takes {scheme} layers on compute capability {capability}")


def _linear_scheme(cfg: EngineConfig) -> str | None:
    quant, method = cfg.quant_config or {}, cfg.quantization
    if method in ("fp8", "deepseek_v4_fp8"):
        return "fp8_block" if quant.get("weight_block_size") else "fp8"
    if method in ("awq", "awq_marlin", "auto_awq", "gptq", "gptq_marlin", "auto_gptq"):
        return "mixed_precision"
    if method == "compressed-tensors" and "'strategy': 'block'" in str(quant.get("config_groups")):
        return "fp8_block"
    if str(method).startswith("modelopt") and "W4A16" in str(quant):  # weight-only NVFP4 has a list of its own
        return "nvfp4_a16"
    return {
        "modelopt": "fp8", "modelopt_fp4": "nvfp4", "modelopt_mixed": "nvfp4", "modelopt_mxfp8": "mxfp8",
        "mxfp8": "mxfp8", "compressed-tensors": "mixed_precision" if group_size(cfg) else "fp8",
    }.get(method or "")  # fmt: skip


def group_size(cfg: EngineConfig) -> int | None:
    """Input channels that share one integer scale; None where weights have no such groups."""
    quant = cfg.quant_config or {}
    if cfg.quantization in (*AWQ, *GPTQ):
        size = quant.get("group_size", quant.get("q_group_size"))
        return size if isinstance(size, int) else None
    weights = one_group(quant).get("weights") or {}
    if cfg.quantization == "compressed-tensors" and weights.get("type") == "int":
        size = weights.get("group_size") if weights.get("strategy") == "group" else None
        return size if isinstance(size, int) else None
    return None


def check_blocks(p: Projection, rows: int, cols: int, tp: int, *, merged: bool = False) -> None:
    """Raise Refusal if the layer's shard is not made of whole blocks."""
    if p.split == "row" and tp > 1 and p.inputs % cols:
        raise Refusal(
            STAGE,
            f"ValueError: Weight input_size_per_partition = {p.inputs} is not divisible by weight quantization block_k "
            f"= {cols}.",
            f"{_WHERE}:1324",
        )
    if len(p.outputs) > 1 and not merged:
        return  # gate and up, q and k and v may be ragged together: vllm/model_executor/layers/linear.py:562
    cut = p.split == "column" and tp > 1
    for size in p.outputs if cut else p.outputs[:-1]:  # the last of merged, uncut matrices may be ragged
        if size % rows:
            raise Refusal(
                STAGE,
                f"ValueError: Weight output_partition_size = {size} is not divisible by weight quantization block_n = "
                f"{rows}.",
                f"{_WHERE}:1340",
            )
