"""What a case says beside its model and its words, and whether the compact form was run with the like."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnfit.engines.sglang.answers import Case
    from attnfit.engines.sglang.compact import Form

# Files beside config.json that no release looks for, or that change nothing it resolves.
_FILES = re.compile(
    r"config\.json|hf_quant_config\.json|(?:pytorch_)?model[A-Za-z0-9._-]*\.(?:safetensors|bin)(?:\.index\.json)?"
    r"|(?:tokenizer|tokenization|special_tokens|added_tokens|vocab|merges|chat_template)[A-Za-z0-9._-]*"
    r"|generation_config\.json|(?:configuration|modeling)_[A-Za-z0-9_]+\.py"
    r"|\.gitattributes|README\.md|LICENSE[A-Za-z0-9._-]*"
)
# Variables that reach neither resolution nor the choice of backends.
_VARIABLES = ("HF_", "NCCL_", "OMP_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PYTORCH_", "PYTHON", "TOKENIZERS_")


def odd(form: Form, case: Case) -> str:
    """What of the case was not run; "" if all of it was."""
    for name in case["variables"]:
        if not name.startswith(_VARIABLES):
            return f"the variable {name} is not among those it was run with"
    for fact, there in case["facts"].items():
        if form.facts.get(fact) is not there and (fact != "cudnn_9_15" or not there):
            return f"{fact}={'yes' if there else 'no'} is not what installing the release brings"
    if case["capability"] not in form.capabilities:
        return f"compute capability {case['capability']} is not among those it was run with"
    if not form.memory[0] <= case["gpu_mem_gb"] <= form.memory[1]:
        return f"a GPU with {case['gpu_mem_gb']:g} GiB is not among those it was run with"
    path = case["model"].lower()
    for word in form.path_words:
        if word in path:
            return f"the release looks for {word} in a model's path, and was not run with such a one"
    if path.strip("/") in ("none", "dummy", ""):
        return f"the model's path {case['model']} has a meaning of its own"
    files = case["files"]
    if files is not None:
        if case["hf_quant"] is None and "hf_quant_config.json" in files:
            return "hf_quant_config.json is there, and its content is not at hand"
        strange = next((name for name in files if not _FILES.fullmatch(name)), "")
        if strange:
            return f"{strange} beside config.json is not among the files it was run with"
    return ""
