"""What transformers makes of the keys of a GGUF file: the config.json that vLLM up to 0.23 sees.

Follows `load_gguf_checkpoint` of transformers 4.57.6 (modeling_gguf_pytorch_utils.py); which key becomes which trait is
its table (`tables/gguf-transformers-*.json`, written by proofs/gguf_tables.py).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnfit.engines.vllm.launch.messages import plain
from attnfit.engines.vllm.launch.state import Refusal, Unknown

if TYPE_CHECKING:
    from attnfit.inputs.gguf.header import Value
    from attnfit.inputs.gguf.traits import GgufModel

_WHERE = "transformers/modeling_gguf_pytorch_utils.py"
_FILES = {"4": "gguf-transformers-4.57.6.json", "5": "gguf-transformers-5.20.2.json"}


@functools.cache
def _table(major: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode((Path(__file__).parent / "tables" / _FILES[major]).read_bytes())
    return found


def source(major: str) -> str:
    """ "transformers 4.57.6" """
    return str(_table(major)["source"]).replace("==", " ")


def causal_lm(major: str) -> dict[str, str]:
    """Model type -> the class transformers generates text with, which vLLM takes for the architecture."""
    names: dict[str, str] = _table(major)["causal_lm"]
    return names


def _name(header: GgufModel) -> tuple[str, Any]:
    """The architecture under transformers' own name, and general.name."""
    architecture, name = header.architecture, header.files.header.values.get("general.name")
    if "llama" in architecture and name == "mistral":  # it compares a list, so only the whole name counts
        return "mistral", name
    if "t5" in architecture:
        umt5 = isinstance(name, str) and "umt5" in name.lower()
        return ("umt5" if umt5 else "t5"), name
    if "qwen2moe" in architecture:
        return "qwen2_moe", name
    if "qwen3moe" in architecture:
        return "qwen3_moe", name
    return architecture, name


def refuses(header: GgufModel) -> Refusal | None:
    """What reading the file raises, where it does."""
    file = header.files.header
    if file.version == 1:
        return plain("ValueError", "Sorry, file appears to be version 1 which we cannot handle", "gguf/gguf_reader.py")
    known = _table("4")["known"]
    if header.architecture not in known and _name(header)[0] not in known:
        said = f"GGUF model with architecture {header.architecture} is not supported yet."
        return plain("ValueError", said, f"{_WHERE}:431")
    return None


def config_of(header: GgufModel) -> dict[str, Any]:
    """The config dictionary, for an architecture that `refuses` lets through. Raises Unknown for values not kept."""
    architecture, values = header.architecture, header.files.header.values
    renamed, _ = _name(header)
    keys: dict[str, dict[str, str]] = _table("4")["keys"]
    config: dict[str, Any] = {"model_type": renamed, "_model_name_or_path": values.get("general.name")}
    for full, value in values.items():
        prefix, _, key = full.replace(architecture, renamed).partition(".")
        trait = keys.get(prefix, {}).get(key)
        if trait is not None:
            config[trait] = _plain(full, value)
    config["tie_word_embeddings"] = architecture in ("falcon", "bloom") or not any(
        tensor.name == "output.weight" for tensor in header.files.header.tensors
    )
    if config["model_type"] == "gemma3":
        config["model_type"] = "gemma3_text"
    if config["model_type"] == "lfm2":
        counts = config.get("num_key_value_heads")
        if not isinstance(counts, list):
            raise Unknown("lfm2.attention.head_count_kv of the GGUF file is no list")
        config["num_key_value_heads"] = max(counts)
        config["full_attn_idxs"] = [layer for layer, count in enumerate(counts) if count > 0]
        config["block_auto_adjust_ff_dim"] = False
    tokens = header.files.header.values.get("tokenizer.ggml.tokens")
    if "vocab_size" not in config and hasattr(tokens, "length"):
        config["vocab_size"] = tokens.length  # type: ignore[union-attr]
    return config


def _plain(key: str, value: Value) -> Any:
    """The value as transformers has it: an array of one element is that element."""
    from attnfit.inputs.gguf.header import Array, Text

    if isinstance(value, Array):
        if value.values is None:
            raise Unknown(f"{key} of the GGUF file, which is too long to be kept")
        return value.values[0] if value.length == 1 else list(value.values)
    if isinstance(value, Text):
        raise Unknown(f"{key} of the GGUF file, which is too long to be kept")
    return value
