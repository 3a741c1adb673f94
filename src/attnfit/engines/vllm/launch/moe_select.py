"""The oracles' choice: automatic, or as `--moe-backend` asks; raises the engine's own refusal.

Source (0.33.0): vllm/model_executor/layers/fused_moe/oracle/{fp8,unquantized,nvfp4,mxfp4,mxfp8,int_wna16,int8}.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attnfit.core import Capability
from attnfit.engines.vllm.launch.moe import MoeLayer, Oracle, humming_first
from attnfit.engines.vllm.launch.state import Refusal, Unknown

# vllm/utils/deep_gemm.py:28: model types for which DeepGEMM is off on a family of GPUs
_NO_DEEP_GEMM = {"qwen3_5_text": (10, 12), "qwen3_5_moe_text": (10, 12), "kolibri1": (12,)}


#: the `oracle` of a scheme whose class asks none
DIRECT = "direct"


class Scheme:
    """A quantisation scheme of a fused MoE layer: which oracle it asks and with which keys."""

    def __init__(
        self,
        oracle: str,
        weight: str | None = None,
        activation: str | None = None,
        *,
        deepseek_v4: bool = False,
        cutlass: bool = False,
        skip: Callable[[str, MoeLayer], str | None] | None = None,
        method: str | None = None,
        group: int | None = None,
        then: Callable[[str, MoeLayer], None] | None = None,
        block: list[int] | None = None,
    ) -> None:
        self.oracle, self.weight, self.activation = oracle, weight, activation
        self.deepseek_v4, self.cutlass = deepseek_v4, cutlass
        self.skip = skip  # why a backend cannot take the checkpoint, before its classes are asked
        self.method = method  # the engine's class, where the checkpoint's method alone does not name it
        self.group = group  # inputs that share a scale, where the class halves it to fit the shard
        self.block = block  # rows and columns that share a scale, where not the checkpoint's one weight_block_size
        self.then = then  # what the engine's class asserts once the backend is chosen; raises Refusal


def select(
    scheme: Scheme,
    layer: MoeLayer,
    capability: Capability,
    env: Mapping[str, bool],
    stage: str,
    text_model_type: str = "",
) -> str:
    """The backend that will run the layer. Raises Refusal as the engine does, Unknown where a fact is missing."""
    if scheme.oracle == DIRECT:  # one class, which chooses by itself
        if layer.moe_backend != "auto":
            raise Unknown(f"what --moe-backend {layer.moe_backend} does to these experts")
        name = ""
    else:
        name = _select(scheme, layer, capability, env, stage, text_model_type)
    if scheme.then is not None:
        scheme.then(name, layer)
    return name


def _select(
    scheme: Scheme, layer: MoeLayer, capability: Capability, env: Mapping[str, bool], stage: str, text_model_type: str
) -> str:
    oracle = Oracle(scheme.oracle, capability, env)
    if scheme.oracle == "unquantized" and layer.lora:
        return "TRITON"  # oracle/unquantized.py:233: never refuses
    if scheme.oracle == "unquantized" and layer.parallel.all2all == "moonep":
        raise Unknown("whether MoonEP's experts kernel takes this layer")
    if scheme.oracle == "mxfp4":
        return _mxfp4(oracle, scheme, layer, stage)
    asked = layer.moe_backend
    if scheme.oracle == "w4a8" and asked != "auto":
        raise Unknown(f"whether --moe-backend {asked} takes experts of 4-bit integer weights with FP8 activations")
    if asked != "auto" and asked not in oracle.rules.get("ignores", ()):
        return _asked(oracle, scheme, layer, asked, stage)
    backends = oracle.order()
    if scheme.oracle == "fp8":
        if env.get("deep_gemm_experts"):
            return _take(oracle, scheme, layer, "BATCHED_DEEPGEMM" if layer.batched else "DEEPGEMM", stage)
        if "deep_gemm_experts" in env:
            backends = [name for name in backends if "DEEPGEMM" not in name]
        backends = _fp8_order(backends, scheme, layer, capability, text_model_type)
    if scheme.oracle == "unquantized":
        backends = _unquantised_order(backends, layer, capability)
    if scheme.oracle == "nvfp4" and layer.swiglu[0] is not None:
        backends = [name for name in backends if name in oracle.rules["clamps"]]
    for name in backends:
        if scheme.skip is not None and scheme.skip(name, layer) is not None:
            continue
        if oracle.reason(name, layer, scheme.weight, scheme.activation) is None:
            return name
    if scheme.oracle == "w4a8":
        raise Unknown("which kernel takes experts of 4-bit integer weights with FP8 activations")
    text = oracle.rules["none_found"] or (
        "NotImplementedError: No Int8 MoE backend supports the deployment configuration "
        f"(weight_key={oracle.key(scheme.weight)}, activation_key={oracle.key(scheme.activation)}). "
        "Set `VLLM_LOGGING_LEVEL=DEBUG` to see per-backend unsupported reasons."
    )
    raise Refusal(stage, text, oracle.rules["none_where"])


def _fp8_order(backends: list[str], scheme: Scheme, layer: MoeLayer, cap: Capability, model_type: str) -> list[str]:
    """oracle/fp8.py:79, 504-524."""
    if cap.major in _NO_DEEP_GEMM.get(model_type, ()):
        backends = [name for name in backends if "DEEPGEMM" not in name]
    if not scheme.cutlass:
        backends = [name for name in backends if "VLLM_CUTLASS" not in name]
    if (scheme.weight, scheme.activation) == ("kFp8Static128BlockSym", "kFp8Dynamic128Sym"):
        if cap.major == 10 and layer.parallel.all2all == "deepep_v2":
            return _first("FLASHINFER_TRTLLM", backends)
        if cap == (9, 0):
            return _first("FLASHINFER_CUTLASS" if layer.parallel.ep_size > 1 else "TRITON", backends)
    return backends


def _unquantised_order(backends: list[str], layer: MoeLayer, cap: Capability) -> list[str]:
    """oracle/unquantized.py:73-95."""
    trtllm, cutlass = "FlashInfer TRTLLM", "FlashInfer CUTLASS"
    if cap.major == 9:
        backends = _last(cutlass, _last(trtllm, backends))
    if layer.parallel.dp_size > 1:
        backends = _last(cutlass, backends)
    if layer.activation == "swigluoai":
        backends = _last(cutlass, _last(trtllm, backends))
    return backends


def _first(name: str, backends: list[str]) -> list[str]:
    return [name, *(each for each in backends if each != name)]


def _last(name: str, backends: list[str]) -> list[str]:
    return [*(each for each in backends if each != name), name]


def _asked(oracle: Oracle, scheme: Scheme, layer: MoeLayer, asked: str, stage: str) -> str:
    rules = oracle.rules
    name = rules["map"].get(asked)
    if name is None:
        listed = list(rules["map"])
        title = {"nvfp4": "NvFP4", "unquantized": "unquantized"}.get(scheme.oracle, rules["title"])
        raise Refusal(
            stage,
            f"ValueError: moe_backend={asked!r} is not supported for {title} MoE. Expected one of {listed}.",
            rules["where"],
        )
    if layer.batched:
        name = rules["batched"].get(name, name)
    if scheme.oracle == "fp8" and "VLLM_CUTLASS" in name and not scheme.cutlass:
        raise Refusal(
            stage,
            "ValueError: vLLM CUTLASS FP8 MoE backend is disabled for this configuration.",
            f"{_dir('fp8')}:475",
        )
    if scheme.oracle == "nvfp4" and layer.swiglu[0] is not None and name not in rules["clamps"]:
        raise Refusal(
            stage,
            f"ValueError: Model sets swiglu_limit={layer.swiglu[0]}, but the explicitly requested "
            f"moe_backend={asked!r} does not apply the SwiGLU clamp. Use 'flashinfer_trtllm', 'flashinfer_cutlass', "
            "'flashinfer_cutedsl', 'flashinfer_moe_ep_cutedsl', 'cutlass', 'b12x', 'marlin', or 'humming' instead.",
            f"{_dir('nvfp4')}:291",
        )
    return _take(oracle, scheme, layer, str(name), stage)


def _take(oracle: Oracle, scheme: Scheme, layer: MoeLayer, name: str, stage: str) -> str:
    """The backend asked for, if it takes the layer."""
    reason = scheme.skip(name, layer) if scheme.skip is not None else None
    if reason is None:
        reason = oracle.reason(name, layer, scheme.weight, scheme.activation)
    if reason is None:
        return name
    if scheme.oracle == "mxfp8":
        raise Refusal(
            stage,
            f"ValueError: No supported MXFP8 expert class for {name}: {reason}",
            f"{_dir('mxfp8')}:103",
        )
    raise Refusal(stage, _unsupported(oracle, name, reason), _RAISES[scheme.oracle])


def _unsupported(oracle: Oracle, name: str, reason: str) -> str:
    shown = f"'{name}'" if oracle.rules["quoted"] else name
    return (
        f"ValueError: {oracle.rules['title']} MoE backend {shown} does not support the deployment configuration since "
        f"{reason}."
    )


def _dir(oracle: str) -> str:
    return f"vllm/model_executor/layers/fused_moe/oracle/{oracle}.py"


_RAISES = {
    "fp8": f"{_dir('fp8')}:452",
    "unquantized": f"{_dir('unquantized')}:296",
    "nvfp4": f"{_dir('nvfp4')}:273",
    "wna16": f"{_dir('int_wna16')}:315",
    "int8": f"{_dir('int8')}:147",
    "mxfp4": f"{_dir('mxfp4')}:611",
}


def _mxfp4(oracle: Oracle, scheme: Scheme, layer: MoeLayer, stage: str) -> str:
    """MXFP4 tries one backend per activation format, BF16 first (oracle/mxfp4.py:614, 650, 763)."""
    rules, asked = oracle.rules, layer.moe_backend
    own: dict[str, str] = rules["activation"]
    wanted = scheme.activation
    if asked != "auto":
        names = rules["map"].get(asked)
        if names is None:
            raise Refusal(
                stage,
                f"ValueError: moe_backend={asked!r} is not supported for MXFP4 MoE. Expected one of "
                f"{list(rules['map'])}.",
                f"{_dir('mxfp4')}:396",
            )
        if asked != "b12x" and not scheme.deepseek_v4:
            names = _by_activation(names, own, wanted)
        if layer.batched:
            names = [rules["batched"].get(name, name) for name in names]
        if not names:
            raise Refusal(
                stage,
                f"ValueError: moe_backend={asked!r} does not support activation={oracle.key(wanted)}",
                f"{_dir('mxfp4')}:685",
            )
        for name in names:
            key = wanted if name == "EMULATION" and not scheme.deepseek_v4 else own.get(name)
            reason = _mxfp4_reason(oracle, name, layer, key)
            if reason is None:
                return str(name)
        raise Refusal(stage, _unsupported(oracle, name, reason or ""), _RAISES["mxfp4"])
    if scheme.deepseek_v4:
        for name in humming_first(rules["deepseek_v4_order"], oracle.cap):
            if _mxfp4_reason(oracle, name, layer, own.get(name)) is None:
                return name
        raise Refusal(stage, rules["deepseek_v4_none"], rules["deepseek_v4_where"])
    order = humming_first(rules["order"], oracle.cap)
    if oracle.cap.major == 12:  # the OAI Triton kernels go behind Marlin on SM12x (oracle/mxfp4.py:426)
        order.remove("TRITON")
        order.insert(order.index("BATCHED_MARLIN") + 1, "TRITON")
    order = _by_activation(order, own, wanted)
    refused: list[tuple[str, str]] = []
    for name in order:
        key = wanted if name == "EMULATION" else own.get(name)
        for experts in rules["backends"][name]:
            reason = oracle.why_not(experts, layer, "kMxfp4Static", key)
            if reason is None:
                return name
            refused.append((name, reason))
    said = "; ".join(f"backend: {name}, reason: {reason}" for name, reason in refused)
    raise Refusal(
        stage,
        "NotImplementedError: No MXFP4 MoE backend supports the deployment configuration. "
        f"weight_key=kMxfp4Static, activation_key={oracle.key(wanted)}. Candidate backends were: {order}. "
        f"Unsupported reasons: {said}. ",
        rules["none_where"],
    )


def _mxfp4_reason(oracle: Oracle, name: str, layer: MoeLayer, key: str | None) -> str | None:
    if layer.lora and layer.moe_backend != "auto" and name.startswith("FLASHINFER_TRTLLM"):
        if name.endswith("MXFP8"):
            return "expert LoRA is not supported with MXFP8 activations; use moe_backend='flashinfer_trtllm'"
        if oracle.why_not("TrtLlmMxfp4LoRAExperts", layer, "kMxfp4Static", key) is None:
            return None
    return oracle.reason(name, layer, "kMxfp4Static", key)


def _by_activation(names: list[str], own: dict[str, str], wanted: str | None) -> list[str]:
    plain = [name for name in names if name not in own]
    if wanted is None:
        return plain or list(names)
    matching = [name for name in names if own.get(name) == wanted or name == "EMULATION"]
    return matching + [name for name in plain if name not in matching]
