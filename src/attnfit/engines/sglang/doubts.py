"""What a launch that passes every gate may still fail on, and that neither arguments nor backends check.

Only what shows in the numbers of the launch: GPUs there are not, attention heads that cannot be divided, a device or an
architecture that is not looked into. Sizes are those of the resolved arguments, else the words'.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnfit.engines.sglang import words
from attnfit.engines.sglang.answers import Answer, Case

_FLAGS = {
    "tp_size": "--tensor-parallel-size",
    "pp_size": "--pipeline-parallel-size",
    "dp_size": "--data-parallel-size",
    "nnodes": "--nnodes",
}
_ELSEWHERE = ("--base-gpu-id", "--gpu-id-step", "--device")


def doubts(case: Case, answer: Answer) -> Iterator[str]:
    """Why a pass is not known to be one."""
    device = words.value_of(case["argv"], "--device")
    if device is not None and device.partition(":")[0] != "cuda":
        yield f"--device {device}: only NVIDIA GPUs (cuda) are looked into"
    sizes = {name: size(case, answer, name) for name in _FLAGS}
    odd = next((name for name, number in sizes.items() if number is not None and not 1 <= number <= 4096), None)
    if odd is not None:
        yield f"{_FLAGS[odd]} {sizes[odd]} is no number of GPUs that a launch can have"
        return
    traits = answer.get("traits") or {}
    heads, parts = traits.get("num_attention_heads"), attention_ranks(case, answer, sizes)
    if isinstance(heads, int) and heads > 0 and parts and heads % parts:
        yield f"{heads} attention heads cannot be divided among {parts} GPUs; the model's class decides, and is not run"
    if traits.get("architecture_known") is False:
        named = " or ".join(traits.get("architectures") or ())
        yield f"{named} is none of the release's own model classes; whether transformers' serves it is not known"


def lacking_gpus(case: Case, answer: Answer) -> str:
    """ "it starts 16 processes, one a GPU, and there are 8"; "" where the GPUs are enough, or nobody said how many."""
    argv = case["argv"]
    if case["gpus"] is None or any(words.last(argv, flag) is not None for flag in _ELSEWHERE):
        return ""
    tp, pp, dp, nodes = (size(case, answer, name) or 1 for name in _FLAGS)
    wide = 1 if _attention_dp(case, answer) else dp
    here = tp * pp * wide // nodes
    return f"it starts {here} processes here, one a GPU, and there are {case['gpus']}" if here > case["gpus"] else ""


def attention_ranks(case: Case, answer: Answer, sizes: dict[str, int | None]) -> int:
    """Among how many GPUs attention is divided: data-parallel attention divides it less."""
    tp, dp = sizes["tp_size"] or 1, sizes["dp_size"] or 1
    return max(tp // dp, 1) if _attention_dp(case, answer) else tp


def size(case: Case, answer: Answer, field: str) -> int | None:
    """One of the sizes; None where it is no number."""
    found = (answer.get("resolved") or {}).get(field)
    text = words.value_of(case["argv"], _FLAGS[field]) if found is None else found
    try:
        return 1 if text is None else int(text)
    except (TypeError, ValueError):
        return None


def _attention_dp(case: Case, answer: Answer) -> bool:
    resolved = (answer.get("resolved") or {}).get("enable_dp_attention")
    return bool(resolved) or words.last(case["argv"], "--enable-dp-attention") is not None
