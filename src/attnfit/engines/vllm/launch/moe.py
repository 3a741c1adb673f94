"""Which kernel runs a model's experts, and what the engine says when none does.

A *fused MoE layer* asks its quantisation scheme's oracle (vllm/model_executor/layers/fused_moe/oracle, 0.33.0) for a
backend; each backend is one or more *experts classes* with predicates. Both are data (`kernel_facts/moe_kernels.json`);
the rules that do not fit stand here as small named functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from attnfit.core import Capability
from attnfit.engines.vllm.launch import kernel_facts
from attnfit.engines.vllm.launch.state import Unknown


class MoeParallel(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's FusedMoEParallelConfig on rank 0 (fused_moe/config.py:1015); field order is its repr's."""

    tp_size: int = 1
    pcp_size: int = 1
    dp_size: int = 1
    ep_size: int = 1
    tp_rank: int = 0
    pcp_rank: int = 0
    dp_rank: int = 0
    ep_rank: int = 0
    sp_size: int = 1
    use_ep: bool = False
    all2all_backend: str = "allgather_reducescatter"
    enable_eplb: bool = False

    @property
    def all2all(self) -> str:
        """The communication kernels in use, "none" if the layer needs none."""
        if not (self.use_ep and (self.dp_size > 1 or self.pcp_size > 1 or self.sp_size > 1)):
            return "none"
        return _ALL2ALL.get(self.all2all_backend, "other")

    @property
    def batched(self) -> bool:
        return self.all2all in ("deepep_ll", "nixl_ep")

    def __str__(self) -> str:
        return f"FusedMoEParallelConfig({', '.join(f'{k}={v!r}' for k, v in msgspec.structs.asdict(self).items())})"


_ALL2ALL = {
    "allgather_reducescatter": "ag_rs",
    "deepep_high_throughput": "deepep_ht",
    "deepep_low_latency": "deepep_ll",
    "deepep_v2": "deepep_v2",
    "flashinfer_all2allv": "fi_two_sided",
    "flashinfer_nvlink_two_sided": "fi_two_sided",
    "flashinfer_nvlink_one_sided": "fi_one_sided",
    "nixl_ep": "nixl_ep",
    "moonep": "moonep",
    "mori_high_throughput": "mori",
    "mori_low_latency": "mori",
}


class MoeLayer(msgspec.Struct, frozen=True, kw_only=True):
    """One fused MoE layer as its constructor is called (vLLM's FusedMoEConfig)."""

    num_experts: int
    hidden: int
    intermediate: int  # whole
    parallel: MoeParallel
    dtype: str
    activation: str = "silu"
    routing: str = "RenormalizeNaive"  # RoutingMethodType
    logits: str | None = None  # router logits dtype; None: the model's
    has_bias: bool = False
    lora: bool = False
    hash_routing: bool = False
    decomposed: bool = False  # routes are adjusted after routing
    swiglu: tuple[float | None, float | None, float | None] = (None, None, None)  # limit, alpha, beta
    moe_backend: str = "auto"
    batch_invariant: bool = False

    @property
    def per_rank(self) -> int:
        """Intermediate size on one rank. The engine asserts that it divides (config.py:1349)."""
        return self.intermediate // self.parallel.tp_size

    @property
    def batched(self) -> bool:
        return self.parallel.batched


# Numbers of RoutingMethodType: an IntEnum prints as its number
_ROUTING = {
    "Default": 0, "Renormalize": 1, "DeepSeekV3": 2, "Llama4": 3, "RenormalizeNaive": 4, "TopK": 5, "SigmoidRenorm": 6,
    "MiniMax2": 7, "Sigmoid": 8, "Unspecified": 9, "DeepseekV4": 100, "Custom": 101, "Simulated": 102,
}  # fmt: skip


def in_capabilities(cap: Capability, tokens: list[str]) -> bool:
    """True if `cap` is named by one of "any", "none", "9.0", "10.x", ">=8.9"."""
    for token in tokens:
        if token == "any" or token == str(cap) or token == f"{cap.major}.x":
            return True
        if token.startswith(">=") and cap >= Capability.parse(token[2:]):
            return True
    return False


def humming_first(order: Sequence[str], cap: Capability) -> list[str]:
    """The list with Humming right before the first Marlin on SM90, where both are in it (humming/priority.py:30)."""
    names = list(order)
    humming, marlin = (
        next((i for i, name in enumerate(names) if kind in name.lower()), None) for kind in ("humming", "marlin")
    )
    if cap == (9, 0) and humming is not None and marlin is not None and marlin < humming:
        names.insert(marlin, names.pop(humming))
    return names


class Oracle:
    """One quantisation scheme's choice of experts on one GPU."""

    def __init__(self, name: str, capability: Capability, env: Mapping[str, bool]) -> None:
        table = kernel_facts.load("moe_kernels")
        self.name, self.cap, self.env = name, capability, env
        self.rules: dict[str, Any] = table["oracles"][name]
        self.experts: dict[str, Any] = table["experts"]
        self.keys: dict[str, str] = table["quant_keys"]

    def order(self) -> list[str]:
        """The automatic priority list."""
        return humming_first(self.rules["order"], self.cap)

    def reason(self, backend: str, layer: MoeLayer, weight: str | None, activation: str | None) -> str | None:
        """None if one of the backend's classes takes the layer, else why the last one does not."""
        reason: str | None = None
        for name in self.rules["backends"][backend]:
            reason = self.why_not(name, layer, weight, activation)
            if reason is None:
                return None
        return reason

    def why_not(self, name: str, layer: MoeLayer, weight: str | None, activation: str | None) -> str | None:
        """`is_supported_config` of one experts class (fused_moe/modular_kernel.py:581)."""
        entry = self.experts[name]
        if "unknown" in entry:
            raise Unknown(entry["unknown"])
        extras = entry.get("extra", ())
        for extra in extras:
            if extra.endswith("_first") and (reason := self._extra(extra, layer, weight, activation)):
                return reason
        parts = [self.experts[part] for part in entry.get("all_of", ())] or [entry]
        reason = self._base(parts, layer, weight, activation)
        if reason is not None:
            return reason
        for extra in extras:
            if not extra.endswith("_first") and (reason := self._extra(extra, layer, weight, activation)):
                return reason
        return None

    def _base(
        self, parts: list[dict[str, Any]], layer: MoeLayer, weight: str | None, activation: str | None
    ) -> str | None:
        p, says = layer.parallel, "kernel does not support "
        head, monolithic = parts[0], bool(parts[0].get("monolithic"))
        if not all(self._device(part) for part in parts):
            return f"{says}current device cuda{head.get('device_note', '')}"
        if layer.activation.endswith("_no_mul") and not all(part["no_mul"] for part in parts):
            return f"{says}no act_and_mul MLP layer"
        if not all(layer.activation in part["activations"] for part in parts):
            return f"{says}MoEActivation.{layer.activation.upper()} activation"
        if not all(self.takes_scheme(part, weight, activation) for part in parts):
            return f"{says}quantization scheme {self.key(weight)}x{self.key(activation)}"
        if not all(p.all2all in part["all2all"] and not _deployed(p, part["refuses"]) for part in parts):
            return f"{says}parallel config {p}"
        if layer.hash_routing and monolithic and not head.get("hash_routing"):
            return f"{says}hash routing"
        if layer.decomposed and monolithic:
            return f"{says}routes adjusted after routing"
        if not self._routes(head, layer, weight):
            return f"{says}routing method {_ROUTING[layer.routing]}"
        logits = layer.logits or layer.dtype
        if not self._logits(head, logits, layer.routing):
            return f"{says}router logits dtype torch.{logits}"
        if layer.hidden % int(head.get("shape", 1)):
            return f"{says}{layer.hidden} hidden dim is not supported"
        batched = layer.batched or (layer.moe_backend == "batched_triton" and self.name == "unquantized")
        wanted = "batched_experts" if batched else "standard"
        if head["format"] != wanted:
            return f"{says}({wanted!r},) activation format"  # the enum's values are one-tuples
        if layer.batch_invariant and not head.get("batch_invariant"):
            return f"{says}batch invariance"
        if layer.lora and not head.get("lora"):
            return f"{says}LoRA"
        return None

    def key(self, name: str | None) -> str:
        if name is None:
            return "None"
        family, _, size = name.partition(":")
        return self.keys[family].format(size) if size else self.keys[name]

    def _device(self, part: dict[str, Any]) -> bool:
        needs = part.get("needs")
        if needs is not None and not self.env.get(needs, needs not in NOT_INSTALLED):
            return False
        return in_capabilities(self.cap, part["device"])

    def takes_scheme(self, part: dict[str, Any], weight: str | None, activation: str | None) -> bool:
        block = None if weight is None else weight.partition(":")[0]  # "fp8block:64" is one of a family
        for rule in part["schemes"]:
            if not in_capabilities(self.cap, rule["when"]):
                continue
            if rule.get("everything") or weight in rule.get("weights", ()):
                return True
            if [weight, activation] in rule.get("pairs", ()) or [block, activation] in rule.get("pairs", ()):
                return True
        return False

    @staticmethod
    def _routes(part: dict[str, Any], layer: MoeLayer, weight: str | None) -> bool:
        routing = part.get("routing")
        return routing is None or layer.routing in routing.get(weight, routing["*"])

    @staticmethod
    def _logits(part: dict[str, Any], logits: str, routing: str) -> bool:
        if part.get("logits_rule") == "float32_deepseek_only":
            return logits != "float32" or routing == "DeepSeekV3"
        return logits in part.get("logits", (logits,))

    def _extra(self, name: str, layer: MoeLayer, weight: str | None, activation: str | None) -> str | None:
        if name == "padded_experts_1024" and -(-layer.num_experts // 32) * 32 >= 1024:
            return "kernel's moe_align_block_size requires fewer than 1024 padded experts"
        if name == "experts_2048" and layer.num_experts > 2048:
            return f"FlashInfer TRTLLM routing supports at most 2048 experts, but got {layer.num_experts}"
        if name == "trtllm_swiglu" and any(value is not None for value in layer.swiglu):
            block = (weight, activation) in (
                ("kMxfp8Static", "kMxfp8Dynamic"),
                ("kFp8Static128BlockSym", "kFp8Dynamic128Sym"),
            )
            if not block or layer.activation not in ("silu", "swigluoai_uninterleave"):
                return (
                    "the TRTLLM FP8 kernels apply the SwiGLU alpha/beta/clamp parameters only for block-scaled weights "
                    f"with a SwiGLU activation, but got {self.key(weight)} and MoEActivation.{layer.activation.upper()}"
                )
        if name == "no_lora_first" and layer.lora:
            return "kernel does not support LoRA"
        if name == "no_bias_first" and layer.has_bias:
            return "kernel does not support bias"
        if name == "bf16_first" and layer.dtype != "bfloat16":
            return f"kernel does not support torch.{layer.dtype} input/output dtype"
        if name == "quark_first" and not self.env.get("quark", False):
            return "kernel requires amd-quark package"
        if name == "b12x_first":
            raise_unknown_b12x(self.cap)
        if name.startswith("humming_"):
            wanted = "grouped_contiguous" if layer.parallel.use_ep else "indexed"
            has = name.removeprefix("humming_")
            if wanted != has:
                return f"preferred gemm type {wanted} != supported gemm type {has}"
        return None


# Packages that `pip install vllm==0.33.0` does not bring, and what a variable must turn on
NOT_INSTALLED = ("hpc", "b12x", "quark", "flashinfer_moe_int4")


def raise_unknown_b12x(cap: Capability) -> None:
    if cap.major == 12:
        raise Unknown("whether the b12x package is installed and its experts kernel takes this layer")


def _deployed(p: MoeParallel, refuses: list[str]) -> bool:
    """One of the deployments that the class does not take."""
    facts = {
        "eplb": p.enable_eplb,
        "sequence_parallel": p.sp_size > 1,
        "dp": p.dp_size > 1,
        "ep": p.use_ep or p.ep_size > 1,
    }
    return any(facts[name] for name in refuses)
