"""SGLang's logs: its logger's form, what a start and an end look like, what it says of itself.

Read in sglang/srt/utils (configure_logger), managers/scheduler.py and entrypoints/{engine,http_server}.py of 0.5.6 to
0.5.23.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attnfit.engines.log import Edit, LogWords, fields
from attnfit.engines.sglang import words

_ARGS = "server_args=ServerArgs("
_ARCHITECTURE = re.compile(r"Load weight end\..*?\btype=(\w+)")
_DTYPE = re.compile(r"Load weight end\..*?\bdtype=torch\.(\w+)")
_BACKEND = re.compile(r"Use (\w+) as (?:the )?(?:default )?attention backend|Attention backend not \w+\. Use (\w+)")
_FLAGS = {"tp_size": "--tp-size", "dp_size": "--dp-size", "pp_size": "--pp-size", "ep_size": "--ep-size"}
# what a user gives, and what of it names no file of another machine's or address that matters here
_GIVEN = (
    "model_path", "quantization", "tp_size", "dp_size", "pp_size", "ep_size", "attention_backend",
    "prefill_attention_backend", "decode_attention_backend", "mm_attention_backend", "kv_cache_dtype", "dtype",
    "context_length", "mem_fraction_static", "page_size", "moe_runner_backend", "mamba_ssm_dtype",
    "linear_attn_backend", "speculative_algorithm", "speculative_draft_model_path",
    "enable_flashinfer_allreduce_fusion", "trust_remote_code", "disable_cuda_graph",
)  # fmt: skip
_DEFAULTS = {"auto", None, False, 1}


def facts(text: str) -> Mapping[str, Any]:
    """What one line tells."""
    found: dict[str, Any] = {}
    if _ARGS in text:
        args, unread = fields("(" + text.partition(_ARGS)[2])
        found["args"], found["unread"] = args, [name for name in unread if name in _GIVEN]
        found |= {name: args.get(name) for name in ("kv_cache_dtype", "quantization")}
        found["model"], found["tensor_parallel_size"] = args.get("model_path"), args.get("tp_size")
        found["backend"] = args.get("attention_backend")
    if match := _ARCHITECTURE.search(text):
        found["architecture"] = match[1]
    if match := _DTYPE.search(text):
        found["dtype"] = match[1]
    if match := _BACKEND.search(text):
        found["backend"] = match[1] or match[2]
    return {name: value for name, value in found.items() if value not in (None, "None", {}, [])}


def command(args: Mapping[str, Any]) -> list[str] | None:
    """`launch_server` with the arguments that the log shows to be given, as far as that is seen."""
    model = args.get("model_path")
    if not isinstance(model, str):
        return None
    out = ["python", "-m", "sglang.launch_server", "--model-path", model]
    for name in _GIVEN[1:]:
        value = args.get(name)
        if isinstance(value, (list, dict)) or (value is not True and value in _DEFAULTS):
            continue
        flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
        out += [flag] if value is True else [flag, str(value)]
    return out


def edited(argv: Sequence[str], form: str, release: str | None, edit: Edit) -> tuple[str, ...]:
    """The server's arguments with flags set or dropped, each where it stands and as it is spelt there.

    What was given for one phase alone goes too: it would count more than the flag that is set or dropped for all.
    """
    from attnfit.engines.sglang.spelt import overriding

    more = [each for flag in (*edit.set, *edit.drop) for each in overriding(flag) if each not in edit.set]
    out = words.without(argv, *edit.drop, *more)
    for flag, value in edit.set.items():
        out = words.put(out, flag, *([value] if value else []))
    return out


def spelt(edit: Edit, release: str | None) -> Edit | str:
    """The edit in the release's own flags and values (`spelt.py`)."""
    from attnfit.engines.sglang.spelt import spelt as of_release

    return of_release(edit, release)


JUDGES: Mapping[str, Any] = {}

LOG = LogWords(
    engine="sglang",
    prefixes=(
        re.compile(
            r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?P<worker>(?: [A-Z]{2,3}\d+)*)\](?: |$)"
            r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?: [\w.]+:\d+)?:? )?"
        ),
    ),
    starts=(_ARGS,),
    ready=("The server is fired up and ready to roll",),
    goes_on=(
        "Load weight begin", "Load weight end", "Memory pool end", "Capture cuda graph begin", "Capture cuda graph end",
    ),
    at_work=("gen throughput (token/s):",),
    died=(
        "Scheduler hit an exception", "Received sigquit from a child process", "scheduler is dead",
        "Initialization failed. warmup error", "TokenizerManager hit an exception",
        "DetokenizerManager hit an exception", "DataParallelController hit an exception",
        "Triggering SIGQUIT for cleanup",
    ),
    follows=(
        "Received sigquit from a child process", "scheduler is dead", "Initialization failed. warmup error",
        "Triggering SIGQUIT for cleanup", "Please check if there are relevant logs there",
        "Exit code: -", "Exit code: 1",
    ),
    frames=("/sglang/", "/sgl_kernel/"),
    traces=("sglang", "SGLang", "SGLANG_", "ServerArgs("),
    facts=facts,
    words=(_ARGS, "Load weight end", "ttention backend"),
    command=command,
    edited=edited,
    spelt=spelt,
)  # fmt: skip
