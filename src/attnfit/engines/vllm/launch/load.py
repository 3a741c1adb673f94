"""From the keys of config.json to the config object the engine works with: vllm/transformers_utils/config.py."""

from __future__ import annotations

import contextlib
import copy
import os.path
from collections.abc import Iterator
from typing import Any

import msgspec

from attnfit.engines.vllm.launch.messages import plain, value_error
from attnfit.engines.vllm.launch.state import ParsedFlags, Refusal, Unknown
from attnfit.hf.config import ClassTables, HfConfig, build
from attnfit.hf.errors import Refused

_WHERE = "vllm/transformers_utils/config.py"
#: checkpoints whose config.json names no model_type
_BY_ARCHITECTURE = {
    "LongcatFlashForCausalLM": "longcat_flash",
    "LongcatFlashNgramForCausalLM": "longcat_flash",
}


class Loaded(msgspec.Struct):
    """The config object, and what went wrong on the way where the caller wants to go on."""

    node: HfConfig
    refusals: list[Refusal] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


def load_config(
    tables: ClassTables,
    raw: dict[str, Any],
    hf_quant: dict[str, Any] | None,
    flags: ParsedFlags,
    path: str,
    files: frozenset[str] | None,
    *,
    keep_going: bool = False,
) -> Loaded:
    """The config the engine sees, `--hf-overrides` applied. Raises Refusal (unless `keep_going`) and Unknown."""
    flat, nested = _overrides(flags)
    out = Loaded(node=HfConfig("", "", {}))

    def met(refusal: Refusal) -> None:
        if not keep_going:
            raise refusal
        out.refusals.append(refusal)

    model_type = _model_type(raw, flat)
    given = {k: v for k, v in raw.items() if k != "model_type"}
    cls: str | None
    try:
        cls = _class_name(tables, raw, model_type, flags, path, files, out)
    except Refusal as refusal:
        met(refusal)
        cls = tables.class_of(str(model_type)) if model_type is not None else None
    if cls is None:
        out.node = _bare(raw, str(model_type))
    else:
        try:
            with in_the_engines_words():
                out.node = build(tables, cls, _stated_type(tables, cls, str(model_type)), given)
        except Refusal as refusal:
            met(refusal)
            out.node = _bare(raw, str(model_type))
    node = out.node
    _quantization(node, raw, hf_quant)
    try:
        with in_the_engines_words():
            for key, value in flat.items():
                node.assign(key, value)
            for key, value in nested.items():
                _nested(node, key, value)
    except Refusal as refusal:
        met(refusal)
    return out


@contextlib.contextmanager
def in_the_engines_words() -> Iterator[None]:
    """A config class's own refusal, as ModelConfig reports it."""
    try:
        yield
    except Refused as refused:
        if refused.kind == "ValueError":
            raise value_error("ModelConfig", refused.text, refused.where) from None
        raise plain(refused.kind, refused.text, refused.where) from None


def _overrides(flags: ParsedFlags) -> tuple[dict[str, Any], dict[str, Any]]:
    value = flags.get("hf_overrides")
    if value is None:
        return {}, {}
    if not isinstance(value, dict):
        raise Unknown("--hf-overrides is not a JSON object")
    flat = {k: v for k, v in value.items() if not isinstance(v, dict)}
    return flat, {k: v for k, v in value.items() if isinstance(v, dict)}


def _model_type(raw: dict[str, Any], flat: dict[str, Any]) -> Any:
    model_type = raw.get("model_type")
    if model_type is None and raw.get("speculators_config") is not None:
        raise Unknown("a speculators checkpoint: the config.json of the model it drafts for is not at hand")
    if model_type is None:
        archs = raw.get("architectures")
        if isinstance(archs, list) and archs and isinstance(archs[0], str):
            model_type = _BY_ARCHITECTURE.get(archs[0])
    if "model_type" in flat:
        model_type = flat["model_type"]
    if model_type is not None and not isinstance(model_type, str):
        raise Unknown("model_type in config.json is not a word")
    return model_type


def _class_name(
    tables: ClassTables,
    raw: dict[str, Any],
    model_type: str | None,
    flags: ParsedFlags,
    path: str,
    files: frozenset[str] | None,
    out: Loaded,
) -> str:
    """The config class, through the engine's order: vLLM's own, code in the repository, transformers'."""
    trusted = bool(flags.get("trust_remote_code"))
    if model_type in tables.own_types:
        return tables.own_types[str(model_type)]
    auto_map = raw.get("auto_map")
    if auto_map is not None and not isinstance(auto_map, dict):
        raise Unknown("auto_map in config.json is not an object")
    reference = auto_map.get("AutoConfig") if isinstance(auto_map, dict) else None
    local = model_type in tables.types
    if isinstance(reference, str):
        if trusted:
            _own_code(reference, path, files, out)
            if model_type is None or not local:
                raise Unknown(
                    f"what {reference} of the model's own code makes of config.json (this release brings no class for "
                    f"model_type {model_type!r} to stand in)"
                )
        elif not local:
            here = path.startswith(("/", ".")) or os.path.isdir(path)  # else a hub id
            where = os.path.abspath(path) if here else f"https://hf.co/{path}"
            raise value_error(
                "ModelConfig",
                f"The repository {path} contains custom code which must be executed to correctly load the model. You "
                f"can inspect the repository content at {where} .\n You can inspect the repository content at "
                f"https://hf.co/{path}.\nPlease pass the argument `trust_remote_code=True` to allow custom code to be "
                "run.",
                "transformers/dynamic_module_utils.py",
            )
    if model_type is None and "model_type" not in raw:
        raise value_error(
            "ModelConfig",
            f"Unrecognized model in {path}. Should have a `model_type` key in its config.json.",
            "transformers/models/auto/configuration_auto.py",
        )
    if model_type == "mistral" and "layer_types" in raw and "ministral" in tables.types:
        model_type = "ministral"
    if model_type is None or model_type not in tables.types:
        raise value_error("ModelConfig", _unknown_type(model_type), "transformers/models/auto/configuration_auto.py")
    return tables.types[model_type]


def _own_code(reference: str, path: str, files: frozenset[str] | None, out: Loaded) -> None:
    """`--trust-remote-code` and code of the repository's own: it must lie there; what it does we do not run."""
    if "--" in reference:
        raise Unknown(f"config class {reference} lies in another repository")
    file = reference.split(".")[0] + ".py"
    if files is not None and file not in files:
        raise plain(
            "OSError",
            f"{path} does not appear to have a file named {file}. Checkout 'https://huggingface.co/{path}/tree/main' "
            "for available files.",
            "transformers/utils/hub.py:470",
        )
    out.notes.append(
        f"the engine would run {file} of the model's own directory to read config.json; here the class of "
        "the same model_type is used"
    )


def _unknown_type(model_type: str | None) -> str:
    head = (
        f"The checkpoint you are trying to load has model type `{model_type}` but Transformers does not recognize this "
        "architecture. This could be because of an issue with the checkpoint, or because your version of Transformers "
        "is out of date.\n\n"
    )
    return (
        f"{head}You can update Transformers with the command `pip install --upgrade transformers`. If this does not "
        "work, and the checkpoint is very new, then there may not be a release version that supports this model yet. "
        "In this case, you can get the most up-to-date code by installing Transformers from source with the command "
        "`pip install git+https://github.com/huggingface/transformers.git`"
    )


def _stated_type(tables: ClassTables, cls: str, model_type: str) -> str:
    """config.model_type is the class' own: a registry entry may lend a class to another type."""
    if model_type in tables.own_types:
        return model_type
    for name, owner in tables.types.items():
        if owner == cls and name == model_type:
            return name
    return model_type


def _bare(raw: dict[str, Any], model_type: str) -> HfConfig:
    """No class knows it: the keys of config.json alone, nothing filled in."""
    node = HfConfig("(no config class)", model_type, {})
    for key, value in raw.items():
        if key in ("text_config", "llm_config", "thinker_config") and isinstance(value, dict):
            sub = HfConfig("(no config class)", str(value.get("model_type", "")), {})
            sub.attrs.update(copy.deepcopy(value))
            node.attrs["text_config" if key == "llm_config" else key] = sub
        else:
            node.attrs[key] = copy.deepcopy(value)
    if node.attrs.get("dtype") is None and "torch_dtype" in raw:
        node.attrs["dtype"] = raw["torch_dtype"]
    return node


def _quantization(node: HfConfig, raw: dict[str, Any], hf_quant: dict[str, Any] | None) -> None:
    """The checkpoint's settings as ModelOpt or others left them: in config.json, else in hf_quant_config.json."""
    settings = raw.get("quantization_config")
    if settings is None:
        settings = hf_quant
    if settings is not None:
        if not isinstance(settings, dict):
            raise Unknown("quantization_config in config.json is not an object")
        node.set("quantization_config", copy.deepcopy(settings))
    for name in ("llm_config",):
        value = node.attrs.get(name)
        if isinstance(value, HfConfig) and not isinstance(node.attrs.get("text_config"), HfConfig):
            node.attrs["text_config"] = value


def _nested(node: HfConfig, key: str, value: dict[str, Any]) -> None:
    """A dict-valued override: merged into a sub-config, set as it is otherwise."""
    target = node.attrs.get(key)
    if not isinstance(target, HfConfig):
        node.assign(key, value)
        return
    for name, inner in value.items():
        if isinstance(inner, dict) and isinstance(target.attrs.get(name), HfConfig):
            _nested(target, name, inner)
        else:
            target.assign(name, inner)
