"""A model given as a GGUF file: what the release reads instead of a config.json, and where it stops.

Up to 0.23 vLLM reads GGUF itself, through transformers' table of architectures; from 0.24 on that is the work of
vllm-gguf-plugin, and without it a GGUF file is no model. Compared with the engine's own create_engine_config on 0.16.0,
0.23.0 and 0.33.0 (with and without the plugin 0.0.5).
"""

from __future__ import annotations

import functools
import os.path
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from attnfit.core import Capability, Model
from attnfit.engines.vllm.launch import gguf_config, gguf_loader
from attnfit.engines.vllm.launch import gguf_names as names
from attnfit.engines.vllm.launch.facts import class_tables, release_facts
from attnfit.engines.vllm.launch.messages import plain, value_error
from attnfit.engines.vllm.launch.state import EngineConfig, ParsedFlags, Refusal, Unknown
from attnfit.errors import AttnfitError

if TYPE_CHECKING:
    from attnfit.inputs.gguf.traits import GgufModel

#: the environment fact that says the plug-in is there (`Release.facts`)
PLUGIN = "gguf_plugin"
_CONFIG = "vllm/transformers_utils/config.py"
_TOKENIZERS = frozenset({"tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tekken.json"})
_INSTALL = "from 0.24 on vLLM reads GGUF only with vllm-gguf-plugin (`pip install vllm-gguf-plugin`; --env {}=yes)"


class Reading(NamedTuple):
    """What the walk goes on with, and what the engine refused before it."""

    model: Model
    flags: ParsedFlags
    facts: dict[str, Any] | None  # the release's tables, where they differ for GGUF
    refusals: list[Refusal]
    notes: list[str]
    late: Refusal | None = None  # what stops it after the model is built


def in_tree(release: str) -> bool:
    """Whether the release reads GGUF without a plug-in."""
    return _minor(release) < 24


def read(
    model: Model,
    capability: Capability,
    flags: ParsedFlags,
    release: str,
    env: Mapping[str, bool],
    *,
    files_here: bool,
) -> Reading:
    """What the release makes of `model.gguf`. Raises Unknown where it depends on files that are not at hand."""
    header: GgufModel = model.gguf
    given = _beside(flags.get("hf_config_path"), files_here, "--hf-config-path")
    if in_tree(release):
        reading = _in_tree(model, header, flags, release, given)
    elif env.get(PLUGIN):
        reading = _plugin(model, header, flags, release, given, files_here)
    else:
        reading = _without_plugin(model, header, flags, release, given)
    if reading.model.config is header.config and header.unknown:
        # The engine's refusal stands; what it would ask next does not follow from these keys.
        if reading.refusals:
            raise reading.refusals[0]
        raise Unknown(header.unknown)
    if reading.facts is None:
        return reading
    return reading._replace(facts=facts(reading.facts, release, capability, plugin=bool(env.get(PLUGIN))))


def facts(table: dict[str, Any], release: str, capability: Capability, *, plugin: bool) -> dict[str, Any]:
    """The release's tables with the quantisation method "gguf" as this GPU has it.

    Dtypes: vllm/model_executor/layers/quantization/gguf.py:62 (0.13 to 0.23), plug-in quantization/config.py:41.
    """
    dtypes = ["float16", "bfloat16", "float32"]
    if not plugin and _minor(release) >= 13 and capability >= (10, 0):
        dtypes.remove("bfloat16")
    known = table["quantization"]
    entry = {"min_capability": 60, "dtypes": dtypes, "files": []}
    return {
        **table,
        "quantization": known if "gguf" in known else [*known, "gguf"],
        "quant_classes": {**table["quant_classes"], "gguf": entry},
        "gguf_overrides": plugin or _minor(release) >= 20,  # whatever method the config.json names
    }


def then(refusals: list[Refusal]) -> list[str]:
    """What the engine would refuse next, once the first refusal is cured: a sentence each."""
    return [f"next it would refuse: {_bare(refusal.message)}" for refusal in refusals[1:]]


def _bare(message: str) -> str:
    """The words themselves, without pydantic's frame."""
    text = message.split("Value error, ", 1)[-1].split(" [type=", 1)[0]
    return text.split("\n", 1)[0]


def _minor(release: str) -> int:
    return int(release.split(".")[1])


def _set(flags: ParsedFlags, **values: Any) -> ParsedFlags:
    kept = {name: value for name, value in flags.values.items() if name != "hf_config_path"}
    return msgspec.structs.replace(flags, values={**kept, **values})


class _Given(NamedTuple):
    """A directory with config.json that a flag names."""

    path: str
    config: dict[str, Any]
    hf_quant: dict[str, Any] | None
    files: frozenset[str] | None


def _beside(path: Any, files_here: bool, flag: str) -> _Given | None:
    """The config.json that the engine takes instead, or None where no flag names one. Raises Unknown."""
    if not isinstance(path, str) or not path:
        return None
    if not files_here:
        raise Unknown(f"{flag} {path}: its config.json lies in the container or on another machine")
    try:
        return _read(path) if os.path.exists(path) else _fetched(path)
    except AttnfitError as error:
        raise Unknown(f"{flag}: {error}") from None


def _read(path: str) -> _Given:
    from attnfit.inputs.model import read_model

    found = read_model(path)
    return _Given(path, found.config, found.hf_quant, found.names)


_fetched = functools.lru_cache(maxsize=8)(_read)  # a hub id: each change of flags that is tried asks again


def _other(model: Model, given: _Given) -> Model:
    return msgspec.structs.replace(
        model, path=given.path, config=given.config, hf_quant=given.hf_quant, files=given.files
    )


def _generating(model: Model, given: _Given, release: str, *, plugin: bool) -> tuple[Model, Refusal | None]:
    """The model of that config.json as the class that transformers generates text with, or what says there is none."""
    config, refused = dict(given.config), None
    model_type = config.get("model_type")
    causal = gguf_config.causal_lm(gguf_loader.major(release, str(model_type), plugin=plugin)).get(str(model_type))
    own = release_facts(release).get("config_classes", {})
    if causal is not None:
        config["architectures"] = [causal]
    elif model_type in own or model_type in class_tables(release).types or "auto_map" in config:  # else it is not read
        where = "vllm_gguf_plugin/config_parser.py:43" if plugin else _CONFIG
        refused = plain("RuntimeError", f"Can't get gguf config for {model_type}.", where)
    return msgspec.structs.replace(_other(model, given), config=config), refused


def _in_tree(model: Model, header: GgufModel, flags: ParsedFlags, release: str, given: _Given | None) -> Reading:
    """0.12 to 0.23: a probe for speculators reads the file first, whatever --hf-config-path says."""
    flags = _set(flags, quantization="gguf", load_format="gguf")
    tables = release_facts(release)
    notes = [f"read through {gguf_config.source('4')}; another transformers may know other architectures"]
    if names.REMOTE.fullmatch(model.path):
        repository = model.path.rpartition(":")[0]
        if not names.is_quant(model.path, release, plugin=False):
            notes.append(f"vLLM {release} does not know {model.path.rpartition(':')[2]} as a quantisation")
            return Reading(model, flags, tables, [names.no_such_quant(model.path)], [*notes, *_guessed(header)])
        if model.files is None:
            raise Unknown(f"whether {repository} has a config.json, which the engine's probe for speculators reads")
        refusals = [] if "config.json" in model.files else [names.no_config(repository)]
        given = given or (None if refusals else _beside(repository, True, f"the config.json of {repository}"))
        if given is not None:
            model, refused = _generating(model, given, release, plugin=False)
            refusals += [refused] if refused else []
        if gguf_config.refuses(header) is not None and not flags.get("tokenizer"):
            notes.append(f"the tokenizer, too, is read through {header.architecture}: pass --tokenizer of the original")
        return Reading(model, flags, tables, refusals, notes)
    refusals = []
    if (refused := gguf_config.refuses(header)) is not None:
        refusals.append(refused)
        notes.append(
            "the engine's probe for speculators reads the file before --hf-config-path counts, so no flag helps: "
            "name it as REPO:QUANT where that repository has a config.json, or take 0.24 or newer with "
            "vllm-gguf-plugin, --hf-config-path and --tokenizer"
        )
    if given is not None:
        model, refused = _generating(model, given, release, plugin=False)
        return Reading(model, flags, tables, refusals + ([refused] if refused else []), notes)
    if refusals:
        return Reading(model, flags, tables, refusals, [*notes, *_guessed(header)])
    config = gguf_config.config_of(header)
    causal = gguf_config.causal_lm("4").get(str(config["model_type"]))
    if causal is None and config["model_type"] in ("t5", "umt5"):
        raise plain("RuntimeError", f"Can't get gguf config for {config['model_type']}.", _CONFIG)
    if causal is not None:
        config["architectures"] = [causal]
    late = None
    if config["model_type"] == "lfm2":  # up to 0.19 a hook reads it, later the model class
        early = _minor(release) < 20
        said = "AttributeError: 'Lfm2Config' object has no attribute 'conv_dim'"
        late = Refusal("create_engine_config" if early else "model_init", said, "vllm/model_executor/models/lfm2.py")
        if early:
            refusals, late = [late], None
    return Reading(msgspec.structs.replace(model, config=config, hf_quant=None), flags, tables, refusals, notes, late)


def _without_plugin(model: Model, header: GgufModel, flags: ParsedFlags, release: str, given: _Given | None) -> Reading:
    """0.24 and newer, nothing installed: the file is taken for a repository or a config file."""
    notes = [_INSTALL.format(PLUGIN)]
    refusals: list[Refusal] = []
    if names.REMOTE.fullmatch(model.path):
        refusals.append(names.no_id(model.path))
    elif _minor(release) < 33:
        text = f"It looks like the config file at '{model.path}' is not a valid JSON file."
        refusals.append(plain("OSError", text, "transformers/configuration_utils.py"))
    elif given is None:
        refusals.append(value_error("ModelConfig", names.INVALID.format(model.path), _CONFIG))
    elif "vision_config" in given.config:
        refusals.append(plain("OSError", names.no_repository(model.path), "transformers/utils/hub.py:595"))
    late = None
    if not refusals:
        said = f"HFValidationError: {names.no_repository(model.path)}"
        late = Refusal("load_weights", said, "vllm/model_executor/model_loader/weight_utils.py:519")
    if given is not None:
        return Reading(_other(model, given), _set(flags), None, refusals, notes, late)
    return Reading(model, _set(flags), None, refusals, [*notes, *_guessed(header)], late)


def _plugin(
    model: Model, header: GgufModel, flags: ParsedFlags, release: str, given: _Given | None, files_here: bool
) -> Reading:
    """vllm-gguf-plugin 0.0.5: config.json from --hf-config-path, else --tokenizer, else beside the file."""
    load = flags.get("load_format")
    load = "gguf" if load in (None, "auto") else load
    values = {"quantization": flags.get("quantization") or "gguf", "load_format": load}
    notes = ["vllm-gguf-plugin taken as 0.0.5"]
    tokenizer = flags.get("tokenizer")
    names_gguf = isinstance(tokenizer, str) and (tokenizer.endswith(".gguf") or names.REMOTE.fullmatch(tokenizer))
    if given is None and not names_gguf:
        given = _beside(tokenizer, files_here, "--tokenizer")
    remote = names.is_quant(model.path, release, plugin=True)
    place = model.path.rpartition(":")[0] if remote else os.path.dirname(model.path) or "."
    here = model.files is None or "config.json" in model.files
    if given is None and here and not remote and not os.path.isfile(model.path):
        raise Unknown("the config.json beside the file, once it is downloaded; give --hf-config-path")
    if given is None and here:
        given = _beside(place, files_here or remote, "the config.json beside the file")
    if given is None:
        refusal = value_error(
            "ModelConfig",
            f"Unrecognized model in {place}. Should have a `model_type` key in its config.json.",
            "transformers/models/auto/configuration_auto.py",
        )
        notes.append("the plug-in needs a config.json: pass --hf-config-path and --tokenizer of the original model")
        notes += _guessed(header)
        return Reading(model, _set(flags, **values), release_facts(release), [refusal], notes)
    if not tokenizer and given.files is not None and not given.files & _TOKENIZERS:
        notes.append(f"{given.path} has no tokenizer, which the engine takes from there: pass --tokenizer")
    other, refused = _generating(model, given, release, plugin=True)
    return Reading(other, _set(flags, **values), release_facts(release), [refused] if refused else [], notes)


def _guessed(header: GgufModel) -> list[str]:
    """What the questions after a refusal are asked with."""
    if header.unknown:
        return []
    return [f"the layers are those that the keys of the file describe ({header.architecture})"]


def unnamed(cfg: EngineConfig, env: Mapping[str, bool]) -> Refusal | Unknown | None:
    """What the GGUF loader refuses before the model is built; Unknown: whether it does."""
    plugin = not in_tree(cfg.release)
    if plugin and not (env.get(PLUGIN) and cfg.flags.get("load_format") == "gguf"):
        return None  # another loader builds the model first, or makes its weights up
    try:
        return gguf_loader.refuses(cfg.config, cfg.release, plugin=plugin)
    except Unknown as unknown:
        return unknown
