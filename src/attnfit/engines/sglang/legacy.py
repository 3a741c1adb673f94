"""GPUs below compute capability 8.0: float16 whatever was asked for, and below 7.5 nothing is served.

Decided while the workers load the model, so none of the gates that are run for an answer sees it. Read in each release.
"""

from __future__ import annotations

from attnfit.engines.sglang.answers import Answer, Case, Where
from attnfit.engines.sglang.releases import nearest

_SAID = "Compute capability below sm80. Use float16 due to lack of bfloat16 support."
_ENDS = "SGLang only supports sm75 and above."
_WHERE = {  # release -> file:line of the refusal, below sglang/
    "0.5.6.post2": "srt/model_executor/model_runner.py:744",
    "0.5.7": "srt/model_executor/model_runner.py:823",
    "0.5.8.post1": "srt/model_executor/model_runner.py:822",
    "0.5.9": "srt/model_executor/model_runner.py:913",
    "0.5.10.post1": "srt/model_executor/model_runner.py:1089",
    "0.5.11": "srt/model_executor/model_runner.py:1304",
    "0.5.12.post1": "srt/model_executor/model_runner.py:1389",
    "0.5.13.post1": "srt/model_executor/model_runner.py:1294",
    "0.5.14": "srt/model_executor/model_runner.py:1353",
    "0.5.15.post1": "srt/model_executor/model_runner.py:1440",
    "0.5.16": "srt/model_executor/model_runner_components/load_model_utils.py:63",
    "0.5.17": "srt/model_executor/model_runner_components/load_model_utils.py:78",
    "0.5.18": "srt/model_executor/model_runner_components/load_model_utils.py:79",
    "0.5.19": "srt/model_executor/model_runner_components/load_model_utils.py:86",
    "0.5.20": "srt/model_executor/model_runner_components/load_model_utils.py:86",
    "0.5.21": "srt/model_executor/model_runner_components/load_model_utils.py:86",
    "0.5.22": "srt/model_executor/model_runner_components/load_model_utils.py:91",
    "0.5.23": "srt/model_executor/model_runner_components/load_model_utils.py:91",
}


def on_legacy(version: str, case: Case, answer: Answer) -> Answer:
    """What an answer of the gates is on such a GPU. Backends are made after this check, so theirs come too late."""
    where = _WHERE.get(nearest(version))
    reached = answer.get("ok") is True or answer.get("stage") == "backend-init"
    major, minor = map(int, case["capability"].split("."))
    if not reached or where is None or major >= 8:
        return answer
    half = Answer(**{**answer, "warnings": [*(answer.get("warnings") or ()), ["INFO", _SAID]]})
    half["resolved"] = {**(answer.get("resolved") or {}), "dtype": "float16"}
    if minor >= 5:  # it reads the minor number alone
        return half
    file, _, line = where.partition(":")
    place = Where(file=file, line=int(line), func="load_model")
    half["ok"], half["stage"], half["error_type"], half["message"] = False, "model-runner-init", "RuntimeError", _ENDS
    half["where"] = place
    return half
