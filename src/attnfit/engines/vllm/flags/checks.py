"""The checks that the release's config classes run on themselves, each as one small named function.

A check of the engine is known by class, method and the digest of its syntax tree, which the flag table records. A
digest that is not listed here makes the answer unknown, naming file and line: somebody changed that check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from attnfit.engines.vllm.flags.convert import EngineError, RaisedTypeError
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
    what = KNOWN.get((cls, name, digest))
    if what is None:
        def unsure(value: Any, spec: Mapping[str, Any], at: str) -> None:
            raise Unknown(f"{at}: the release's own check {cls}.{name} ({where}) is not known")

        def unsure_field(value: Any, at: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
            raise Unknown(f"{at}: the release's own check {cls}.{name} ({where}) is not known")

        kind = "field" if check["kind"] == "field" else "whole"
        return Rule(kind, fields, unsure, unsure_field)
    if check["kind"] == "field" and check["mode"] == "before":
        return Rule("field", fields, _nothing, what)
    kind = "field_after" if check["kind"] == "field" else "before_all" if check["mode"] == "before" else "whole"

    def run(value: Any, spec: Mapping[str, Any], at: str) -> None:
        why = what(value)
        if why:
            raise SchemaError(at, f"Value error, {why}")

    return Rule(kind, fields, run, _same)


def _nothing(value: Any, spec: Mapping[str, Any], path: str) -> None:
    return None


def _same(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    return value, False


# ---- before a field's own type is checked: (value, done) -------------------------------------------------------


def _member(enum: str, auto: bool) -> Callable[[Any, str, Mapping[str, Any]], tuple[Any, bool]]:
    """A member name in any case; `auto` is no choice. A plain enum raises KeyError, one with a metaclass ValueError."""

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
    kinds = classes.get("KVCacheSpecKind", {}).get("enum")
    if kinds is None:
        raise Unknown(f"{path}: the KV cache group kinds are not known for this release")
    for kind, backend in value.items():
        if kind not in kinds.values():
            raise SchemaError(path, f"Value error, Unknown KV cache group kind {kind!r} in backend_per_kind. "
                                    f"Valid kinds are: {', '.join(sorted(kinds.values()))}.")
        if isinstance(backend, str):
            _member("AttentionBackendEnum", auto=False)(backend, f"{path}.{kind}", classes)
    return value, True


def _pass_config(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    # PassConfig(**value) inside the validator: a wrong key is a ValidationError, hence a ValueError, all the same
    return value, False


def _lower_underscore(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    return (value.lower().replace("-", "_") if isinstance(value, str) else value), False


def _list_of_str(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    if isinstance(value, str):
        return value.replace(" ", "").split(","), False
    if not isinstance(value, (list, dict)):
        raise RaisedTypeError
    if not all(isinstance(v, str) for v in value):
        raise SchemaError(path, "Assertion failed")
    return value, False


def _spec_or_shorthand(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    if not isinstance(value, str):
        return value, False
    shorthands = _shorthands(path, classes)
    if value in shorthands:
        field = path.rpartition(".")[2]
        if field not in shorthands[value]:
            raise SchemaError(path, f"Value error, online shorthand {value!r} does not define a {field} spec")
        return value, True
    return {"weight": value}, False


def _targets(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    if value is None:
        return value, False
    if not isinstance(value, dict):
        raise RaisedTypeError
    shorthands = _shorthands(path, classes)
    for pattern, name in value.items():
        if not isinstance(name, str) or name not in shorthands:
            raise SchemaError(path, f"Value error, targets[{pattern}] = {name} is not a valid online shorthand name")
        if pattern.startswith("re:"):
            try:
                re.compile(pattern[3:])
            except re.error as e:
                raise SchemaError(path, f"Value error, targets key {pattern} is not a valid regex: {e}") from None
    return value, True


def _shorthands(path: str, classes: Mapping[str, Any]) -> Mapping[str, Any]:
    names = classes.get("_ONLINE_SHORTHANDS", {}).get("names")
    if names is None:
        raise Unknown(f"{path}: the online shorthands are not known for this release")
    return names  # type: ignore[no-any-return]


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


def _compilation(v: Mapping[str, Any]) -> str:
    """All releases alike but for what `_COMPILATION_OPS` names; fields a release lacks count as unset."""
    ops = v.get("custom_ops") or []
    if v.get("mode") == 3 and v.get("backend") not in ("", "eager", "inductor"):
        return f"Invalid backend for piecewise compilation: {v.get('backend')}"
    for name in ("encoder_cudagraph_token_budgets", "decoder_replay_cudagraph_capture_sizes"):
        if any(n <= 0 for n in v.get(name) or ()):
            return f"All {name} must be positive"
    if v.get("cudagraph_mm_encoder"):
        for name in ("encoder_cudagraph_max_images_per_batch", "encoder_cudagraph_max_vision_items_per_batch",
                     "encoder_cudagraph_max_frames_per_batch"):
            if (v.get(name) or 0) < 0:
                return f"{name} must be non-negative"
    if v.get("inductor_passes"):
        if any(not isinstance(p, str) for p in v["inductor_passes"].values()):
            return "a pass should be callable or a qualified name"
        if any("." not in p for p in v["inductor_passes"].values()):
            return "Empty module name"
        raise Unknown("CompilationConfig.inductor_passes: importing a pass is not tried here")
    if sum(op in ("all", "none") for op in ops) > 1:
        return "custom_ops can contain only one base mode: 'all' or 'none'"
    return ""


def _compilation_old(v: Mapping[str, Any]) -> str:
    for op in v.get("custom_ops") or []:
        if not op:
            raise EngineError("IndexError: string index out of range")
        if op[0] not in "+-" and op not in ("all", "none"):
            return f"Invalid syntax {op!r} for custom op, must be 'all', 'none', '+op' or '-op'"
    if v.get("level") is not None and v.get("mode") is None:
        v = {**v, "mode": v["level"]}
    return _compilation(v)


def _compilation_new(v: Mapping[str, Any]) -> str:
    ops = v.get("custom_ops") or []
    for op in ops:
        if op not in ("all", "none") and (len(op) < 2 or op[0] not in "+-"):
            return f"Invalid syntax {op!r} for custom op, must be 'all', 'none', '+op' or '-op'"
    both = sorted({o[1:] for o in ops if o[0] == "+"} & {o[1:] for o in ops if o[0] == "-"})
    if both:
        return f"custom_ops cannot both enable and disable the same operation(s): {', '.join(both)}"
    return _compilation(v)


def _pooler(v: Mapping[str, Any]) -> str:
    for old, new in (("logit_bias", "logit_mean"), ("logit_scale", "logit_sigma")):
        if v.get(old) is not None and v.get(new) is not None:
            return f"Cannot set both `{old}` and `{new}`."
    if v.get("logit_scale") == 0 or v.get("logit_sigma") == 0:
        return "logit_sigma cannot be 0 (division by zero)"
    return _pooling_type(v)


def _pooling_type(v: Mapping[str, Any]) -> str:
    for other in ("seq_pooling_type", "tok_pooling_type"):
        if v.get("pooling_type") and v.get(other) is not None:
            return f"Cannot set both `pooling_type` and `{other}`"
    return ""


def _pooler_removed(value: Any) -> str:
    if isinstance(value, dict) and "normalize" in value:
        return "Parameter `normalize` was removed; use `use_activation` instead."
    return ""  # a removed task is no longer among the values of `task` either


def _uri(path: Any) -> bool:
    return isinstance(path, str) and "://" in path


def _profiler(v: Mapping[str, Any]) -> str:
    kind, folder, proton = v.get("profiler"), v.get("torch_profiler_dir"), v.get("proton_profiler_dir")
    acts = v.get("torch_profiler_activities")
    if acts is not None and kind != "torch":
        return "torch_profiler_activities is only applicable when profiler is set to 'torch'"
    if acts is not None and len(acts) != len(set(acts)):
        return "torch_profiler_activities must not contain duplicates"
    if folder and kind != "torch":
        return "torch_profiler_dir is only applicable when profiler is set to 'torch'"
    if kind == "torch" and not folder:
        return "torch_profiler_dir must be set when profiler is 'torch'"
    if v.get("capture_torch_profiler") and kind != "torch":
        return "capture_torch_profiler is only applicable when profiler is set to 'torch'"
    return _proton(v, kind, proton)


def _proton(v: Mapping[str, Any], kind: Any, folder: Any) -> str:
    plain = {"proton_profiler_dir": "", "proton_context": "shadow", "proton_data": "tree", "proton_backend": None,
             "proton_mode": None, "proton_hook": None, "proton_output_format": None, "proton_graph_attribution": False}
    changed = [name for name, default in plain.items() if name in v and v[name] != default]
    if kind != "proton":
        return f"{', '.join(changed)} only applicable when profiler is set to 'proton'" if changed else ""
    if not folder:
        return "proton_profiler_dir must be set when profiler is 'proton'"
    if _uri(folder):
        return "proton_profiler_dir must be a local directory"
    shape, data = v.get("proton_output_format"), v.get("proton_data")
    if v.get("proton_graph_attribution"):
        if data != "tree":
            return "proton_graph_attribution requires proton_data='tree'"
        if str(v.get("proton_mode") or "").split(":", 1)[0].lower() == "periodic_flushing":
            return "proton_graph_attribution is incompatible with periodic_flushing"
    if shape == "chrome_trace" and data != "trace":
        return "chrome_trace output requires proton_data='trace'"
    if shape in ("hatchet", "hatchet_msgpack") and data != "tree":
        return f"{shape} output requires proton_data='tree'"
    return ""


def _quantization(v: Mapping[str, Any]) -> str:
    if v.get("targets") is not None and (v.get("linear") is not None or v.get("moe") is not None):
        return "quantization_config.targets is mutually exclusive with quantization_config.linear/moe"
    return ""


def _structured_old(v: Mapping[str, Any]) -> str:
    if v.get("reasoning_parser"):
        raise Unknown("StructuredOutputsConfig.reasoning_parser: the registered parsers are not known here")
    return _structured(v)


def _cudnn_prefill(v: Mapping[str, Any]) -> str:
    if v.get("mla_prefill_backend") is None and v.get("use_cudnn_prefill"):
        return "The cuDNN MLA prefill backend has been removed."
    return ""


def _fp4_indexer(v: Mapping[str, Any]) -> str:
    if v.get("use_fp4_indexer_cache") and v.get("indexer_kv_dtype") not in ("auto", "mxfp4"):
        return f"use_fp4_indexer_cache=True conflicts with indexer_kv_dtype={v.get('indexer_kv_dtype')!r}."
    return ""


def _minimax_indexer(v: Mapping[str, Any]) -> str:
    if v.get("minimax_m3_indexer_cp") and v.get("indexer_kv_dtype") not in ("auto", "bf16", "fp8", "fp8_e4m3"):
        return "minimax_m3_indexer_cp requires a bf16 or fp8 e4m3 index cache"
    return ""


Entry = tuple[frozenset[str], Any]


def _on(digests: str, rule: Any) -> Entry:
    return frozenset(digests.split()), rule


# (class, method) -> the digests read, per rule. Several rules may share a method over the releases.
_READ: tuple[tuple[str, str, Entry], ...] = (
    ("AttentionConfig", "validate_backend_before", _on("d9d977c4e3aa", _member("AttentionBackendEnum", auto=False))),
    ("AttentionConfig", "validate_backend_before", _on("ad6b70e3716a", _member("AttentionBackendEnum", auto=True))),
    ("AttentionConfig", "validate_mla_prefill_backend_before",
     _on("41105d540965", _member("MLAPrefillBackendEnum", auto=False))),
    ("AttentionConfig", "validate_backend_per_kind_before", _on("6c830f647b44", _per_kind)),
    # 0.13 and 0.14: fills fields from VLLM_* variables, which the configuration stage reads
    ("AttentionConfig", "__post_init__", _on("8fff1c6bf0a0 6a2efc8d0a48", _fine)),
    ("AttentionConfig", "__post_init__", _on("0998d370e2ae", _cudnn_prefill)),
    ("AttentionConfig", "__post_init__", _on("d6fbe2ffe71e bb5795aa2cbb", _fp4_indexer)),
    ("AttentionConfig", "__post_init__", _on("1a1afac181c3", _minimax_indexer)),
    ("CompilationConfig", "validate_mode_before", _on("3f29588c0fff 3f29588c0fff", _mode)),
    ("CompilationConfig", "validate_cudagraph_mode_before",
     _on("22497c4e2c50", _member("CUDAGraphMode", auto=False))),
    ("CompilationConfig", "validate_pass_config_before", _on("1348155580c0", _pass_config)),
    ("CompilationConfig", "validate_compile_cache_save_format", _on("95822621a1c2", _save_format)),
    ("CompilationConfig", "__post_init__",
     _on("96d24df54de5 e7c5ba99d185 ac69e803b8e6 f65c29403483 488bca568e4d da974eac67d6 31acbfb6b51e ee8391370668",
         _compilation_old)),
    ("CompilationConfig", "__post_init__", _on("7d1ae0930f06 8ddf0745960f", _compilation_new)),
    # only warns, or switches a fusion off
    ("PassConfig", "__post_init__",
     _on("36e344a4a4ff 4487a7cfd5ca 92e6024bbb0f 562cd83bc345 fd883b4e62d6 2c4bd500801c 4aa55903ce9c d089e9faeb0b "
         "0df18d9af26b", _fine)),
    ("KVTransferConfig", "__post_init__", _on("166b5999302e", _kv_transfer)),
    ("KVEventsConfig", "__post_init__", _on("48ccb43857d9", _fine)),
    ("ECTransferConfig", "__post_init__", _on("17da23c50ba2", _ec_transfer)),
    ("EncoderCacheManagerConfig", "__post_init__", _on("a362d5be9a48", _ec_manager)),
    ("EPLBConfig", "_validate_eplb_config", _on("396c18948e28", _eplb)),
    ("EPLBConfig", "_validate_eplb_config", _on("5d17bd89c5c4", _eplb_communicator)),
    ("EngramConfig", "_validate_shared_memory", _on("031dd05ecfd6 cbad4613aa23", _engram)),
    ("IrOpPriorityConfig", "_to_list_str", _on("cb71113a896d", _list_of_str)),
    ("KernelConfig", "_normalize_moe_backend", _on("26a9d00d372e", _lower_underscore)),
    ("KernelConfig", "_normalize_linear_backend", _on("21fef25b72fb", _lower_underscore)),
    ("KernelConfig", "_normalize_sparse_indexer_topk_backend", _on("22aaa11c82a3", _lower_underscore)),
    ("PoolerConfig", "__post_init__", _on("da9d2e7bc36c", _fine)),
    ("PoolerConfig", "__post_init__", _on("f8e4e10f4b96 91b8ace8b616", _pooling_type)),
    ("PoolerConfig", "__post_init__", _on("878ab8a2e5df 37d98565d58d", _pooler)),
    ("PoolerConfig", "reject_removed_parameters", _on("382b7e8e9d9d", _pooler_removed)),
    ("ProfilerConfig", "_validate_profiler_config",
     _on("dcfa6bbf9a1f 42f6e476dd05 58220bd902ab 32c3f42a2b1b 59861f070df7 b8b0d85d3936", _profiler)),
    ("QuantizationConfigArgs", "_coerce_spec", _on("633442573d32", _spec_or_shorthand)),
    ("QuantizationConfigArgs", "_validate_targets", _on("0a10056d4d67", _targets)),
    ("QuantizationConfigArgs", "_validate_targets_exclusivity", _on("9099bdb81aa1", _quantization)),
    ("StructuredOutputsConfig", "_validate_structured_output_config", _on("863d94135a48", _structured_old)),
    ("StructuredOutputsConfig", "_validate_structured_output_config", _on("72a003d68646 ceff7cc431db", _structured)),
)
KNOWN: dict[tuple[str, str, str], Any] = {
    (cls, name, digest): rule for cls, name, (digests, rule) in _READ for digest in digests
}
