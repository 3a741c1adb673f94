"""What the compact form is proven on: the models, the flags that matter, and those that do not.

A *profile* is the canonical form of the flags that matter: ((field, value), ...), sorted by field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnfit.engines.sglang.compact import digest, own_file, reference
from attnfit.engines.sglang.releases import Entry

Profile = tuple[tuple[str, Any], ...]

CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")
TENSOR_PARALLEL = (1, 2, 4, 8)
MEMORY = (16.0, 24.0, 32.0, 48.0, 80.0, 96.0, 141.0, 180.0, 192.0, 288.0)  # GiB, of one GPU
PATH = "/attnfit/./model"  # not in its plain form: messages name one or the other

# Backends that are combined with other flags; those of other platforms and of single models are only asked alone.
COMMON = (
    "triton", "torch_native", "flex_attention", "fa3", "fa4", "flashinfer", "flashmla", "trtllm_mla", "trtllm_mha",
    "cutlass_mla", "cutedsl_mla", "nsa", "dsa",
)  # fmt: skip
PAIRED = ("triton", "flashinfer", "fa3", "fa4", "trtllm_mha", "trtllm_mla")
PAGES = (1, 16, 32, 64, 128)

# Flags without influence on what the form gives -> the values they were proven with: a list, {"min", "max"} of whole
# numbers or of decimals, "word" (letters, digits and ._/-), or None for a bare flag.
INERT: dict[str, Any] = {
    "host": "word",
    "port": {"min": 1024, "max": 65535},
    "api_key": "word",
    "served_model_name": "word",
    "log_level": ["debug", "info", "warning", "error"],
    "mem_fraction_static": {"min": 0.5, "max": 0.95},
    "max_running_requests": {"min": 8, "max": 4096},
    "chunked_prefill_size": ["2048", "4096", "8192", "16384"],
    "cuda_graph_max_bs": {"min": 1, "max": 512},
    "random_seed": {"min": 0, "max": 1000000},
    "stream_interval": {"min": 1, "max": 64},
    "decode_log_interval": {"min": 1, "max": 1000},
    "watchdog_timeout": {"min": 60, "max": 100000},
    "schedule_policy": ["fcfs", "lpm"],
    "schedule_conservativeness": {"min": 0.1, "max": 2.0},
    "download_dir": "word",
    "enable_metrics": None,
    "enable_cache_report": None,
    "log_requests": None,
    "skip_server_warmup": None,
    "disable_custom_all_reduce": None,
    "enable_p2p_check": None,
    "allow_auto_truncate": None,
    "trust_remote_code": None,  # chooses how a checkpoint's own config class is read (Entity.variant)
    "enable_flashinfer_allreduce_fusion": None,  # decides nothing but itself: see WITHDRAWN
    "tool_call_parser": "choices",
    "reasoning_parser": "choices",
}
# Fields the form does not give when the flag is in the command.
WITHDRAWN = {"enable_flashinfer_allreduce_fusion": ["enable_flashinfer_allreduce_fusion"]}

# The same for a part of a GPU's name, as a pattern (0.5.9 server_args.py:1676: no fusion by default on an H20).
NAMED = {"H20(?!0)": ["enable_flashinfer_allreduce_fusion"]}

# Fields of ServerArgs that are given: what attention and its caches end up with, as far as memory does not decide it.
_FIELDS = """
    attention_backend prefill_attention_backend decode_attention_backend page_size kv_cache_dtype dtype quantization
    linear_attn_backend linear_attn_prefill_backend linear_attn_decode_backend linear_attn_verify_backend mamba_backend
    mamba_ssm_dtype mamba_scheduler_strategy mamba_radix_cache_strategy dsa_prefill_backend dsa_decode_backend
    nsa_prefill_backend nsa_decode_backend disable_radix_cache disable_overlap_schedule moe_runner_backend
    fp4_gemm_runner_backend fp8_gemm_runner_backend enable_flashinfer_allreduce_fusion
    speculative_draft_attention_backend disable_hybrid_swa_memory
    swa_full_tokens_ratio sampling_backend speculative_algorithm
"""
FIELDS = _FIELDS.split()
# What lies beside config.json in most checkpoints. Where a model's answer changes with them, they are unknown there.
BESIDE = (
    "generation_config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors", "README.md",
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "LICENSE", "chat_template.jinja",
)  # fmt: skip
# Words in a model's path that the releases look at (0.5.9 model_config.py:1006, hf_transformers_utils.py:308; 0.5.23
# mistral_utils.py:35, memory_hook.py:260, model_path_hook.py:325).
PATH_WORDS = ["glm-4.6v", "mistral-large-3", "mistral-small-4", "leanstral", "eagle", "llama-2"]


class Entity(NamedTuple):
    """One model as a release reads it."""

    name: str
    config: dict[str, Any]
    hf_quant: dict[str, Any] | None
    # "": the release's own class reads it; of a checkpoint that brings a class of its own: "own" (it may not be read),
    # "trusted" (it may, and its file is there)
    variant: str

    @property
    def key(self) -> str:
        return digest(self.config, self.hf_quant) + (f"+{self.variant}" if self.variant else "")

    @property
    def files(self) -> list[str]:
        found = ["config.json", *(["hf_quant_config.json"] if self.hf_quant is not None else [])]
        if self.variant in ("own", "trusted"):
            found += [name for name in (own_file(reference(self.config)),) if name]
        return found


def entities(folders: Iterable[Path]) -> list[Entity]:
    """Every model below the folders (directories with a config.json, or bare .json files), once."""
    found: dict[str, Entity] = {}
    for folder in folders:
        for path in sorted(folder.iterdir()):
            file = path / "config.json" if path.is_dir() else path
            if file.suffix != ".json" or not file.is_file():
                continue
            quant = path / "hf_quant_config.json"
            config = json.loads(file.read_text("utf-8"))
            hf_quant = json.loads(quant.read_text("utf-8")) if path.is_dir() and quant.is_file() else None
            name = (path.name if path.is_dir() else path.stem).replace("__", "/")
            for variant in ("own", "trusted") if reference(config) else ("",):
                entity = Entity(name, config, hf_quant, variant)
                found.setdefault(entity.key, entity)
    return list(found.values())


def extras(entity: Entity) -> tuple[str, ...]:
    """Families of further profiles that concern a model."""
    text = json.dumps(entity.config)
    found = []
    if '"index_topk"' in text:
        found.append("sparse")
    if any(f'"{word}' in text for word in ("linear_num", "linear_attn", "mamba_", "ssm_", "hybrid_override_pattern")):
        found.append("linear")
    return tuple(found)


def profiles(entry: Entry, kv_dtypes: Iterable[str]) -> list[dict[str, list[Profile]]]:
    """By tier, what matters most first: family -> its profiles; the family "" is that of every model."""
    choices = {field: values.names for field, values in entry.choices.items()}
    every = choices["attention_backend"]
    common = [name for name in every if name in COMMON]
    fp8, radix, page = ("kv_cache_dtype", "fp8_e4m3"), ("disable_radix_cache", True), ("page_size", 64)

    def alone(field: str, names: Iterable[Any]) -> list[Profile]:
        return [((field, name),) for name in names]

    def crossed(names: Iterable[str], modifier: tuple[str, Any]) -> list[Profile]:
        return [_sorted(("attention_backend", name), modifier) for name in names]

    def pairs(names: Iterable[tuple[str, str]]) -> list[Profile]:
        fields = ("prefill_attention_backend", "decode_attention_backend")
        return [_sorted(*zip(fields, pair, strict=True)) for pair in names]

    first = [
        (),
        *alone("attention_backend", common),
        *alone("kv_cache_dtype", ("fp8_e4m3", "fp8_e5m2")),
        (page,),
        (("enable_deterministic_inference", True),),
        (radix,),
        *crossed(("triton", "flashinfer"), radix),
        *crossed(("triton",), page),
        *pairs([("flashinfer", "triton")]),
    ]
    candidates = alone("attention_backend", every)
    second = [
        *crossed(common, fp8),
        *alone("kv_cache_dtype", kv_dtypes),
        *alone("page_size", PAGES),
        *alone("speculative_algorithm", ("EAGLE", "NEXTN", "NGRAM")),
    ]
    third = [
        *crossed(common, radix),
        *crossed(common, page),
        *pairs((a, b) for a in PAIRED for b in PAIRED if a != b and {a, b} & {"triton", "flashinfer"}),
    ]
    linear = "linear_attn_backend", "linear_attn_decode_backend", "linear_attn_prefill_backend"
    sparse = _sparse(choices)
    return [
        {"": first, "sparse": sparse[0], "linear": alone(linear[1], choices.get(linear[1], ()))},
        {"": candidates, "sparse": [], "linear": []},
        {"": second, "sparse": [], "linear": alone(linear[0], choices.get(linear[0], ()))},
        {"": third, "sparse": sparse[1], "linear": alone(linear[2], choices.get(linear[2], ()))},
    ]


def _sparse(choices: Mapping[str, Sequence[str]]) -> tuple[list[Profile], list[Profile]]:
    """Kernels of sparse attention: the same for both phases, and each alone or with FP8."""
    both: list[Profile] = []
    more: list[Profile] = []
    for kind in ("nsa", "dsa"):
        fields = (f"{kind}_prefill_backend", f"{kind}_decode_backend")
        for name in choices.get(fields[0], ()):
            pair = [(field, name) for field in fields if name in choices[field]]
            more += [(each,) for each in pair]
            if len(pair) == len(fields):
                both += [_sorted(*pair), _sorted(*pair, ("kv_cache_dtype", "bfloat16"))]
                more.append(_sorted(*pair, ("kv_cache_dtype", "fp8_e4m3")))
    return both, more


def _sorted(*pairs: tuple[str, Any]) -> Profile:
    return tuple(sorted(pairs))


def words(profile: Profile) -> Iterator[str]:
    """The profile as a command spells it."""
    for field, value in profile:
        yield "--" + field.replace("_", "-")
        if value is not True:
            yield str(value)
