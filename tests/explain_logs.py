"""Logs for the tests of `explain`: messages put into the form in which each engine prints them, and logs as stored."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnfit.explain import Answer, explain, follow, marks
from attnfit.inputs.log import Count, read_lines
from attnfit.inputs.log.source import _inflated

DATA = Path(__file__).parent / "data" / "explain"


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


def answer(log: bytes | str, command: Sequence[str] = ()) -> Answer:
    raw = log.encode() if isinstance(log, str) else log
    count = Count()
    stories = follow(read_lines(_inflated(io.BufferedReader(io.BytesIO(raw))), marks(), count), count)
    return explain(stories, command, count.cut)


def kind(log: bytes | str) -> str | None:
    found = answer(log)
    return found.cause.record.kind if found.cause else None


def vllm(message: str, where: str = "vllm/v1/worker/gpu_worker.py:323", workers: int = 2) -> str:
    """As a server with several workers prints an exception that a worker raises."""
    file, _, line = where.rpartition(":")
    out = [
        "(APIServer pid=1) INFO 11-30 08:00:05 [utils.py:233] non-default args: {'model_tag': 'org/model', "
        "'model': 'org/model', 'tensor_parallel_size': 2, 'max_num_seqs': 1024}",
        "(EngineCore pid=9) INFO 11-30 08:00:20 [core.py:107] Initializing a V1 LLM engine (v0.33.0) with config: "
        "model='org/model', dtype=torch.bfloat16, tensor_parallel_size=2",
    ]
    for rank in range(workers):
        head = f"(Worker_TP{rank} pid={20 + rank}) ERROR 11-30 08:00:35 [multiproc_executor.py:751]"
        out += [f"{head} WorkerProc failed to start.", f"{head} Traceback (most recent call last):"]
        out += [f'{head}   File "/usr/lib/python3/dist-packages/vllm/v1/executor/multiproc_executor.py", line 7, in f']
        out += [f"{head}     worker = WorkerProc(*args, **kwargs)"]
        out += [
            f'{head}   File "/usr/lib/python3/dist-packages/{file}", line {line}, in g',
            f"{head}     raise ValueError(",
        ]
        out += [f"{head} {text}" for text in message.splitlines()]
    tail = "(EngineCore pid=9) ERROR 11-30 08:00:36 [core.py:1132]"
    out += [f"{tail} EngineCore failed to start.", f"{tail} Traceback (most recent call last):"]
    out += [f'{tail}   File "/usr/lib/python3/dist-packages/vllm/v1/engine/core.py", line 1106, in run_engine_core']
    out += [
        f"{tail} Exception: WorkerProc initialization failed due to an exception in a background process. See stack "
        "trace for root cause.",
        "(APIServer pid=1) Traceback (most recent call last):",
        '(APIServer pid=1)   File "/usr/local/bin/vllm", line 10, in <module>',
        "(APIServer pid=1)     sys.exit(main())",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
        "{}",
    ]
    return "\n".join(out) + "\n"


def sglang(message: str, where: str = "sglang/srt/managers/scheduler.py:368") -> str:
    """As a scheduler process prints an exception."""
    file, _, line = where.rpartition(":")
    return f"""\
[2026-11-30 09:00:00] server_args=ServerArgs(model_path='org/model', tp_size=2, attention_backend='flashinfer')
[2026-11-30 09:00:04 TP0] Init torch distributed begin.
[2026-11-30 09:00:06 TP1] Load weight begin. avail mem=94.21 GB
[2026-11-30 09:00:31 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/usr/lib/python3/dist-packages/sglang/srt/managers/scheduler.py", line 3130, in run_scheduler_process
    scheduler = Scheduler(
  File "/usr/lib/python3/dist-packages/{file}", line {line}, in f
    raise ValueError(
{message}

[2026-11-30 09:00:31] Received sigquit from a child process. It usually means the child failed.
"""


PRINTS = {"vllm": vllm, "sglang": sglang}


def zipped(text: str) -> bytes:
    return gzip.compress(text.encode())
