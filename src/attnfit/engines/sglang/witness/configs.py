"""transformers as SGLang uses it: config classes by our tables, and a base class for its own ones.

A class of transformers is built by `attnfit.hf` from the keys of config.json; an attribute that the tables do not
explain is there but leaks when it is read. SGLang's own classes run from its source, on `Base`. Behaviour of
PretrainedConfig and AutoConfig: transformers/configuration_utils.py, models/auto/configuration_auto.py (4.57.1,
5.19.0). Standard library only.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from attnfit.hf import config as hf
from attnfit.hf.errors import Refused, Unknown
from attnfit.witness.fake_torch import ALIASES, DTYPES
from attnfit.witness.stubs import as_real, leak

TABLES = Path(hf.__file__).with_name("tables")
_LABELS = {"id2label": {0: "LABEL_0", 1: "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
# What every config has: PretrainedConfig.__init__
_BASE_5: dict[str, Any] = {
    "return_dict": True,
    "output_hidden_states": False,
    "dtype": None,
    "chunk_size_feed_forward": 0,
    "is_encoder_decoder": False,
    "architectures": None,
    "problem_type": None,
    **_LABELS,
}
_GONE = """
    cross_attention_hidden_size finetuning_task task_specific_params tokenizer_class prefix_token_id bos_token_id
    pad_token_id eos_token_id sep_token_id decoder_start_token_id
"""
_BASE_4: dict[str, Any] = {
    **_BASE_5,
    **dict.fromkeys(_GONE.split()),
    "torchscript": False,
    "pruned_heads": {},
    "tie_word_embeddings": True,
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
}
_EXCEPTIONS: dict[str, type[Exception]] = {"ValueError": ValueError, "TypeError": TypeError, "KeyError": KeyError}


class Pin:
    """The transformers a release asks for, of those we have tables of: the nearest, without the types it lacks."""

    def __init__(self, version: str) -> None:
        pins = json.loads((TABLES / "model-types.json").read_text("utf-8"))["versions"]
        if version not in pins:
            leak(f"no table of the config classes of transformers {version}")
        self.version, self.five = version, not version.startswith("4.")
        table = json.loads((TABLES / f"transformers-{pins[version]['table']}.json").read_text("utf-8"))
        absent = set(pins[version]["absent"])
        self.file = hf.ClassFile(
            source=f"transformers=={version}",
            model_types={kind: cls for kind, cls in table["model_types"].items() if kind not in absent},
            classes=table["classes"],
            base_models=table.get("base_models", {}),
            generation_keys=frozenset(table.get("generation_keys", ())),
            model_classes=frozenset(table.get("model_classes", ())),
            layer_types=_layer_types(version),
        )


def _layer_types(version: str) -> hf.LayerTypes:
    known = json.loads((TABLES / "layer-types.json").read_text("utf-8"))["versions"].get(version)
    if known is None:
        return hf.LayerTypes()
    read: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in known.items()}
    return hf.LayerTypes(**read)


class Transformers:
    """The config classes of one world. `registry()` gives SGLang's own (model_type -> class)."""

    def __init__(
        self, pin: Pin, registry: Callable[[], Mapping[str, Any]], read: Callable[[Any], dict[str, Any]]
    ) -> None:
        self.pin, self.registry, self.read = pin, registry, read
        self.tables = hf.ClassTables(pin.file, {}, hf.ClassFile(), custom=self._custom)
        self.base = _base_class(self)
        self._classes: dict[str, Any] = {}

    def class_named(self, name: str) -> Any:
        """A class of transformers by its name, or None."""
        if name not in self._classes:
            entry = self.tables.entry(name)
            if entry is None:
                return None
            kinds = [kind for kind, cls in self.tables.types.items() if cls == name]
            kind = kinds[-1] if kinds else ""  # the class's own: those that borrow it come first (code_llama, llama)
            space = {
                "attnfit_table": name,
                "model_type": kind,
                "attribute_map": dict(entry.get("map", {})),
                "__module__": "transformers",
            }
            self._classes[name] = type(name, (self.base,), space)
        return self._classes[name]

    def class_of(self, model_type: Any) -> Any:
        """The class AutoConfig takes for a model type: transformers' own first; None if nobody knows it."""
        if not isinstance(model_type, str):
            return None
        name = self.tables.types.get(model_type)
        return self.class_named(name) if name else self.registry().get(model_type)

    def _custom(self, model_type: str, keys: dict[str, Any]) -> Any:
        cls = self.registry().get(model_type)
        return None if cls is None else cls(**{key: value for key, value in keys.items() if key != "model_type"})

    def fill(self, config: Any, keys: dict[str, Any]) -> None:
        """PretrainedConfig.__init__(**keys)."""
        name = type(config).attnfit_table
        if name is not None:
            try:
                self._take(config, hf.build(self.tables, name, type(config).model_type, keys))
            except Unknown as unknown:
                leak(str(unknown))
            except Refused as refused:
                kind = _EXCEPTIONS.get(refused.kind) or type(refused.kind, (ValueError,), {})
                raise as_real(kind(refused.text.strip("'") if kind is KeyError else refused.text)) from None
            return
        for key, value in self._common().items():
            vars(config).setdefault(key, copy.copy(value))
        old = keys.pop("torch_dtype", None)
        if old is not None and keys.get("dtype") is None:
            keys["dtype"] = old
        for key, value in keys.items():
            if key != "model_type" or not type(config).model_type:
                setattr(config, key, value)

    def _common(self) -> dict[str, Any]:
        return _BASE_5 if self.pin.five else _BASE_4

    def _take(self, config: Any, node: hf.HfConfig) -> None:
        own = vars(config)
        hidden = {"model_type", "torch_dtype", *node.opaque}
        named = {key: value for key, value in node.attrs.items() if key not in hidden}
        own.update({key: self._value(key, value) for key, value in named.items()})
        if self.pin.five and isinstance(own.get("rope_parameters"), dict):  # the others are older names of it
            own.pop("rope_scaling", None)
            if "rope_theta" not in (self.tables.entry(node.cls) or {}).get("defaults", {}):
                own.pop("rope_theta", None)
        elif "rope_theta" in own:
            own.setdefault("rope_scaling", None)
        for key, value in self._common().items():
            own.setdefault(key, copy.copy(value))
        if node.opaque:
            own["attnfit_opaque"] = dict(node.opaque)
            self._vague_parts(own, node)
        kind = node.get("model_type")
        if kind and type(config).model_type != kind:
            own["model_type"] = kind

    def _vague_parts(self, own: dict[str, Any], node: hf.HfConfig) -> None:
        """Parts that the class makes by itself: of which class they are is known, and nothing else."""
        parts = (self.tables.entry(node.cls) or {}).get("subs", {})
        for key in list(own["attnfit_opaque"]):
            cls = self.class_named(parts[key]["class"]) if parts.get(key, {}).get("made") else None
            if cls is not None:
                own[key] = cls.__new__(cls)
                vars(own[key])["attnfit_vague"] = own["attnfit_opaque"].pop(key)

    def _value(self, key: str, value: Any) -> Any:
        if isinstance(value, hf.HfConfig):
            cls = self.class_named(value.cls) or self.base
            config = cls.__new__(cls)
            self._take(config, value)
            return config
        return as_dtype(value) if key == "dtype" else value


def as_dtype(value: Any) -> Any:
    """ "bfloat16" -> torch.bfloat16; anything else as it is."""
    if not isinstance(value, str):
        return value
    name = value.removeprefix("torch.")
    return DTYPES.get(ALIASES.get(name, name), value)


def _base_class(home: Transformers) -> Any:
    five = home.pin.five

    class PretrainedConfig:
        model_type: ClassVar[str] = ""
        attribute_map: ClassVar[dict[str, str]] = {}
        sub_configs: ClassVar[dict[str, Any]] = {}
        base_config_key: ClassVar[str] = ""
        keys_to_ignore_at_inference: ClassVar[list[str]] = []
        has_no_defaults_at_init: ClassVar[bool] = False
        attnfit_table: ClassVar[str | None] = None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            home.fill(self, kwargs)

        def __setattr__(self, key: str, value: Any) -> None:
            key = type(self).attribute_map.get(key, key)
            if key == "torch_dtype":
                key = "dtype"
            elif five and key == "rope_scaling":
                key = "rope_parameters"
            if key == "dtype":
                value = as_dtype(value)
            vars(self).get("attnfit_opaque", {}).pop(key, None)
            object.__setattr__(self, key, value)

        def __getattribute__(self, key: str) -> Any:
            if not key.startswith("__"):
                key = object.__getattribute__(self, "attribute_map").get(key, key)
            return object.__getattribute__(self, key)

        def __getattr__(self, key: str) -> Any:
            own = object.__getattribute__(self, "__dict__")
            if key == "torch_dtype" and "dtype" in own:
                return own["dtype"]
            if five and key == "rope_scaling" and "rope_parameters" in own:
                return own["rope_parameters"]
            why = own.get("attnfit_opaque", {}).get(key) or own.get("attnfit_vague")
            if why:
                leak(f"{key} of {type(self).__name__}: {why}; say it in config.json")
            raise as_real(AttributeError(f"'{type(self).__name__}' object has no attribute '{key}'"))

        def __attnfit_has__(self, key: str) -> bool | None:
            return True if key in vars(self).get("attnfit_opaque", {}) else None

        @property
        def use_return_dict(self) -> bool:
            return True

        @property
        def num_labels(self) -> int:
            return len(self.id2label)

        def to_dict(self) -> dict[str, Any]:
            return {
                **{key: _plain(key, value) for key, value in vars(self).items() if not key.startswith("attnfit_")},
                "model_type": self.model_type,
            }

        def to_diff_dict(self) -> dict[str, Any]:
            return self.to_dict()

        def update(self, changes: dict[str, Any]) -> None:
            for key, value in changes.items():
                setattr(self, key, value)

        def get_text_config(self, decoder: Any = None, encoder: Any = None) -> Any:
            for name in ("text_encoder", "decoder", "generator", "text_config"):
                part = getattr(self, name, None)
                if isinstance(part, PretrainedConfig):
                    return part
            return self

        @classmethod
        def from_dict(cls, keys: dict[str, Any], **kwargs: Any) -> Any:
            config = cls(**copy.deepcopy(keys))
            for key, value in kwargs.items():
                if hasattr(config, key):
                    setattr(config, key, value)
            return config

        @classmethod
        def get_config_dict(cls, path: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            return home.read(path), {}

        @classmethod
        def from_pretrained(cls, path: Any, **kwargs: Any) -> Any:
            keys = home.read(path)
            return cls.from_dict(keys.get(cls.base_config_key, keys) if cls.base_config_key else keys)

        def _nothing(self, *args: Any, **kwargs: Any) -> None:
            """Checks of rope parameters; no number of ours comes from them."""

        validate_rope = standardize_rope_params = _nothing

        def convert_rope_params_to_dict(self, *args: Any, **kwargs: Any) -> Any:
            return args[0] if args and isinstance(args[0], dict) else kwargs

    PretrainedConfig.__module__ = "transformers.configuration_utils"
    return PretrainedConfig


def _plain(key: str, value: Any) -> Any:
    if key == "dtype" and value is not None:
        return repr(value).removeprefix("torch.")
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return copy.deepcopy(value) if isinstance(value, dict | list) else value
