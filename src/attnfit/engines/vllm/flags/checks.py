"""The checks that the release's config classes run on themselves, each as one small named function.

A check of the engine is known by class, method and the digest of its syntax tree, which the flag table records. A
digest that is not listed here makes the answer unknown, naming file and line: somebody changed that check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from attnfit.engines.vllm.flags.convert import EngineError
from attnfit.engines.vllm.launch.state import Unknown


class SchemaError(Exception):
    """pydantic would refuse; `path` says where in the object."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = path, why


class Rule(NamedTuple):
    kind: str  # before_all | field | field_after | whole
    fields: tuple[str, ...]
    run: Callable[[Any, Mapping[str, Any], str], None]
    change: Callable[[Any, str, Mapping[str, Any]], tuple[Any, bool]]


Whole = Callable[[Mapping[str, Any]], str]


def find(cls: str, check: Mapping[str, Any], path: str) -> Rule:
    """The rule for one recorded check. Raises Unknown when its digest is not one we have read."""
    name, digest, where = check["name"], check["digest"], check["where"]
    fields = tuple(check["fields"])
    if check["kind"] == "field" and check["mode"] == "wrap" and name == "_skip_none_validation":
        return Rule("field", fields, _nothing, lambda v, at, classes: (v, v is None))
    entry = KNOWN.get((cls, name))
    if entry is None or digest not in entry[0]:
        def unsure(value: Any, spec: Mapping[str, Any], at: str) -> None:
            raise Unknown(f"{at}: the release's own check {cls}.{name} ({where}) is not known")

        def unsure_field(value: Any, at: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
            raise Unknown(f"{at}: the release's own check {cls}.{name} ({where}) is not known")

        kind = "field" if check["kind"] == "field" else "whole"
        return Rule(kind, fields, unsure, unsure_field)
    what = entry[1]
    if check["kind"] == "field" and check["mode"] == "before":
        return Rule("field", fields, _nothing, what)  # type: ignore[arg-type]
    kind = "field_after" if check["kind"] == "field" else "before_all" if check["mode"] == "before" else "whole"

    def run(value: Any, spec: Mapping[str, Any], at: str) -> None:
        why = what(value)  # type: ignore[call-arg]
        if why:
            raise SchemaError(at, f"Value error, {why}")

    return Rule(kind, fields, run, _same)


def _nothing(value: Any, spec: Mapping[str, Any], path: str) -> None:
    return None


def _same(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    return value, False


# ---- before a field's own type is checked: (value, done) -------------------------------------------------------


def _member(enum: str, auto: bool) -> Callable[[Any, str, Mapping[str, Any]], tuple[Any, bool]]:
    """A member name in any case; `auto` is no choice. A plain enum raises KeyError, ours with a metaclass ValueError."""

    def change(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
        if not isinstance(value, str):
            return value, False
        if auto and value.lower() == "auto":
            return None, True
        spec = classes.get(enum, {})
        if "enum" not in spec:
            raise Unknown(f"{path}: the members of {enum} are not known for this release")
        if value.upper() not in spec["enum"]:
            if spec.get("meta"):
                raise SchemaError(path, f"Value error, Unknown {enum} {value!r}")
            raise EngineError(f"KeyError: {value.upper()!r}")
        return value.upper(), True

    return change


def _mode(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    if not isinstance(value, str):
        return value, False
    members = classes.get("CompilationMode", {}).get("enum", {})
    if value.upper() not in members:
        raise SchemaError(path, f"Value error, Invalid compilation mode: {value}. "
                                f"Valid modes are: {', '.join(members)}")
    return members[value.upper()], True


def _per_kind(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    if not isinstance(value, dict):
        return value, False
    for kind, backend in value.items():
        if kind not in KV_SPEC_KINDS:
            raise Unknown(f"{path}: the KV cache group kind {kind!r} is not known")
        if isinstance(backend, str):
            _member("AttentionBackendEnum", auto=False)(backend, f"{path}.{kind}", classes)
    return value, True


KV_SPEC_KINDS = {"full_attention", "mla_attention", "sliding_window", "sliding_window_mla", "mamba",
                 "chunked_local_attention", "cross_attention", "encoder_only_attention"}


def _pass_config(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    # PassConfig(**value) inside the validator: a wrong key is a ValidationError, hence a ValueError, all the same
    return value, False


def _lower_underscore(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    return (value.lower().replace("-", "_") if isinstance(value, str) else value), False


def _list_of_str(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    if isinstance(value, str):
        return value.replace(" ", "").split(","), False
    if not isinstance(value, (list, dict)):
        raise EngineError(f"TypeError: {type(value).__name__!r} object is not iterable")
    if not all(isinstance(v, str) for v in value):
        raise SchemaError(path, "Assertion failed")
    return value, False


# ---- after all fields: "" or why not ---------------------------------------------------------------------------


def _kv_transfer(v: Mapping[str, Any]) -> str:
    if v["kv_connector"] is not None and v["kv_role"] is None:
        return "Please specify kv_role when kv_connector is set"
    return ""


def _ec_transfer(v: Mapping[str, Any]) -> str:
    if v["ec_connector"] is not None and v["ec_role"] is None:
        return "Please specify ec_role when ec_connector is set"
    return ""


def _fine(v: Any) -> str:
    return ""


def _save_format(value: Any) -> str:
    return "" if value in ("binary", "unpacked") else "compile_cache_save_format must be 'binary' or 'unpacked'"


def _eplb(v: Mapping[str, Any]) -> str:
    if v.get("use_async") and v.get("policy") != "default":
        return "Async EPLB is only supported with the default policy."
    if v.get("log_balancedness") and v.get("log_balancedness_interval", 1) <= 0:
        return "log_balancedness_interval must be greater than 0."
    return ""


def _eplb_communicator(v: Mapping[str, Any]) -> str:
    if v.get("use_async") and v.get("communicator") in ("torch_nccl", "pynccl"):
        return f"{v['communicator']} communicator is incompatible with async EPLB"
    return _eplb(v)


def _ec_manager(v: Mapping[str, Any]) -> str:
    if v["encoder_cache_manager_cls"] is None and v["manager_config"]:
        return "manager_config requires encoder_cache_manager_cls to be set."
    return ""


def _engram(v: Mapping[str, Any]) -> str:
    if v.get("dp_shared_memory") and not v.get("cpu_offload"):
        return "dp_shared_memory requires cpu_offload=True"
    if v.get("use_thp") and (not v.get("cpu_offload") or v.get("dp_shared_memory")):
        return "use_thp requires cpu_offload=True and dp_shared_memory=False"
    return ""


def _structured(v: Mapping[str, Any]) -> str:
    if v["disable_any_whitespace"] and v["backend"] not in ("xgrammar", "guidance"):
        return "disable_any_whitespace is only supported for xgrammar and guidance backends."
    if v["disable_additional_properties"] and v["backend"] != "guidance":
        return "disable_additional_properties is only supported for the guidance backend."
    return ""


def _minimax_indexer(v: Mapping[str, Any]) -> str:
    if v.get("minimax_m3_indexer_cp") and v.get("indexer_kv_dtype") not in ("auto", "bf16", "fp8", "fp8_e4m3"):
        return "minimax_m3_indexer_cp requires a bf16 or fp8 e4m3 index cache"
    return ""


KNOWN: dict[tuple[str, str], tuple[frozenset[str], Any]] = {
    ("AttentionConfig", "validate_backend_before"):
        (frozenset(("ff1766636bd3", "d9addac506d0")), _member("AttentionBackendEnum", auto=True)),
    ("AttentionConfig", "validate_mla_prefill_backend_before"):
        (frozenset(("cbc7c6cb8216",)), _member("MLAPrefillBackendEnum", auto=False)),
    ("AttentionConfig", "validate_backend_per_kind_before"): (frozenset(("b7a3c91e2706",)), _per_kind),
    ("AttentionConfig", "__post_init__"): (frozenset(("91d15be4f545",)), _minimax_indexer),
    ("CompilationConfig", "validate_mode_before"): (frozenset(("2126f30faa13", "2575484f7b55")), _mode),
    ("CompilationConfig", "validate_cudagraph_mode_before"):
        (frozenset(("2e75eec0ee22",)), _member("CUDAGraphMode", auto=False)),
    ("CompilationConfig", "validate_pass_config_before"): (frozenset(("21d28a3e2f38",)), _pass_config),
    ("CompilationConfig", "validate_compile_cache_save_format"): (frozenset(("cb67c0a4edf1",)), _save_format),
    ("KVTransferConfig", "__post_init__"): (frozenset(("02b456ce6c33",)), _kv_transfer),
    ("KVEventsConfig", "__post_init__"): (frozenset(("1d6acb6416a7",)), _fine),
    ("ECTransferConfig", "__post_init__"): (frozenset(("e536d778d487",)), _ec_transfer),
    ("EncoderCacheManagerConfig", "__post_init__"): (frozenset(("ee474ab8557c",)), _ec_manager),
    ("EPLBConfig", "_validate_eplb_config"): (frozenset(("d57a2e79f62b", "e003964214fb")), _eplb_communicator),
    ("EngramConfig", "_validate_shared_memory"): (frozenset(("50f3f328d558",)), _engram),
    ("IrOpPriorityConfig", "_to_list_str"): (frozenset(("da44cc6d9e07",)), _list_of_str),
    ("KernelConfig", "_normalize_moe_backend"): (frozenset(("73fe643eb789",)), _lower_underscore),
    ("KernelConfig", "_normalize_linear_backend"): (frozenset(("7ddf301158c8",)), _lower_underscore),
    ("KernelConfig", "_normalize_sparse_indexer_topk_backend"): (frozenset(("59a2803385aa",)), _lower_underscore),
    ("StructuredOutputsConfig", "_validate_structured_output_config"):
        (frozenset(("4777963072b4", "e025f9b5ddd1")), _structured),
}
