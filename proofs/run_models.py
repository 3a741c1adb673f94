"""Tiny random models for proofs/run.py: dense Qwen3, hybrid Qwen3-Next, MLA DeepSeek-V3. Run by the engine's Python.

python run_models.py FOLDER     # makes FOLDER/dense, /hybrid, /mla, /dsa
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

WORDS = 512
COMMON: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
EXPERTS = {"moe_intermediate_size": 128, "num_experts_per_tok": 2}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("qwen3", {"num_key_value_heads": 2, "head_dim": 64}),
    "hybrid": (
        "qwen3_next",
        {
            **EXPERTS, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 4,
            "shared_expert_intermediate_size": 128,
            "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 64,
            "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
        },
    ),
    "mla": (
        "deepseek_v3",
        {
            **EXPERTS, "num_key_value_heads": 4, "kv_lora_rank": 512, "q_lora_rank": 128, "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 64, "v_head_dim": 64, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1,
            "topk_group": 1, "first_k_dense_replace": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
        },
    ),
}  # fmt: skip
KINDS["dsa"] = (
    "deepseek_v32",
    {**KINDS["mla"][1], "index_topk": 64, "index_head_dim": 128, "index_n_heads": 4},
)


def make(folder: Path, kind: str, changes: dict[str, Any]) -> None:
    config = AutoConfig.for_model(kind, **{**COMMON, **changes})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(torch.bfloat16).save_pretrained(folder)
    words = {f"t{number}": number for number in range(WORDS)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder")),
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


if __name__ == "__main__":
    for name, (kind, changes) in KINDS.items():
        make(Path(sys.argv[1]) / name, kind, changes)
