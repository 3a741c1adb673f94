"""The checks that the release's config classes run on themselves, each as one small named function.

A check of the engine is known by class, method and the digest of its syntax tree, which the flag table records. A
digest that is not listed here makes the answer unknown, naming file and line: somebody changed that check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from attnfit.engines.vllm.flags import class_rules as rules
from attnfit.engines.vllm.flags.class_rules import SchemaError
from attnfit.engines.vllm.launch.state import Unknown


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


Entry = tuple[frozenset[str], Any]


def _on(digests: str, rule: Any) -> Entry:
    return frozenset(digests.split()), rule


# (class, method) -> the digests read, per rule. Several rules may share a method over the releases.
_READ: tuple[tuple[str, str, Entry], ...] = (
    (
        "AttentionConfig",
        "validate_backend_before",
        _on("d9d977c4e3aa", rules.member("AttentionBackendEnum", auto=False)),
    ),
    (
        "AttentionConfig",
        "validate_backend_before",
        _on("ad6b70e3716a", rules.member("AttentionBackendEnum", auto=True)),
    ),
    (
        "AttentionConfig",
        "validate_mla_prefill_backend_before",
        _on("41105d540965", rules.member("MLAPrefillBackendEnum", auto=False)),
    ),
    ("AttentionConfig", "validate_backend_per_kind_before", _on("6c830f647b44", rules.per_kind)),
    # 0.13 and 0.14: fills fields from VLLM_* variables, which the configuration stage reads
    ("AttentionConfig", "__post_init__", _on("8fff1c6bf0a0 6a2efc8d0a48", rules.fine)),
    ("AttentionConfig", "__post_init__", _on("0998d370e2ae", rules.cudnn_prefill)),
    ("AttentionConfig", "__post_init__", _on("d6fbe2ffe71e bb5795aa2cbb", rules.fp4_indexer)),
    ("AttentionConfig", "__post_init__", _on("1a1afac181c3", rules.minimax_indexer)),
    ("CompilationConfig", "validate_mode_before", _on("3f29588c0fff 3f29588c0fff", rules.mode)),
    (
        "CompilationConfig",
        "validate_cudagraph_mode_before",
        _on("22497c4e2c50", rules.member("CUDAGraphMode", auto=False)),
    ),
    ("CompilationConfig", "validate_pass_config_before", _on("1348155580c0", rules.pass_config)),
    ("CompilationConfig", "validate_compile_cache_save_format", _on("95822621a1c2", rules.save_format)),
    (
        "CompilationConfig",
        "__post_init__",
        _on(
            "96d24df54de5 e7c5ba99d185 ac69e803b8e6 f65c29403483 488bca568e4d da974eac67d6 31acbfb6b51e ee8391370668",
            rules.compilation_old,
        ),
    ),
    ("CompilationConfig", "__post_init__", _on("7d1ae0930f06 8ddf0745960f", rules.compilation_new)),
    # only warns, or switches a fusion off
    (
        "PassConfig",
        "__post_init__",
        _on(
            "36e344a4a4ff 4487a7cfd5ca 92e6024bbb0f 562cd83bc345 fd883b4e62d6 2c4bd500801c 4aa55903ce9c d089e9faeb0b "
            "0df18d9af26b",
            rules.fine,
        ),
    ),
    ("KVTransferConfig", "__post_init__", _on("166b5999302e", rules.kv_transfer)),
    ("KVEventsConfig", "__post_init__", _on("48ccb43857d9", rules.fine)),
    ("ECTransferConfig", "__post_init__", _on("17da23c50ba2", rules.ec_transfer)),
    ("EncoderCacheManagerConfig", "__post_init__", _on("a362d5be9a48", rules.ec_manager)),
    ("EPLBConfig", "_validate_eplb_config", _on("396c18948e28", rules.eplb)),
    ("EPLBConfig", "_validate_eplb_config", _on("5d17bd89c5c4", rules.eplb_communicator)),
    ("EngramConfig", "_validate_shared_memory", _on("031dd05ecfd6 cbad4613aa23", rules.engram)),
    ("IrOpPriorityConfig", "_to_list_str", _on("cb71113a896d", rules.list_of_str)),
    ("KernelConfig", "_normalize_moe_backend", _on("26a9d00d372e", rules.lower_underscore)),
    ("KernelConfig", "_normalize_linear_backend", _on("21fef25b72fb", rules.lower_underscore)),
    ("KernelConfig", "_normalize_sparse_indexer_topk_backend", _on("22aaa11c82a3", rules.lower_underscore)),
    ("PoolerConfig", "__post_init__", _on("da9d2e7bc36c", rules.fine)),
    ("PoolerConfig", "__post_init__", _on("f8e4e10f4b96 91b8ace8b616", rules.pooling_type)),
    ("PoolerConfig", "__post_init__", _on("878ab8a2e5df 37d98565d58d", rules.pooler)),
    ("PoolerConfig", "reject_removed_parameters", _on("382b7e8e9d9d", rules.pooler_removed)),
    (
        "ProfilerConfig",
        "_validate_profiler_config",
        _on("dcfa6bbf9a1f 42f6e476dd05 58220bd902ab 32c3f42a2b1b 59861f070df7 b8b0d85d3936", rules.profiler),
    ),
    ("QuantizationConfigArgs", "_coerce_spec", _on("633442573d32", rules.spec_or_shorthand)),
    ("QuantizationConfigArgs", "_validate_targets", _on("0a10056d4d67", rules.targets)),
    ("QuantizationConfigArgs", "_validate_targets_exclusivity", _on("9099bdb81aa1", rules.quantization)),
    ("StructuredOutputsConfig", "_validate_structured_output_config", _on("863d94135a48", rules.structured_old)),
    (
        "StructuredOutputsConfig",
        "_validate_structured_output_config",
        _on("72a003d68646 ceff7cc431db", rules.structured),
    ),
)
KNOWN: dict[tuple[str, str, str], Any] = {
    (cls, name, digest): rule for cls, name, (digests, rule) in _READ for digest in digests
}
