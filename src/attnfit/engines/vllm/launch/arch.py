"""Which model class the engine takes for an architecture list, and what that class declares about itself."""

from __future__ import annotations

from typing import Any

import msgspec

from attnfit.engines.vllm.launch.messages import value_error
from attnfit.engines.vllm.launch.state import Unknown
from attnfit.hf.config import ClassTables, HfConfig

#: vllm/config/model.py: what a name's ending says, first match wins
SUFFIXES: tuple[tuple[str, str, str], ...] = (
    ("ForCausalLM", "generate", "none"),
    ("ForConditionalGeneration", "generate", "none"),
    ("ChatModel", "generate", "none"),
    ("LMHeadModel", "generate", "none"),
    ("ForTextEncoding", "pooling", "embed"),
    ("EmbeddingModel", "pooling", "embed"),
    ("ForSequenceClassification", "pooling", "classify"),
    ("ForTokenClassification", "pooling", "classify"),
    ("ForAudioClassification", "pooling", "classify"),
    ("ForImageClassification", "pooling", "classify"),
    ("ForVideoClassification", "pooling", "classify"),
    ("ClassificationModel", "pooling", "classify"),
    ("ForRewardModeling", "pooling", "embed"),
    ("RewardModel", "pooling", "embed"),
    ("Model", "pooling", "embed"),
)
_WHERE = "vllm/model_executor/models/registry.py"


class ModelInfo(msgspec.Struct, frozen=True):
    """The class the engine takes, with its flags."""

    architecture: str  # as config.json names it
    at: str  # "vllm.models.deepseek_v32:GlmMoeDsaForCausalLM"
    flags: frozenset[str]
    attn_type: str = "decoder"
    seq_pooling: str = "LAST"
    tok_pooling: str = "ALL"
    registered: str = ""  # the registry's name for it, where config.json names a base model

    def __contains__(self, flag: str) -> bool:
        return flag in self.flags


def match_suffix(arch: str, runner: str | None = None) -> tuple[str, str, str] | None:
    """(suffix, runner, convert) for an architecture name."""
    for suffix, default_runner, convert in SUFFIXES:
        if arch.endswith(suffix) and runner in (None, default_runner):
            return suffix, default_runner, convert
    return None


def resolve_architecture(
    facts: dict[str, Any], tables: ClassTables, node: HfConfig, archs: list[str], runner: str | None
) -> ModelInfo:
    """The model class. Raises Refusal where the release has none, Unknown for Transformers' own modelling code."""
    known: dict[str, Any] = facts["architectures"]
    if not archs:
        raise value_error("ModelConfig", "No model architectures are specified", _WHERE)
    for arch in archs:
        name = _normalize(known, arch, runner)
        if name in known:
            return _info(arch, known[name], name)
    in_transformers = archs[0] in tables.model_classes
    if in_transformers or _remote_model(node):
        raise Unknown(f"architecture {archs[0]} runs on transformers' own modelling code in this release")
    _unsupported(facts, archs)
    raise AssertionError


def _normalize(known: dict[str, Any], arch: str, runner: str | None) -> str:
    if arch in known:
        return arch
    match = match_suffix(arch, None if runner == "auto" else runner)
    if match:
        for suffix, _, _ in SUFFIXES:
            base = arch.replace(match[0], suffix)
            if base in known:
                return base
    return arch


def _info(arch: str, entry: dict[str, Any], name: str) -> ModelInfo:
    if ".transformers:TransformersMultiModal" in entry["at"]:
        raise Unknown(f"{name} runs on transformers' own modelling code, with processor files we do not read")
    if entry.get("unresolved"):
        raise Unknown(f"what the model class of {name} declares")
    return ModelInfo(
        architecture=arch,
        at=entry["at"],
        flags=frozenset(entry.get("is", ())),
        attn_type=entry.get("attn_type", "decoder"),
        seq_pooling=entry.get("default_seq_pooling_type", "LAST"),
        tok_pooling=entry.get("default_tok_pooling_type", "ALL"),
        registered=name,
    )


def _remote_model(node: HfConfig) -> bool:
    auto_map = node.attrs.get("auto_map")
    return isinstance(auto_map, dict) and any(str(k).startswith("AutoModel") for k in auto_map)


def _unsupported(facts: dict[str, Any], archs: list[str]) -> None:
    for arch in archs:
        if arch in facts.get("removed", {}):
            raise value_error(
                "ModelConfig",
                f"Model architecture {arch} was supported in vLLM until v{facts['removed'][arch]}, and is not "
                "supported anymore. Please use an older version of vLLM if you want to use this model architecture.",
                _WHERE,
            )
        if arch in facts.get("plugins", {}):
            raise value_error(
                "ModelConfig",
                f"Model architecture {arch} is not supported in-tree anymore. Please install the plugin at "
                f"{facts['plugins'][arch]} if you want to use this model architecture.",
                _WHERE,
            )
    names = ", ".join(repr(a) for a in facts["architectures"])
    raise value_error(
        "ModelConfig",
        f"Model architectures {archs} are not supported for now. Supported architectures: dict_keys([{names}])",
        _WHERE,
    )


def runner_and_convert(
    info: ModelInfo, archs: list[str], known: dict[str, Any], runner: str, convert: str
) -> tuple[str, str]:
    """`--runner` and `--convert` resolved, with the engine's refusals."""
    pooling, generates = "pooling" in info, "generates" in info
    if runner == "auto":
        runner = _default_runner(info, archs, known) if convert in ("auto", "none") else "pooling"
    if convert == "auto":
        convert = _default_convert(info, archs, known, runner)
    if pooling and not generates and runner in ("draft", "generate"):
        raise value_error(
            "ModelConfig",
            f"Embedding models do not support `--runner {runner}`. "
            "Use `--runner pooling` or `--runner auto` for embedding models.",
            "vllm/config/model.py",
        )
    if runner == "generate" and not generates:
        raise value_error("ModelConfig", "This model does not support `--runner generate`.", "vllm/config/model.py")
    if runner == "pooling" and not pooling and convert not in ("embed", "classify"):
        raise value_error(
            "ModelConfig",
            "This model does not support `--runner pooling`. You can pass `--convert <embed|classify> to adapt "
            "it into a pooling model.",
            "vllm/config/model.py",
        )
    return runner, convert


def _default_runner(info: ModelInfo, archs: list[str], known: dict[str, Any]) -> str:
    for arch in archs:
        if arch in known:
            if "pooling" in info:
                return "pooling"
            if "generates" in info:
                return "generate"
        match = match_suffix(arch)
        if match:
            return match[1]
    return "generate"


def _default_convert(info: ModelInfo, archs: list[str], known: dict[str, Any], runner: str) -> str:
    for arch in archs:
        if arch in known:
            if runner == "generate" and "generates" in info:
                return "none"
            if runner == "pooling" and "pooling" in info:
                return "none"
        match = match_suffix(arch, runner)
        if match:
            return match[2]
    return "embed" if runner == "pooling" else "none"
