"""A stand-in for the witness: a handful of SGLang 0.5.9's own answers, as measured, for two kinds of model.

Not a model of the engine: only what the tests below ask. The real answers come from the release's own code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnfit.engines.sglang import words
from attnfit.engines.sglang.answers import Answer, Case

HYBRID = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": {"num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 256, "num_hidden_layers": 60},
}
SPARSE = {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "num_attention_heads": 128}
DENSE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": 32, "hidden_size": 4096}

GDN = (
    "triton or trtllm_mha backend are the only supported backends on Blackwell GPUs for hybrid GDN models, "
    "use --attention-backend triton or --attention-backend trtllm_mha to specify the backend."
)
GDN_LATER = (
    "triton, trtllm_mha, or fa4 backend are the only supported backends on Blackwell GPUs for hybrid GDN models, "
    "use --attention-backend triton, --attention-backend trtllm_mha, or --attention-backend fa4 to specify the backend."
)
TRTLLM = "TRTLLM MHA backend is only supported on Blackwell GPUs (SM100). Please use a different backend."
FA3 = "FlashAttention v3 Backend requires SM>=80 and SM<=90. Please use `--attention-backend flashinfer`."


def model(folder: Path, config: dict[str, Any], **files: Any) -> Path:
    """A directory with that config.json, and further JSON files by their stem."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    return folder


class Tiny:
    """An asker (answers.Asker) that remembers what it was asked."""

    origin = "its own code, sglang-0.5.9-py3-none-any.whl"

    def __init__(self) -> None:
        self.asked: list[Case] = []

    def close(self) -> None:
        pass

    def at_hand(self, cases: Sequence[Case]) -> list[Answer]:
        return [self.ask(case) for case in cases]

    def ask(self, case: Case) -> Answer:
        self.asked.append(case)
        argv, major = case["argv"], int(case["capability"].split(".")[0])
        base = words.value_of(argv, "--attention-backend")
        architecture = case["config"]["architectures"][0]
        if words.value_of(argv, "--model-path") is None:
            return _refused("arg-parse", "SystemExit", "error: the following arguments are required: --model-path")
        if base == "trtllm_mha" and major != 10:
            return _refused("arg-resolve", "ValueError", TRTLLM, "srt/server_args.py", 1925)
        if architecture == "DeepseekV32ForCausalLM":
            picked = "nsa" if base in (None, "nsa") else base
        else:
            picked = base or {9: "fa3", 10: "trtllm_mha"}.get(major, "flashinfer")
        prefill = words.value_of(argv, "--prefill-attention-backend") or picked
        decode = words.value_of(argv, "--decode-attention-backend") or picked
        resolved = {"attention_backend": picked, "page_size": 64 if picked in ("nsa", "flashmla") else 1}
        if picked == "nsa":
            resolved |= {"nsa_prefill_backend": "flashmla_sparse", "nsa_decode_backend": "fa3"}
        given = {"attention_backend": base, "page_size": None, "kv_cache_dtype": "auto"}
        whole = Answer(ok=True, stage=None, message=None, where=None, unknown=[], prefill=prefill, decode=decode,
                       resolved=resolved, given=given, warnings=[], linear_attn=None)  # fmt: skip
        if picked == "nsa":
            whole["warnings"] = [["WARNING", "Setting page size to 64 for DeepSeek DSA.", "server_args"]]
        hybrid = architecture == HYBRID["architectures"][0]
        if hybrid:
            whole["linear_attn"] = {"prefill": "triton", "decode": "triton"}
        built = {prefill, decode}
        if built & {"flashmla", "cutlass_mla"} and architecture != "DeepseekV32ForCausalLM":
            crash = "'ModelConfig' object has no attribute 'kv_lora_rank'"
            return _late(whole, "AttributeError", crash, "flashinfer_mla_backend.py", 771)
        if "fa3" in built and major not in (8, 9):
            return _late(whole, "AssertionError", FA3, "attention_registry.py", 132)
        if hybrid and major >= 10 and picked not in ("triton", "trtllm_mha"):
            return _late(whole, "AssertionError", GDN, "attention_registry.py", 205)
        return whole


def _refused(stage: str, kind: str, message: str, file: str = "", line: int = 0) -> Answer:
    where = {"file": file, "line": line, "func": ""} if file else None
    return Answer(ok=False, stage=stage, error_type=kind, message=message, where=where, unknown=[], prefill=None,
                  decode=None, resolved={}, given={}, warnings=[])  # type: ignore[typeddict-item]  # fmt: skip


def _late(whole: Answer, kind: str, message: str, file: str, line: int) -> Answer:
    late = _refused("backend-init", kind, message, f"srt/layers/attention/{file}", line)
    return Answer(**{**whole, **{key: late[key] for key in ("ok", "stage", "error_type", "message", "where")}})  # type: ignore
