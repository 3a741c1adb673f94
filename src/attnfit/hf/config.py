"""What the release's config class makes of a config.json: defaults filled in, names mapped, sub-configs built.

The classes themselves are tables (`tables/transformers-*.json`, `tables/configs-*.json`, written by
`learn.hf_probe`). An attribute that no rule of the table explains is *opaque*: reading it raises Unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from attnfit.hf.errors import Refused, Unknown
from attnfit.hf.kinds import check_kind
from attnfit.hf.rules import NoRule, apply

_MISSING = object()

#: transformers/configuration_utils.py: the layer type names older checkpoints use
_LEGACY_LAYER_TYPES = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}


class HfConfig:
    """One config object: attributes as the engine would read them with getattr."""

    def __init__(self, cls: str, model_type: str, amap: dict[str, str]) -> None:
        self.cls, self.model_type, self.amap = cls, model_type, amap
        self.attrs: dict[str, Any] = {}
        self.opaque: dict[str, str] = {}
        self.text_path: str | None = None
        self.kinds: dict[str, str] = {}  # strict classes check these also when an attribute is set later

    def has(self, name: str) -> bool:
        """hasattr(config, name). Raises Unknown where the table does not say."""
        return self.peek(name) is not _MISSING

    def get(self, name: str, default: Any = None) -> Any:
        """getattr(config, name, default). Raises Unknown where the table does not say."""
        value = self.peek(name)
        return default if value is _MISSING else value

    def peek(self, name: str) -> Any:
        if name == "model_type":
            return self.attrs.get("model_type", self.model_type)
        name = self.amap.get(name, name)
        if name in self.opaque:
            raise Unknown(f"{name} of {self.cls}: {self.opaque[name]}; say it in config.json")
        return self.attrs.get(name, _MISSING)

    def set(self, name: str, value: Any) -> None:
        name = self.amap.get(name, name)
        self.opaque.pop(name, None)
        self.attrs[name] = value

    def assign(self, name: str, value: Any) -> None:
        """setattr(config, name, value) after the config was built. Raises Refused where a strict class does."""
        check_kind(self.amap.get(name, name), value, self.kinds)
        self.set(name, value)

    def text(self) -> HfConfig:
        """get_text_config(): this config, or the nested one that describes the language model."""
        node = self
        if self.text_path:
            for part in self.text_path.split("."):
                if part in node.opaque:
                    raise Unknown(f"{part} of {node.cls}: {node.opaque[part]}; say it in config.json")
                nxt = node.attrs.get(part)
                if not isinstance(nxt, HfConfig):
                    raise Unknown(f"{part} of {node.cls} is missing in config.json")
                node = nxt
            return node
        if self.attrs.get("text_config", self) is None:
            raise Unknown(f"text_config of {self.cls} is missing in config.json")
        for name in ("text_encoder", "decoder", "generator", "text_config"):
            value = self.attrs.get(name)
            if isinstance(value, HfConfig):
                return value
        return self

    def plain(self) -> dict[str, Any]:
        """All known attributes as plain data, mapped names included."""
        out: dict[str, Any] = {"model_type": self.get("model_type")}
        for key, value in self.attrs.items():
            out[key] = value.plain() if isinstance(value, HfConfig) else value
        for alias, real in self.amap.items():
            if real in out:
                out[alias] = out[real]
        return out


class LayerTypes(NamedTuple):
    """How a version of transformers 5 treats the lists of layer types (configuration_utils.py)."""

    strict: bool = True  # its config classes are dataclasses that check themselves
    remapped: bool = True  # old names of layer types become new ones
    allowed: tuple[str, ...] = ()  # names of layer types; those of 5.20.2 if empty
    allowed_mlp: tuple[str, ...] | None = None  # names of mlp_layer_types; None: not checked
    named: bool = True  # whether the refusal of a wrong count names the list
    older: Mapping[str, str] = {}  # name that 5.20.2's class puts into a list -> the one this version's class does
    checks: Mapping[str, bool] = {}  # where classes are not strict: those that check layer_types; whether their number
    checked: tuple[str, ...] = ()  # names that those allow
    without: Mapping[str, Sequence[str]] = {}  # class -> lists that this version's class does not make


class ClassFile(NamedTuple):
    """One table of config classes. A class may stay undecoded until it is asked for: most never are."""

    source: str = ""  # "transformers==5.20.2"
    model_types: Mapping[str, str] = {}
    classes: Mapping[str, Any] = {}
    base_models: Mapping[str, str] = {}
    generation_keys: frozenset[str] = frozenset()
    model_classes: frozenset[str] = frozenset()
    layer_types: LayerTypes = LayerTypes()


Decode = Callable[[Any], dict[str, Any]]
Custom = Callable[[str, dict[str, Any]], Any]


class ClassTables:
    """The config classes of one release: the engine's own registry first, then those of its transformers.

    `decode` makes a class's entry of what the tables hold of it. `custom(model_type, keys)` builds the config of a
    type that only the engine's own code knows, or returns None.
    """

    def __init__(
        self,
        transformers: ClassFile,
        own_types: Mapping[str, str],
        own: ClassFile,
        *,
        decode: Decode = dict,
        custom: Custom | None = None,
    ) -> None:
        self.own_types, self.types = own_types, transformers.model_types
        self.base_models = transformers.base_models
        self.generation_keys = frozenset(transformers.generation_keys)
        self.model_classes = frozenset(transformers.model_classes)
        self.source, self.custom = transformers.source, custom
        self.layer_types = transformers.layer_types
        self._raw, self._decode = (own.classes, transformers.classes), decode

    @property
    def strict(self) -> bool:
        """transformers 5 checks types and layer types when a config is built."""
        return self.layer_types.strict and not self.source.startswith("transformers==4.")

    def class_of(self, model_type: str) -> str | None:
        """The class for a model type, the engine's own first."""
        return self.own_types.get(model_type) or self.types.get(model_type)

    def entry(self, cls: str) -> dict[str, Any] | None:
        """What is known of a class, or None."""
        for raw in self._raw:
            if cls in raw:
                return self._decode(raw[cls])
        return None

    def knows(self, cls: str | None) -> bool:
        """Whether a class is in the tables."""
        return any(cls in raw for raw in self._raw)


def finish(node: HfConfig, raw: dict[str, Any], tables: ClassTables) -> None:
    """The named functions for what the rules do not say (imported late: they need HfConfig)."""
    from attnfit.hf import special

    special.finish(node, raw, tables.strict, tables.layer_types)


def build(tables: ClassTables, cls: str, model_type: str, given: dict[str, Any], depth: int = 0) -> HfConfig:
    """The config object of class `cls` for these keys. Raises Refused where the class itself refuses."""
    entry = tables.entry(cls)
    if entry is None:
        raise Unknown(f"config class {cls} (model_type {model_type!r}) is not in the tables of this release")
    if depth > 4:
        raise Unknown(f"sub-configs of {cls} are nested too deeply")
    node = HfConfig(cls, model_type, entry.get("map", {}))
    node.text_path = entry.get("text")
    raw = {k: v for k, v in given.items() if k not in tables.generation_keys or k in entry["defaults"]}
    declared: dict[str, Any] = {**entry["defaults"], **dict.fromkeys(entry.get("opaque", ()), _MISSING)}
    subs: dict[str, Any] = entry.get("subs", {})
    mapped = {node.amap.get(k, k): v for k, v in raw.items()}
    for alias, real in node.amap.items():  # a declared field that another name maps to
        if alias in declared and real not in declared:
            declared[real] = declared[alias]
    base = {"is_encoder_decoder": False, "tie_word_embeddings": True, "architectures": None, "dtype": None}
    node.attrs.update({k: v for k, v in base.items() if k not in declared})
    for key, value in declared.items():
        if key in node.amap:
            continue
        if value is _MISSING:
            node.opaque[key] = "its default is not in the tables"
        else:
            node.attrs[key] = value
    for key, value in mapped.items():
        if key not in subs:
            node.set(key, value)
    dtype = raw.get("dtype", raw.get("torch_dtype"))
    if dtype is not None:
        node.attrs["dtype"] = dtype
    node.kinds = entry.get("kinds", {}) if tables.strict else {}
    for key, value in raw.items():
        check_kind(key, value, node.kinds)
    _sub_configs(tables, node, entry, raw, depth)
    _apply_rules(node, entry, mapped)
    _layer_types(tables, node, mapped)
    _rope(node, entry, raw)
    finish(node, raw, tables)
    return node


def _sub_configs(tables: ClassTables, node: HfConfig, entry: dict[str, Any], raw: dict[str, Any], depth: int) -> None:
    for key, spec in entry.get("subs", {}).items():
        given = raw.get(key)
        if given is None:
            if entry.get("flat") == key:
                given = {k: v for k, v in raw.items() if k not in ("architectures", "auto_map", "model_type")}
            elif spec.get("made"):
                node.opaque[key] = "config.json has no such part, and what the class puts there is not in the tables"
                continue
            elif spec.get("optional"):
                node.attrs[key] = None
                continue
            else:
                given = spec.get("init", {})
        if not isinstance(given, dict):
            raise Unknown(f"{key} in config.json is not an object")
        cls, model_type = spec.get("class"), spec.get("type") or ""
        if spec.get("auto"):
            model_type = given.get("model_type", model_type)
            cls = tables.types.get(model_type) if isinstance(model_type, str) else None
        if spec.get("auto") and cls is None and tables.custom is not None and isinstance(model_type, str):
            made = tables.custom(model_type, given)
            if made is not None:
                node.attrs[key] = made
                continue
        if cls is None and isinstance(model_type, str):  # a type that an engine lends another type's class
            cls = tables.class_of(model_type)
            model_type = next((t for t, c in tables.types.items() if c == cls), model_type)
            given = {**given, "model_type": model_type}
        if spec.get("auto") and cls is None and depth == 0:
            raise _unknown_sub_type(tables, str(model_type))
        if cls is None or not tables.knows(cls):
            node.opaque[key] = f"its class (model_type {model_type!r}) is not in the tables"
            continue
        try:
            node.attrs[key] = build(tables, cls, str(model_type), given, depth + 1)
        except Unknown as unknown:
            node.opaque[key] = str(unknown)


def _unknown_sub_type(tables: ClassTables, model_type: str) -> Refused:
    if not tables.strict:
        return Refused("KeyError", repr(model_type), "transformers/models/auto/configuration_auto.py")
    names = ", ".join(tables.types)
    return Refused(
        "ValueError",
        f"Unrecognized model type for subconfig: {model_type}. Should contain one of {names}",
        "transformers/configuration_utils.py",
    )


def _apply_rules(node: HfConfig, entry: dict[str, Any], mapped: dict[str, Any]) -> None:
    """Evaluate what the class computes by itself, inputs first, until nothing more can be said."""
    todo: dict[str, dict[str, Any]] = {}
    for name, rules in entry.get("rules", {}).items():
        if name not in mapped:
            rule = rules.get("missing")
        elif mapped[name] is None or (mapped[name] == [] and "null" in rules):
            rule = rules.get("null")
        else:
            rule = rules.get("given")
        if rule is not None and not (rule["op"] == "copy" and node.amap.get(rule["a"]) == name):
            todo[name] = rule
    for name in todo:
        node.opaque[name] = "not computed yet"
    own = {name: mapped.get(name, entry["defaults"].get(name)) for name in todo}
    # an argument that the class reads and does not keep (transformers 4): other rules see what was given for it
    spent = {n for n, r in entry.get("rules", {}).items() if r.get("given", {}).get("op") == "const"}
    for _ in range(len(todo) + 1):
        moved = False
        for name, rule in list(todo.items()):
            needs = [str(rule[k]) for k in ("a", "b", "c", "n", "flag") if isinstance(rule.get(k), str)]
            waiting = [n for n in needs if n != name and node.amap.get(n, n) in node.opaque]
            if any(node.amap.get(n, n) in todo for n in waiting):
                continue
            del todo[name]
            moved = True
            try:
                inputs = {n: own[n] if n == name or (n in spent and n in own) else node.get(n) for n in needs}
                node.set(name, apply(rule, inputs))
            except Unknown as e:
                node.opaque[name] = str(e)
            except NoRule as e:
                node.opaque[name] = str(e)
            except ZeroDivisionError:
                raise Unknown(f"{name} of {node.cls} cannot be computed: one of {', '.join(needs)} is 0") from None
            except (KeyError, TypeError) as e:
                node.opaque[name] = f"its inputs do not allow it ({e})"
        if not moved:
            break


def _layer_types(tables: ClassTables, node: HfConfig, mapped: dict[str, Any]) -> None:
    types = tables.layer_types
    for key in ("layer_types", "mtp_layer_types", "layers_block_type"):
        real = node.amap.get(key, key)
        value = node.attrs.get(real)
        if not isinstance(value, list) or (key == "layers_block_type" and node.amap.get("layer_types") != real):
            continue
        if tables.strict and types.remapped:
            node.attrs[real] = [_LEGACY_LAYER_TYPES.get(t, t) if isinstance(t, str) else t for t in value]
        elif mapped.get(real) is None and real in types.without.get(node.cls, ()):
            del node.attrs[real]
        elif mapped.get(real) is None and types.allowed:
            node.attrs[real] = made = [types.older.get(name, name) for name in value]
            if not set(made) <= set(types.allowed):
                node.opaque[real] = f"{tables.source} makes it in a way that is not in the tables"
                del node.attrs[real]


def _rope(node: HfConfig, entry: dict[str, Any], raw: dict[str, Any]) -> None:
    """rope_parameters after standardisation: only what lengths need (rope_type, factor, original length)."""
    for key in ("rope_scaling", "rope_parameters"):
        if raw.get(key) is not None and not isinstance(raw[key], dict):
            raise Unknown(f"{key} in config.json is not an object")
    given = raw.get("rope_scaling") or raw.get("rope_parameters")
    base = given if isinstance(given, dict) else entry.get("rope")
    if not isinstance(base, dict):
        return
    rope: dict[str, Any] = {k: dict(v) if isinstance(v, dict) else v for k, v in base.items()}
    parts = [v for v in rope.values() if isinstance(v, dict)]
    for part in parts or [rope]:
        kind = part.get("rope_type", part.get("type", "default"))
        part["rope_type"] = {"su": "longrope", "mrope": "default"}.get(str(kind), kind)
    if not parts and raw.get("rope_theta") is not None and ("rope_theta" not in rope or not given):
        rope["rope_theta"] = raw["rope_theta"]
    node.attrs["rope_parameters"] = rope
