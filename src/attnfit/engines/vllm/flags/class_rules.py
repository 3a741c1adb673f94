"""What the release's config classes check of themselves, one small function per check.

Before a field: `(value, path, classes) -> (value, done)`. After all fields: `(values) -> "" or why not`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from attnfit.engines.vllm.flags.convert import EngineError, RaisedTypeError
from attnfit.engines.vllm.launch.state import Unknown


class SchemaError(Exception):
    """pydantic would refuse; `path` says where in the object."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = path, why


# ---- before a field's own type is checked: (value, done) -------------------------------------------------------


def member(enum: str, auto: bool) -> Callable[[Any, str, Mapping[str, Any]], tuple[Any, bool]]:
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


def mode(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    if not isinstance(value, str):
        return value, False
    members = classes.get("CompilationMode", {}).get("enum", {})
    if value.upper() not in members:
        raise SchemaError(
            path, f"Value error, Invalid compilation mode: {value}. Valid modes are: {', '.join(members)}"
        )
    return members[value.upper()], True


def per_kind(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    if not isinstance(value, dict):
        return value, False
    kinds = classes.get("KVCacheSpecKind", {}).get("enum")
    if kinds is None:
        raise Unknown(f"{path}: the KV cache group kinds are not known for this release")
    for kind, backend in value.items():
        if kind not in kinds.values():
            raise SchemaError(
                path,
                f"Value error, Unknown KV cache group kind {kind!r} in backend_per_kind. "
                f"Valid kinds are: {', '.join(sorted(kinds.values()))}.",
            )
        if isinstance(backend, str):
            member("AttentionBackendEnum", auto=False)(backend, f"{path}.{kind}", classes)
    return value, True


def pass_config(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    # PassConfig(**value) inside the validator: a wrong key is a ValidationError, hence a ValueError, all the same
    return value, False


def lower_underscore(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    return (value.lower().replace("-", "_") if isinstance(value, str) else value), False


def list_of_str(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    if isinstance(value, str):
        return value.replace(" ", "").split(","), False
    if not isinstance(value, (list, dict)):
        raise RaisedTypeError
    if not all(isinstance(v, str) for v in value):
        raise SchemaError(path, "Assertion failed")
    return value, False


def spec_or_shorthand(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
    if not isinstance(value, str):
        return value, False
    shorthands = _shorthands(path, classes)
    if value in shorthands:
        field = path.rpartition(".")[2]
        if field not in shorthands[value]:
            raise SchemaError(path, f"Value error, online shorthand {value!r} does not define a {field} spec")
        return value, True
    return {"weight": value}, False


def targets(value: Any, path: str, classes: Mapping[str, Any]) -> tuple[Any, bool]:
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


def kv_transfer(v: Mapping[str, Any]) -> str:
    if v["kv_connector"] is not None and v["kv_role"] is None:
        return "Please specify kv_role when kv_connector is set"
    return ""


def ec_transfer(v: Mapping[str, Any]) -> str:
    if v["ec_connector"] is not None and v["ec_role"] is None:
        return "Please specify ec_role when ec_connector is set"
    return ""


def fine(v: Any) -> str:
    return ""


def save_format(value: Any) -> str:
    return "" if value in ("binary", "unpacked") else "compile_cache_save_format must be 'binary' or 'unpacked'"


def eplb(v: Mapping[str, Any]) -> str:
    if v.get("use_async") and v.get("policy") != "default":
        return "Async EPLB is only supported with the default policy."
    if v.get("log_balancedness") and v.get("log_balancedness_interval", 1) <= 0:
        return "log_balancedness_interval must be greater than 0."
    return ""


def eplb_communicator(v: Mapping[str, Any]) -> str:
    if v.get("use_async") and v.get("communicator") in ("torch_nccl", "pynccl"):
        return f"{v['communicator']} communicator is incompatible with async EPLB"
    return eplb(v)


def ec_manager(v: Mapping[str, Any]) -> str:
    if v["encoder_cache_manager_cls"] is None and v["manager_config"]:
        return "manager_config requires encoder_cache_manager_cls to be set."
    return ""


def engram(v: Mapping[str, Any]) -> str:
    if v.get("dp_shared_memory") and not v.get("cpu_offload"):
        return "dp_shared_memory requires cpu_offload=True"
    if v.get("use_thp") and (not v.get("cpu_offload") or v.get("dp_shared_memory")):
        return "use_thp requires cpu_offload=True and dp_shared_memory=False"
    return ""


def structured(v: Mapping[str, Any]) -> str:
    if v["disable_any_whitespace"] and v["backend"] not in ("xgrammar", "guidance"):
        return "disable_any_whitespace is only supported for xgrammar and guidance backends."
    if v["disable_additional_properties"] and v["backend"] != "guidance":
        return "disable_additional_properties is only supported for the guidance backend."
    return ""


def compilation(v: Mapping[str, Any]) -> str:
    """All releases alike but for what `_COMPILATION_OPS` names; fields a release lacks count as unset."""
    ops = v.get("custom_ops") or []
    if v.get("mode") == 3 and v.get("backend") not in ("", "eager", "inductor"):
        return f"Invalid backend for piecewise compilation: {v.get('backend')}"
    for name in ("encoder_cudagraph_token_budgets", "decoder_replay_cudagraph_capture_sizes"):
        if any(n <= 0 for n in v.get(name) or ()):
            return f"All {name} must be positive"
    if v.get("cudagraph_mm_encoder"):
        for name in (
            "encoder_cudagraph_max_images_per_batch",
            "encoder_cudagraph_max_vision_items_per_batch",
            "encoder_cudagraph_max_frames_per_batch",
        ):
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


def compilation_old(v: Mapping[str, Any]) -> str:
    for op in v.get("custom_ops") or []:
        if not op:
            raise EngineError("IndexError: string index out of range")
        if op[0] not in "+-" and op not in ("all", "none"):
            return f"Invalid syntax {op!r} for custom op, must be 'all', 'none', '+op' or '-op'"
    if v.get("level") is not None and v.get("mode") is None:
        v = {**v, "mode": v["level"]}
    return compilation(v)


def compilation_new(v: Mapping[str, Any]) -> str:
    ops = v.get("custom_ops") or []
    for op in ops:
        if op not in ("all", "none") and (len(op) < 2 or op[0] not in "+-"):
            return f"Invalid syntax {op!r} for custom op, must be 'all', 'none', '+op' or '-op'"
    both = sorted({o[1:] for o in ops if o[0] == "+"} & {o[1:] for o in ops if o[0] == "-"})
    if both:
        return f"custom_ops cannot both enable and disable the same operation(s): {', '.join(both)}"
    return compilation(v)


def pooler(v: Mapping[str, Any]) -> str:
    for old, new in (("logit_bias", "logit_mean"), ("logit_scale", "logit_sigma")):
        if v.get(old) is not None and v.get(new) is not None:
            return f"Cannot set both `{old}` and `{new}`."
    if v.get("logit_scale") == 0 or v.get("logit_sigma") == 0:
        return "logit_sigma cannot be 0 (division by zero)"
    return pooling_type(v)


def pooling_type(v: Mapping[str, Any]) -> str:
    for other in ("seq_pooling_type", "tok_pooling_type"):
        if v.get("pooling_type") and v.get(other) is not None:
            return f"Cannot set both `pooling_type` and `{other}`"
    return ""


def pooler_removed(value: Any) -> str:
    if isinstance(value, dict) and "normalize" in value:
        return "Parameter `normalize` was removed; use `use_activation` instead."
    return ""  # a removed task is no longer among the values of `task` either


def _uri(path: Any) -> bool:
    return isinstance(path, str) and "://" in path


def profiler(v: Mapping[str, Any]) -> str:
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
    plain = {
        "proton_profiler_dir": "",
        "proton_context": "shadow",
        "proton_data": "tree",
        "proton_backend": None,
        "proton_mode": None,
        "proton_hook": None,
        "proton_output_format": None,
        "proton_graph_attribution": False,
    }
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


def quantization(v: Mapping[str, Any]) -> str:
    if v.get("targets") is not None and (v.get("linear") is not None or v.get("moe") is not None):
        return "quantization_config.targets is mutually exclusive with quantization_config.linear/moe"
    return ""


def structured_old(v: Mapping[str, Any]) -> str:
    if v.get("reasoning_parser"):
        raise Unknown("StructuredOutputsConfig.reasoning_parser: the registered parsers are not known here")
    return structured(v)


def cudnn_prefill(v: Mapping[str, Any]) -> str:
    if v.get("mla_prefill_backend") is None and v.get("use_cudnn_prefill"):
        return "The cuDNN MLA prefill backend has been removed."
    return ""


def fp4_indexer(v: Mapping[str, Any]) -> str:
    if v.get("use_fp4_indexer_cache") and v.get("indexer_kv_dtype") not in ("auto", "mxfp4"):
        return f"use_fp4_indexer_cache=True conflicts with indexer_kv_dtype={v.get('indexer_kv_dtype')!r}."
    return ""


def minimax_indexer(v: Mapping[str, Any]) -> str:
    if v.get("minimax_m3_indexer_cp") and v.get("indexer_kv_dtype") not in ("auto", "bf16", "fp8", "fp8_e4m3"):
        return "minimax_m3_indexer_cp requires a bf16 or fp8 e4m3 index cache"
    return ""
