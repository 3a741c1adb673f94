"""What a quantisation method's config class demands of the checkpoint's settings before anything is built.

Each class's `from_config` and `__init__` in vllm/model_executor/layers/quantization (0.12.0 to 0.33.0 read). The keys
it cannot do without and the values it takes are in the release's table (`learn.quant_tables`); what it says is here, by
the class's name, which tells the variants of the releases apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.launch.messages import assertion, plain
from attnfit.engines.vllm.launch.quant_modelopt import modelopt_fp4, modelopt_fp8, modelopt_mixed, modelopt_mxfp8
from attnfit.engines.vllm.launch.quant_read import Quant, Read
from attnfit.engines.vllm.launch.state import Unknown


def check_config(facts: Quant, entry: Quant, quant: Quant, capability: Capability) -> None:
    """Raise Refusal where the method's class does not take the checkpoint's settings, Unknown where that is not known.

    `entry` is the method's part of the release's table `facts`.
    """
    read = Read(facts, entry, quant, capability)
    name = str(entry.get("class"))
    if name == "TorchAOConfig":
        _torchao(read)
    read.need(entry.get("keys") or ())
    if name in _CLASSES:
        _CLASSES[name](read)


def _awq(read: Read) -> None:
    bits = read.first("w_bit", "bits")
    if bits != 4:
        raise read.refuse(f"Currently, only 4-bit weight quantization is supported for AWQ, but got {bits} bits.")


def _awq_marlin(read: Read) -> None:
    bits = read.first("bits")
    if bits != 4:
        raise read.refuse(f"Unsupported num_bits = {bits}. Supported num_bits = dict_keys([4])")
    if read.quant["group_size"] not in (-1, 32, 64, 128) or read.quant["zero_point"] is not True:
        raise Unknown("what AWQ's Marlin kernel says to this group size without zero points")


def _auto_awq(read: Read) -> None:
    bits = read.first("w_bit", "bits")
    if bits not in read.values["TYPE_MAP"]:
        raise read.refuse(unsupported_awq(bits, read.values["TYPE_MAP"]))


def unsupported_awq(bits: Any, supported: list[int]) -> str:
    """What AutoAWQConfig says to a number of bits that it does not know (auto_awq.py:190)."""
    return (
        f"Unsupported num_bits = {bits}. Supported: {', '.join(map(str, supported))}. For 8-bit AWQ, use Marlin "
        "backend by setting backend='awq:marlin' or backend='marlin'."
    )


def _gptq(read: Read) -> None:
    bits = read.quant["bits"]
    if bits not in (2, 3, 4, 8):
        text = f"Currently, only 2/3/4/8-bit weight quantization is supported for GPTQ, but got {bits} bits."
        raise read.refuse(text)


def _gptq_marlin(read: Read) -> None:
    quant = read.quant
    if "gptq_desc_act" in read.checks:
        _group_order(read)
    bits, symmetric = quant["bits"], quant["sym"]
    if [bits, symmetric] not in read.values["TYPE_MAP"]:
        raise read.refuse(f"Unsupported quantization config: bits={bits}, sym={symmetric}")


_NO_GROUP_ORDER = "GPTQ group activation ordering (desc_act=True) is no longer supported"


def _group_order(read: Read) -> None:
    """From 0.30 on (utils/gptq_utils.py:22). With one group for all inputs the order changes nothing."""
    quant = read.quant
    ordered, group = bool(quant.get("desc_act", False)), quant.get("group_size")
    advice = "Use a checkpoint with static activation ordering or desc_act=False."
    if ordered and group != -1:
        raise read.refuse(f"{_NO_GROUP_ORDER}. {advice}")
    rules = quant.get("dynamic")
    for pattern, rule in (rules or {}).items() if isinstance(rules, dict) else ():
        if pattern.startswith("-:") or not isinstance(rule, dict):
            continue
        if rule.get("desc_act", ordered) and rule.get("group_size", group) != -1:
            raise read.refuse(f"{_NO_GROUP_ORDER}, but is enabled by dynamic rule {pattern!r}. {advice}")


def _moe_wna16(read: Read) -> None:
    quant = read.quant
    kind = quant["quant_method"]
    awq = ("awq",) if read.facts["release"] == "0.12.0" else ("awq", "awq_marlin")
    if kind == "gptq":
        read.need([["sym"]])
        if "gptq_desc_act" in read.checks:
            _group_order(read)
    elif kind in awq:
        read.need([["zero_point"]])
        have, least = read.capability.major * 10 + read.capability.minor, 75
        if have < least:
            raise read.refuse(
                "The quantization method moe_wna16 + awq is not supported for the current GPU. Minimum capability: "
                f"{least}. Current capability: {have}."
            )
    else:
        raise read.refuse("moe_wna16 only support gptq and awq.")


def _inc(read: Read) -> None:
    quant = read.quant
    values, taken = read.values, quant
    kind = taken.get("data_type", "int")
    newest = "fp" in values["SUPPORTED_DTYPES"]  # since 0.29 blocks of FP8 as well
    kind = "fp" if newest and kind == "fp8" else kind
    form = taken.get("packing_format")
    if form is None:
        form = "auto_round:llm_compressor" if newest and "mx_fp" in kind else "auto_round:auto_gptq"
        form = "auto_round:fp8" if newest and kind == "fp" and isinstance(taken["group_size"], list) else form
    backend = next((taken[key] for key in ("backend", "vllm_backend") if key in taken), "auto")
    for name, value, known, free in (
        ("weight_bits", taken["bits"], values["SUPPORTED_BITS"], False),
        ("data_type", kind, values["SUPPORTED_DTYPES"], "mx_fp" in values["SUPPORTED_DTYPES"] and "mx_fp" in kind),
        ("packing_format", form, values["SUPPORTED_FORMATS"], False),
        ("backend", backend, values["SUPPORTED_BACKENDS"], False),
    ):
        if value not in known and not free:
            shown = f"{{{', '.join(map(repr, known))}}}"
            raise read.refuse(f"Unsupported {name}: {value}, currently only support {shown}.")
    if newest and kind == "int":
        if not isinstance(taken["group_size"], int):
            size = tuple(taken["group_size"]) if isinstance(taken["group_size"], list) else taken["group_size"]
            text = f"INC int quantization requires scalar group_size, but found group_size={size!r}."
            raise assertion("VllmConfig", text, read.where)
        whole = ["auto_round:auto_awq", "auto_round:auto_gptq"]
        if form not in whole:
            text = f"INC int quantization only supports packing_format in {whole!r}, but found packing_format={form!r}."
            raise assertion("VllmConfig", text, read.where)
    elif kind != "int":
        _inc_float(read, kind, form)


def _inc_float(read: Read, kind: str, form: str) -> None:
    """MXFP and FP8 by blocks: refused values are not spelt out here."""
    quant = read.quant
    mxfp = "mx_fp" in kind and quant["bits"] in (4, 8) and quant["group_size"] == 32
    blocks = kind == "fp" and quant["bits"] == 8 and isinstance(quant["group_size"], list)
    wanted = "auto_round:llm_compressor" if mxfp else "auto_round:fp8"
    if not (mxfp or blocks) or form != wanted or not quant.get("sym", True):
        raise Unknown(f"whether auto-round's {quant['bits']}-bit {kind} weights are taken in this form")


def _fp8(read: Read) -> None:
    quant = read.quant
    scheme = quant["activation_scheme"]
    if scheme not in ("static", "dynamic"):
        raise read.refuse(f"Unsupported activation scheme {scheme}")
    block = quant.get("weight_block_size")
    if isinstance(block, list) and len(block) != 2:
        text = f"The quantization block size of weight must have 2 dimensions, but got {len(block)} dimensions"
        raise read.refuse(text)
    if block is not None and scheme != "dynamic":
        raise read.refuse(
            "The block-wise quantization only supports dynamic activation scheme for now, but got "
            f"{scheme} activation scheme."
        )


def _compressed_tensors(read: Read) -> None:
    groups = read.quant.get("config_groups")
    if groups is None and "ct_needs_groups" in read.checks:
        raise plain("KeyError", "'config_groups'", read.where)
    for group in groups.values() if isinstance(groups, dict) and "ct_actorder" in read.checks else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        order = weights.get("actorder") if isinstance(weights, dict) else None
        order = {True: "group", False: None}.get(order, order) if isinstance(order, bool) else order
        if isinstance(order, str) and order.lower() in ("group", "dynamic"):
            raise read.refuse(
                f"Compressed-tensors group/dynamic activation ordering (actorder={order.lower()!r}) is no longer "
                "supported. Use a checkpoint with static/weight activation ordering or without activation ordering."
            )


def _fp_quant(read: Read) -> None:
    if "fp_quant_pseudo" in read.checks and read.quant["pseudoquantization"]:
        raise read.refuse("Pseudoquantization is not supported for vLLM")


def _bitsandbytes(read: Read) -> None:
    storage = read.quant.get("bnb_4bit_quant_storage") or "uint8"
    if storage != "uint8":
        raise read.refuse(f"Unsupported bnb_4bit_quant_storage: {storage}")


def _quark(read: Read) -> None:
    export = read.quant.get("export")
    if export is None:
        raise read.refuse("The export key should be included in the configurations of Quark quantized model")
    if isinstance(export, dict) and export.get("kv_cache_group"):
        layers = read.quant.get("layer_quant_config")
        if not isinstance(layers, dict) or not layers:
            raise Unknown("whether Quark's kv_cache_group and layer_quant_config agree")


def _torchao(read: Read) -> None:
    """No release of vLLM brings torchao."""
    text = "Please install torchao>=0.10.0 via `pip install torchao>=0.10.0` to use torchao quantization."
    raise plain("ImportError", text, read.where)


def _online(read: Read) -> None:
    text = (
        "OnlineQuantizationConfig does not support loading from a checkpoint config. Use quantization_config or "
        "quantization='fp8_per_tensor'/'fp8_per_block' instead."
    )
    raise plain("NotImplementedError", text, read.where)


_CLASSES: dict[str, Callable[[Read], None]] = {
    "AWQConfig": _awq,
    "AWQMarlinConfig": _awq_marlin,
    "AutoAWQConfig": _auto_awq,
    "GPTQConfig": _gptq,
    "GPTQMarlinConfig": _gptq_marlin,
    "AutoGPTQConfig": _gptq_marlin,
    "MoeWNA16Config": _moe_wna16,
    "AutoRoundConfig": _inc,
    "INCConfig": _inc,
    "Fp8Config": _fp8,
    "DeepseekV4FP8Config": _fp8,
    "FPQuantConfig": _fp_quant,
    "BitsAndBytesConfig": _bitsandbytes,
    "CompressedTensorsConfig": _compressed_tensors,
    "QuarkConfig": _quark,
    "OnlineQuantizationConfig": _online,
    "ModelOptFp8Config": modelopt_fp8,
    "ModelOptNvFp4Config": modelopt_fp4,
    "ModelOptMxFp8Config": modelopt_mxfp8,
    "ModelOptMixedPrecisionConfig": modelopt_mixed,
}
