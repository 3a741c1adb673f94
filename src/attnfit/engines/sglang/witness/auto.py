"""transformers' AutoConfig and what else SGLang takes from the package. Standard library only."""

from __future__ import annotations

import posixpath
import types
from typing import Any

from attnfit.witness.fakes import StubModule
from attnfit.witness.stubs import as_real, leak

from .configs import Transformers
from .files import Files
from .gpu import Record

# Modules of transformers that SGLang imports names from; each of them gives what the top one does.
_PARTS = """
    configuration_utils models models.auto models.auto.configuration_auto models.auto.modeling_auto utils
    dynamic_module_utils tokenization_utils_base models.llama.configuration_llama
"""


class TransformersModule(StubModule):
    """transformers, whose names ending in Config are config classes."""

    def __init__(self, home: Transformers, **known: Any) -> None:
        super().__init__("transformers", **known)
        vars(self)["_home"] = home

    def __getattr__(self, name: str) -> Any:
        if name.endswith("Config") and not name.startswith("_"):
            cls = self._home.class_named(name)
            if cls is None:
                raise as_real(AttributeError(f"module 'transformers' has no attribute {name!r}"))
            return cls
        return super().__getattr__(name)


def modules(home: Transformers, files: Files, notes: list[str]) -> dict[str, types.ModuleType]:
    """transformers and its parts, by name. `notes` receives what a user should know of how a config was read."""

    class AutoConfig:
        @classmethod
        def register(cls, *args: Any, **kwargs: Any) -> None:
            """SGLang's own classes are looked up in its registry."""

        @classmethod
        def for_model(cls, model_type: str, *args: Any, **kwargs: Any) -> Any:
            found = home.class_of(model_type)
            if found is None:
                names = ", ".join(home.tables.types)
                raise as_real(ValueError(f"Unrecognized model identifier: {model_type}. Should contain one of {names}"))
            return found(*args, **kwargs)

        @classmethod
        def from_pretrained(cls, path: Any, *, trust_remote_code: Any = None, **kwargs: Any) -> Any:
            return _from_pretrained(home, files, notes, str(path), bool(trust_remote_code))

    class GenerationConfig:
        @classmethod
        def from_pretrained(cls, path: Any, **kwargs: Any) -> Any:
            if not files.exists(f"{path}/generation_config.json"):
                raise as_real(OSError(f"{path} does not appear to have a file named generation_config.json."))
            return Record("generation_config", eos_token_id=None)  # which tokens end a text decides no backend

    class Mapping(dict[str, Any]):
        """CONFIG_MAPPING"""

        def __missing__(self, kind: str) -> Any:
            found = home.class_of(kind)
            if found is None:
                raise as_real(KeyError(kind))
            return found

        def __contains__(self, kind: object) -> bool:
            return super().__contains__(kind) or kind in home.tables.types

        def get(self, kind: str, default: Any = None) -> Any:
            if kind not in self:
                return default
            return self[kind]

        def register(self, kind: str, cls: Any, exist_ok: bool = False) -> None:
            self[kind] = cls

        @property
        def _extra_content(self) -> Mapping:
            return self

    def cached_file(path: Any, name: str, **kwargs: Any) -> None:
        if files.exists(f"{path}/{name}"):
            leak(f"the content of {name} is not at hand")

    top = TransformersModule(
        home,
        PretrainedConfig=home.base,
        PreTrainedConfig=home.base,
        __version__=home.pin.version,
        AutoConfig=AutoConfig,
        GenerationConfig=GenerationConfig,
        CONFIG_MAPPING=Mapping(),
        cached_file=cached_file,
    )
    llama = types.ModuleType("transformers.models.llama.modeling_llama")
    vars(llama)["LlamaAttention"] = type("LlamaAttention", (), {})
    parts = {f"transformers.{name}": top for name in _PARTS.split()}
    family = StubModule("transformers.models.llama", modeling_llama=llama)
    return {"transformers": top, **parts, family.__name__: family, llama.__name__: llama}


def _from_pretrained(home: Transformers, files: Files, notes: list[str], path: str, trusted: bool) -> Any:
    keys = home.read(path)
    kind = keys.get("model_type")
    found = home.class_of(kind)
    remote = keys.get("auto_map")
    reference = remote.get("AutoConfig") if isinstance(remote, dict) else None
    if isinstance(reference, str):
        _own_code(home, files, notes, path, reference, found, kind, trusted)
    if kind is None:
        raise as_real(ValueError(f"Unrecognized model in {path}. Should have a `model_type` key in its config.json."))
    if kind == "mistral" and "layer_types" in keys:
        kind = keys["model_type"] = "ministral"
        found = home.class_of(kind)
    if found is None:
        told = (
            f"The checkpoint you are trying to load has model type `{kind}` but Transformers does not recognize this "
            "architecture. This could be because of an issue with the checkpoint, or because your version of "
            "Transformers is out of date.\n\nYou can update Transformers with the command `pip install --upgrade "
            "transformers`. If this does not work, and the checkpoint is very new, then there may not be a release "
            "version that supports this model yet. In this case, you can get the most up-to-date code by installing "
            "Transformers from source with the command `pip install git+https://github.com/huggingface/transformers.git`"
        )
        raise as_real(ValueError(told))
    config = found.from_dict(keys)
    vars(config)["_name_or_path"] = path
    return config


def _own_code(
    home: Transformers,
    files: Files,
    notes: list[str],
    path: str,
    reference: str,
    found: Any,
    kind: Any,
    trusted: bool,
) -> None:
    """A checkpoint that brings a config class of its own (dynamic_module_utils.py). It is never run."""
    upstream, _, name = reference.rpartition("--")
    file = f"{name.partition('.')[0]}.py"
    if found is None and not trusted:
        if upstream:
            said = (
                f"references custom code contained in {upstream} which must be executed to correctly load the model. "
                f"You can inspect the repository content at https://hf.co/{upstream} ."
            )
        else:
            at = posixpath.normpath(path) if files.is_dir(path) else f"https://hf.co/{path}"
            said = (
                "contains custom code which must be executed to correctly load the model. You can inspect the "
                f"repository content at {at} ."
            )
        told = (
            f"The repository {path} {said}\n You can inspect the repository content at https://hf.co/{path}.\n"
            "Please pass the argument `trust_remote_code=True` to allow custom code to be run."
        )
        raise as_real(ValueError(told))
    own = found is not None and not found.__module__.startswith("transformers") and home.pin.five
    if not trusted or own:
        return
    if not upstream and files.whole and not files.exists(f"{path}/{file}"):
        told = (
            f"{path} does not appear to have a file named {file}. Checkout 'https://huggingface.co/{path}/tree/main' "
            "for available files."
        )
        raise as_real(OSError(told))
    if found is None:
        leak(f"the model's own {file} is never run, and no class of this release knows model_type {kind!r}")
    notes.append(f"the model's own {file} is never run: read as the release's own class for {kind} reads it")
