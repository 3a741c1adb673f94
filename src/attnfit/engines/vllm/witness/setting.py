"""The config objects engine predicates look at, made from a question. Standard library only.

A field that no question states and that has no literal default in the source leaks when it is read.
"""

from __future__ import annotations

import ast
import contextlib
import types
from collections.abc import Iterable, Mapping
from typing import Any

from attnfit.witness import stubs
from attnfit.witness.facts import Facts


class View:
    """A config object with the fields a question states, and the source's own defaults for the rest."""

    def __init__(self, name: str, fields: Mapping[str, Any], defaults: Mapping[str, Any], facts: Any) -> None:
        space = vars(self)
        space["_name"], space["_fields"], space["_defaults"], space["_facts"] = name, fields, defaults, facts

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        self._facts.note(f"config.{self._name}.{name}")
        if name in self._fields:
            return self._fields[name]
        if name in self._defaults:
            return self._defaults[name]
        stubs.leak(f"{self._name}.{name} is not part of a question")


def vllm_config(q: Mapping[str, Any], defaults: Mapping[str, Mapping[str, Any]], dtype: Any, facts: Facts) -> View:
    """The current VllmConfig as a question states it; `defaults` are the source's own, per sub-config."""
    hf = q.get("hf")
    model = None
    if hf is not None:
        text = types.SimpleNamespace(**hf) if isinstance(hf, Mapping) else hf
        heads = _first_given(q.get("model_num_heads"), q.get("num_heads") or 16)
        kv_heads = q.get("num_kv_heads") or 8
        head_size = _first_given(q.get("model_head_size"), q["head_size"])
        model = View(
            "model_config",
            {
                "hf_text_config": text,
                "hf_config": text,
                "dtype": dtype,
                "get_head_size": lambda: head_size,
                "get_num_attention_heads": lambda parallel_config=None: heads,
                "get_num_kv_heads": lambda parallel_config=None: kv_heads,
                "is_diffusion": q.get("is_diffusion", False),
                "rswa_window": q.get("rswa_window"),
                "is_mm_prefix_lm": _first_given(q.get("is_mm_prefix_lm"), bool(q.get("use_mm_prefix"))),
                "use_mla": q.get("use_mla", False),
                "is_hybrid": q.get("is_hybrid", False),
                "max_model_len": q.get("max_model_len", 8192),
            },
            {},
            facts,
        )
    attention = {
        "backend": None,
        "flash_attn_version": q.get("flash_attn_version"),
        "use_non_causal": q.get("use_non_causal", False),
    }
    if q.get("use_trtllm_attention") is not None:
        attention["use_trtllm_attention"] = q["use_trtllm_attention"]
    parallel = {
        "decode_context_parallel_size": q.get("dcp_size", 1),
        "prefill_context_parallel_size": q.get("pcp_size", 1),
    }
    cache = {
        "cache_dtype": _first_given(q.get("run_kv_cache_dtype"), q.get("kv_cache_dtype") or "auto"),
        "block_size": q.get("block_size"),
        "user_specified_block_size": q.get("block_size") is not None,
    }
    return View(
        "vllm_config",
        {
            "model_config": model,
            "speculative_config": None,
            "kv_transfer_config": None,
            "quant_config": None,
            "lora_config": None,
            "attention_config": View("attention_config", attention, defaults["attention_config"], facts),
            "parallel_config": View("parallel_config", parallel, defaults["parallel_config"], facts),
            "cache_config": View("cache_config", cache, {}, facts),
        },
        {},
        facts,
    )


def capability(value: Any) -> Any:
    """ "12.0" or [12, 0] -> (12, 0); tracked parts stay as they are."""
    return tuple(int(part) for part in value.split(".")) if isinstance(value, str) else tuple(value)


def _first_given(value: Any, default: Any) -> Any:
    return default if value is None else value


def literal_defaults(trees: Iterable[ast.stmt]) -> dict[str, Any]:
    """The literal field defaults of config classes, read off their source."""
    values: dict[str, Any] = {}
    for tree in trees:
        for node in getattr(tree, "body", ()):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                value = node.value
                if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "Field":
                    stated = [k.value for k in value.keywords if k.arg == "default"]
                    value = (stated + value.args + [value])[0]
                with contextlib.suppress(ValueError):
                    values[node.target.id] = ast.literal_eval(value)
    return values
