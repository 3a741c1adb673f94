"""What transformers says of tiny random DSA models, eager: the other side of proofs/vllm_cpu.py, and the models' maker.

Run by the Python of vLLM's environment, which has transformers. One JSON object a line: {"make": {...}} or
{"judge": {...}} to one line of answer each.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 512
# Small, but each part of the real ones is there: a dense layer, routed and shared experts, a latent of 512 + 64.
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 128,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.05,  # fp32 then leaves 3e-6 of noise in a logprob, and a dense model differs by 2
    "bos_token_id": 0,
    "eos_token_id": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
MASKED = -1e30  # keys of the future score less
# 32 index heads: with few, ReLU makes exact ties at 0, and top-k then says nothing.
DSA = {"index_topk": 64, "index_head_dim": 128, "index_n_heads": 32}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
KINDS: dict[str, dict[str, Any]] = {
    "glm_moe_dsa": {**DSA, "indexer_rope_interleave": True},
    "deepseek_v32": {**DSA, "rope_parameters": YARN},
    "deepseek_v3": {"rope_interleave": True},  # dense MLA
}


def make(folder: str, kind: str, seed: int, dtype: str = "float32", **changes: Any) -> dict[str, Any]:
    """Writes a model with a word-level tokenizer ("t0" to "t511") to `folder`."""
    config = AutoConfig.for_model(kind, **{**COMMON, **KINDS[kind], **changes})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, value in model.named_parameters():  # what starts as 0 or 1 would hide that it is not read
            if name.endswith("norm.weight"):
                value.mul_(1 + 0.2 * torch.randn_like(value))
            elif name.endswith("bias"):
                value.normal_(0, 0.1)
        for name, value in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                value.normal_(0, 0.05)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    if changes.get("num_nextn_predict_layers"):
        _add_draft(Path(folder) / "model.safetensors", model.config.num_hidden_layers)
    words = {f"t{number}": number for number in range(VOCABULARY)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder")),
    }
    (Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
    (Path(folder) / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return {"parameters": sum(value.numel() for value in model.parameters())}


def _add_draft(file: Path, layers: int) -> None:
    """One layer that drafts, which transformers does not have: a copy of the last one, and projections at random."""
    weights = load_file(file)
    last, draft = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    found = {name.replace(last, draft): value.clone() for name, value in weights.items() if name.startswith(last)}
    hidden, like = weights["model.embed_tokens.weight"].shape[1], weights["lm_head.weight"]
    found |= {
        f"{draft}embed_tokens.weight": weights["model.embed_tokens.weight"].clone(),
        f"{draft}shared_head.head.weight": weights["lm_head.weight"].clone(),
        f"{draft}shared_head.norm.weight": weights["model.norm.weight"].clone(),
        f"{draft}enorm.weight": torch.ones(hidden, dtype=like.dtype),
        f"{draft}hnorm.weight": torch.ones(hidden, dtype=like.dtype),
        f"{draft}eh_proj.weight": torch.randn(hidden, 2 * hidden).mul(0.05).to(like.dtype),
    }
    save_file({**weights, **found}, file, metadata={"format": "pt"})


class Margins:
    """How clearly each token's top-k decisions (the indexer's, the router's) were made, by watching `Tensor.topk`.

    The gap between the last that was taken and the first that was not, over the largest score of the row.
    """

    def __init__(self) -> None:
        self.rows: list[torch.Tensor] = []
        self._topk = torch.Tensor.topk
        self._function = torch.topk

    def __enter__(self) -> Margins:
        def watched(scores: torch.Tensor, k: int, *rest: Any, **named: Any) -> Any:
            if k < scores.shape[-1]:
                best = self._function(scores.detach().double(), k + 1, dim=-1).values.flatten(0, -2)
                seen = scores.double().flatten(0, -2)
                largest = torch.where(seen > MASKED, seen.abs(), 0).amax(-1).clamp_min(1e-30)
                gap = (best[:, k - 1] - best[:, k]) / largest
                self.rows.append(torch.where(best[:, k] > MASKED, gap, torch.inf))
            return self._topk(scores, k, *rest, **named)

        torch.Tensor.topk = watched  # type: ignore[method-assign, assignment]
        torch.topk = watched  # type: ignore[assignment]
        return self

    def __exit__(self, *error: object) -> None:
        torch.Tensor.topk, torch.topk = self._topk, self._function  # type: ignore[method-assign]

    def of(self, tokens: int) -> list[float]:
        """The smallest margin of each token."""
        kept = [row for row in self.rows if row.shape[0] == tokens]
        found = torch.stack(kept).amin(0) if kept else torch.full((tokens,), torch.inf)
        return found.clamp_max(1e9).tolist()


@lru_cache(maxsize=3)
def _loaded(folder: str, dtype: str, changes: str) -> Any:
    config = AutoConfig.from_pretrained(folder)
    for name, value in json.loads(changes).items():
        setattr(config, name, value)
    return AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=getattr(torch, dtype), attn_implementation="eager", experts_implementation="eager"
    ).eval()


def judge(folder: str, rows: list[list[int]], dtype: str = "float32", **changes: Any) -> dict[str, Any]:
    """Of each list of token ids, for each position but the last: the logprob of the token that follows, the best
    token, how far before the second, and the smallest margin of a top-k decision at that position."""
    model = _loaded(folder, dtype, json.dumps(changes))
    answers = []
    for row in rows:
        ids = torch.tensor([row])
        with torch.no_grad(), Margins() as margins:
            logits = model(ids, use_cache=False).logits[0, :-1].double()
        logprobs = torch.log_softmax(logits, -1)
        best = logits.topk(2, dim=-1)
        answers.append(
            {
                "logprobs": logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist(),
                "best": best.indices[:, 0].tolist(),
                "ahead": (best.values[:, 0] - best.values[:, 1]).tolist(),
                "margins": margins.of(len(row))[:-1],
            }
        )
    return {"rows": answers}


def main() -> None:
    torch.set_num_threads(1)  # the models are tiny, and the server wants the cores
    answer_to = {"make": make, "judge": judge}
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        ((what, arguments),) = json.loads(line).items()
        print(json.dumps(answer_to[what](**arguments)), file=out, flush=True)


if __name__ == "__main__":
    main()
