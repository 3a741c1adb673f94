"""A GLM-5 in miniature as a GGUF file: llama.cpp's names of keys and tensors, real sizes of attention, all else small.

Written by hand as `gguf_bytes` does it; tests/test_gguf_story.py reads it back with the gguf package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gguf_bytes import Builder

F32, Q8_0 = 0, 8
LAYERS, HIDDEN, HEADS, WORDS, EXPERTS = 2, 256, 8, 64, 4
CONFIG: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "dtype": "bfloat16",
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
    "head_dim": 64, "vocab_size": WORDS, "intermediate_size": 256, "max_position_embeddings": 4096,
    "q_lora_rank": 256, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "qk_head_dim": 256,
    "v_head_dim": 256, "index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128, "indexer_rope_interleave": True,
    "n_routed_experts": EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 0, "moe_layer_freq": 1,
    "hidden_act": "silu", "attention_bias": False, "rms_norm_eps": 1e-05, "tie_word_embeddings": False,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "rope_interleave": True,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip


def values(architecture: str = "glm-dsa") -> dict[str, Any]:
    """The keys, as llama.cpp's converter writes them for GLM-5."""
    c = CONFIG
    own = {
        "block_count": LAYERS, "context_length": c["max_position_embeddings"], "embedding_length": HIDDEN,
        "feed_forward_length": c["intermediate_size"], "attention.head_count": HEADS, "attention.head_count_kv": 1,
        "rope.freq_base": 1000000.0, "attention.layer_norm_rms_epsilon": 1e-05, "expert_count": EXPERTS,
        "expert_used_count": 2, "expert_group_count": 1, "expert_group_used_count": 1, "expert_gating_func": 2,
        "attention.key_length": 576, "attention.value_length": 512, "leading_dense_block_count": 1,
        "vocab_size": WORDS, "attention.q_lora_rank": c["q_lora_rank"], "attention.kv_lora_rank": c["kv_lora_rank"],
        "attention.key_length_mla": 256, "attention.value_length_mla": c["v_head_dim"],
        "expert_feed_forward_length": c["moe_intermediate_size"], "expert_shared_count": 1,
        "expert_weights_scale": 2.5, "expert_weights_norm": True, "rope.dimension_count": c["qk_rope_head_dim"],
        "attention.indexer.head_count": c["index_n_heads"], "attention.indexer.key_length": c["index_head_dim"],
        "attention.indexer.top_k": c["index_topk"], "attention.indexer.types": [True] * LAYERS,
    }  # fmt: skip
    words = ["<s>", "</s>", *(chr(33 + n) for n in range(WORDS - 2))]
    return {
        "general.architecture": architecture, "general.name": "tiny",
        **{f"{architecture}.{key}": value for key, value in own.items()},
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "glm4", "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.merges": ["a b", "c d"], "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.bos_token_id": 0,
    }  # fmt: skip


def tensors() -> Iterator[tuple[str, tuple[int, ...], int]]:
    """(name, shape in GGML's order, type): a converter splits kv_b into attn_k_b and attn_v_b."""
    c = CONFIG
    latent, rope, nope, value = c["kv_lora_rank"], c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
    index = c["index_n_heads"] * c["index_head_dim"]
    yield "token_embd.weight", (HIDDEN, WORDS), Q8_0
    yield "output_norm.weight", (HIDDEN,), F32
    yield "output.weight", (HIDDEN, WORDS), Q8_0
    for layer in range(LAYERS):
        blk = f"blk.{layer}."
        yield blk + "attn_norm.weight", (HIDDEN,), F32
        yield blk + "attn_q_a.weight", (HIDDEN, c["q_lora_rank"]), Q8_0
        yield blk + "attn_q_a_norm.weight", (c["q_lora_rank"],), F32
        yield blk + "attn_q_b.weight", (c["q_lora_rank"], HEADS * (nope + rope)), Q8_0
        yield blk + "attn_kv_a_mqa.weight", (HIDDEN, latent + rope), Q8_0
        yield blk + "attn_kv_a_norm.weight", (latent,), F32
        yield blk + "attn_k_b.weight", (nope, latent, HEADS), Q8_0
        yield blk + "attn_v_b.weight", (latent, value, HEADS), Q8_0
        yield blk + "attn_output.weight", (HEADS * value, HIDDEN), Q8_0
        yield blk + "indexer.k_norm.weight", (c["index_head_dim"],), F32
        yield blk + "indexer.k_norm.bias", (c["index_head_dim"],), F32
        yield blk + "indexer.proj.weight", (HIDDEN, c["index_n_heads"]), F32
        yield blk + "indexer.attn_k.weight", (HIDDEN, c["index_head_dim"]), Q8_0
        yield blk + "indexer.attn_q_b.weight", (c["q_lora_rank"], index), Q8_0
        yield blk + "ffn_norm.weight", (HIDDEN,), F32
        if layer < c["first_k_dense_replace"]:
            yield from ((f"{blk}ffn_{name}.weight", (HIDDEN, 256), Q8_0) for name in ("gate", "up", "down"))
            continue
        yield blk + "ffn_gate_inp.weight", (HIDDEN, EXPERTS), F32
        yield blk + "exp_probs_b.bias", (EXPERTS,), F32
        for name in ("gate", "up", "down"):
            yield f"{blk}ffn_{name}_exps.weight", (256, 256, EXPERTS), Q8_0
            yield f"{blk}ffn_{name}_shexp.weight", (256, 256), Q8_0


def write(path: Path, *, architecture: str = "glm-dsa") -> Path:
    """The whole file, weights of zero."""
    listed, offset = [], 0
    for name, shape, kind in tensors():
        listed.append((name, shape, kind, offset))
        count = math.prod(shape)
        size = 4 * count if kind == F32 else 34 * (count // 32)
        offset += size + -size % 32
    head = Builder().header(values(architecture), listed)
    with path.open("wb") as out:
        out.write(head + bytes(-len(head) % 32))
        out.truncate(out.tell() + offset)
    return path


def config(folder: Path, **changed: Any) -> Path:
    """A folder with the config.json of the original model. changed: other values; None leaves a key out."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in {**CONFIG, **changed}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def tokenizer(folder: Path) -> Path:
    """Beside it the smallest tokenizer that transformers opens."""
    words = {word: n for n, word in enumerate(values()["tokenizer.ggml.tokens"])}
    file = {
        "version": "1.0", "added_tokens": [], "pre_tokenizer": None, "normalizer": None, "post_processor": None,
        "decoder": None, "truncation": None, "padding": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<s>"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(file))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder
