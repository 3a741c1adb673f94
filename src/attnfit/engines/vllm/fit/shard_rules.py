"""Which side of a tensor vLLM cuts among tensor-parallel ranks, told from its name in the checkpoint.

Read from the model classes of 0.33.0 (ColumnParallelLinear, RowParallelLinear, QKVParallelLinear, ReplicatedLinear,
VocabParallelEmbedding, FusedMoE) and held against the parameters of 45 real models at TP 1, 2 and 8.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple


class Cut(StrEnum):
    """How the ranks of one tensor-parallel group share a tensor."""

    COLUMN = "column"  # outputs are divided
    ROW = "row"  # inputs are divided; a bias is replicated
    KV = "kv"  # by KV heads, each of which some ranks share where there are fewer heads than ranks
    QKV = "qkv"  # query, key and value merged
    VOCAB = "vocab"  # padded to a multiple of 64, then divided
    EXPERT = "expert"  # whole experts to each rank, or each expert divided
    WHOLE = "whole"  # every rank holds it
    TOWER = "tower"  # part of an image or audio encoder: divided or not, by class
    EITHER = "either"  # a norm over all heads: divided or not, by class
    UNKNOWN = "unknown"


#: the last part of a tensor's name: what of the module it is
PARTS = frozenset(
    {
        "weight", "bias", "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_packed", "weight_shape",
        "weight_zero_point", "weight_global_scale", "input_scale", "input_global_scale", "input_zero_point", "qweight",
        "qzeros", "scales", "g_idx", "k_scale", "v_scale", "q_scale", "output_scale", "scale",
        "e_score_correction_bias", "weight_bias", "tid2eid",
    }
)  # fmt: skip
_TOWERS = frozenset(
    {
        "visual", "vision_tower", "vision_model", "vision_encoder", "vision", "vit", "audio_tower", "audio_encoder",
        "multi_modal_projector", "mm_projector", "patch_merger", "image_newline", "sound_encoder", "mlp1", "aligner",
    }
)  # fmt: skip
_CUTS: dict[Cut, frozenset[str]] = {
    Cut.COLUMN: frozenset(
        {
            "q_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "wq", "wq_b", "wo_a",
            "c_fc", "dense_h_to_4h", "in_proj", "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_a",
            "in_proj_b", "f_b_proj", "g_b_proj", "b_proj", "g_proj", "conv1d", "q_conv1d", "k_conv1d", "v_conv1d",
            "A_log", "A", "D", "dt_bias", "dt_proj", "sinks", "attn_sink", "input_linear",
        }
    ),
    Cut.ROW: frozenset({"o_proj", "out_proj", "down_proj", "w2", "wo", "wo_b", "c_proj", "dense_4h_to_h", "x_proj",
                        "output_linear"}),
    Cut.KV: frozenset({"k_proj", "v_proj", "wk", "wv"}),
    Cut.QKV: frozenset({"qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv"}),
    Cut.VOCAB: frozenset({"embed_tokens", "lm_head", "wte", "word_embeddings", "tok_embeddings", "embed_out",
                          "embed_in", "embeddings", "embed", "head", "output"}),
    Cut.WHOLE: frozenset(
        {
            "gate", "router", "q_a_proj", "kv_a_proj_with_mqa", "wq_a", "wkv", "wkv_a", "shared_expert_gate",
            "fc1_latent_proj", "fc2_latent_proj", "f_a_proj", "g_a_proj", "rotary_emb", "inv_freq", "ape",
            "routed_expert_down_proj", "routed_expert_up_proj", "self_attention_res_proj", "mlp_res_proj",
            "output_attn_res_proj",
        }
    ),
}  # fmt: skip
#: the same in GGUF's names (github.com/ggml-org/llama.cpp, gguf-py/gguf/constants.py)
_GGUF: dict[Cut, frozenset[str]] = {
    Cut.COLUMN: frozenset(
        {
            "attn_q", "attn_q_b", "attn_kv_b", "attn_k_b", "attn_v_b", "attn_gate", "ffn_gate", "ffn_up",
            "ffn_gate_shexp", "ffn_up_shexp", "ssm_in", "ssm_conv1d", "ssm_a", "ssm_d", "ssm_dt", "ssm_beta_alpha",
            "attn_sinks",
        }
    ),
    Cut.ROW: frozenset({"attn_output", "ffn_down", "ffn_down_shexp", "ssm_out"}),
    Cut.KV: frozenset({"attn_k", "attn_v"}),
    Cut.QKV: frozenset({"attn_qkv"}),
    Cut.VOCAB: frozenset({"token_embd"}),
    Cut.EXPERT: frozenset({"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps"}),
    Cut.WHOLE: frozenset(
        {"ffn_gate_inp", "ffn_gate_inp_shexp", "attn_q_a", "attn_kv_a_mqa", "exp_probs_b", "rope_freqs"}
    ),
}  # fmt: skip
_BY_MODULE = {module: cut for table in (_CUTS, _GGUF) for cut, modules in table.items() for module in modules}


# What some class of 0.33.0 creates with a dtype of its own: biases and gates of routers (models/glm4_moe.py:145), short
# convolutions, decays and steps of recurrent layers (gdn/kimi_gdn_linear_attn.py:237), sinks, and below norms
# (models/deepseek_v2.py:720), the compressor (models/deepseek_v4/compressor.py:262) and hyper-connections (:445).
_OWN = frozenset({"gate", "router", "text_experts_gate", "vision_experts_gate", "ffn_gate_inp", "conv1d", "q_conv1d",
                  "k_conv1d", "v_conv1d", "ssm_conv1d", "A_log", "A", "D", "dt_bias", "ssm_a", "ssm_d", "ssm_dt",
                  "sinks", "attn_sink", "attn_sinks", "ape"})  # fmt: skip


class Named(NamedTuple):
    """A tensor's name, understood."""

    cut: Cut
    part: str  # "weight", "bias", ...
    role: str = (
        ""  # "mtp": of a multi-token-prediction head; "head": lm_head; "embed": the embedding; "router"; "shared"
    )
    own_dtype: bool = False  # some class creates it in float32 or bfloat16, whatever the model's dtype is


_NUMBER = re.compile(r"\.\d+(?=\.)")


def kind_of(name: str) -> str:
    """The name without its layer and expert numbers: equal for tensors that are alike."""
    return _NUMBER.sub(".", name)


def layer_of(name: str) -> int | None:
    """The decoder layer a tensor belongs to: the first number in its name that counts no experts."""
    for found in _NUMBER.finditer(name):
        at = found.start()
        if name[max(0, at - 7) : at] != "experts":
            return int(name[at + 1 : found.end()])
    return None


def understand(name: str) -> Named:
    """Read a checkpoint's tensor name."""
    words = name.split(".")
    part = words.pop() if words[-1] in PARTS else ""
    module = words[-1] if words else ""
    if module.endswith("_bias") and not part:  # fused experts of gpt-oss
        part = "bias"
    if any(word in _TOWERS for word in words):
        return Named(Cut.TOWER, part)
    role = "mtp" if any(word.startswith(("mtp", "nextn")) for word in words) else ""
    if not role and module in _CUTS[Cut.VOCAB]:
        role = "head" if module in ("lm_head", "head", "output", "embed_out") else "embed"
    if not role and module == "token_embd":
        role = "embed"
    if not role and module in ("gate", "router", "ffn_gate_inp"):
        role = "router"
    if not role and (module.endswith("_shexp") or any(word.startswith("shared_expert") for word in words)):
        role = "shared"
    return Named(_cut(words, module, part), part, role, _own_dtype(words, module, part))


def _own_dtype(words: list[str], module: str, part: str) -> bool:
    if module in _OWN or part == "e_score_correction_bias" or "router" in words or "compressor" in words:
        return True
    return "norm" in module.lower() or module.startswith(("ln_", "hc_", "index_kpool"))


def _cut(words: list[str], module: str, part: str) -> Cut:
    if "indexer" in words or "compressor" in words or module.startswith("hc_"):
        return Cut.WHOLE  # sparse attention's indexer and DeepSeek-V4's compressor and hyper-connections
    if "experts" in words[:-1] or module == "experts" or ("block_sparse_moe" in words and module.endswith("_linear")):
        return Cut.EXPERT
    if part == "e_score_correction_bias" or "router" in words or module == "tid2eid":
        return Cut.WHOLE
    if "norm" in module.lower() or module.startswith("ln_"):
        over_heads = module in ("q_norm", "k_norm") or (module == "norm" and ("mixer" in words or "mamba" in words))
        return Cut.EITHER if over_heads else Cut.WHOLE
    return _BY_MODULE.get(module, Cut.UNKNOWN)
