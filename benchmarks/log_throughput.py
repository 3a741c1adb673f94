"""How fast `attnfit explain` reads a long log of a server that failed in the end, and how much memory that takes.

    python benchmarks/log_throughput.py [MIB [FORM ...]]

Writes a log of that many MiB (default 256) in each form to a temporary directory, reads it in a child process, prints
MB/s of one core and the child's peak of resident memory. The log is deleted. Forms:

    traffic     answers and throughput of a server at work
    bars        one progress bar that never ends its line, and says "error" in each of its states
    same        one traceback again and again, with the time, as a request that always fails leaves it
    different   tracebacks of which no two are alike: another exception, file and message each time
    deep        one traceback of many frames
"""

from __future__ import annotations

import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HEAD = "(APIServer pid=1) INFO 11-30 09:00:00 [utils.py:233] non-default args: {'model': 'org/model'}\n"
SERVES = "(APIServer pid=1) INFO:     Application startup complete.\n"
TRAFFIC = """\
(APIServer pid=1) INFO:     10.0.0.7:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK
(APIServer pid=1) INFO 11-30 09:0{0}:00 [loggers.py:127] Engine 000: Avg prompt throughput: 12{0}.4 tokens/s, Avg \
generation throughput: 48{0}.3 tokens/s, Running: {0} reqs, Waiting: 0 reqs, GPU KV cache usage: 3{0}.2%, Prefix cache \
hit rate: 4{0}.1%
(Worker_TP0 pid=99) INFO 11-30 09:0{0}:01 [gpu_model_runner.py:4752] step {0} of the profile took 0.0{0} s
[2026-11-30 09:0{0}:02 TP0] Decode batch, #running-req: {0}, #token: 12{0}45, token usage: 0.1{0}, gen throughput \
(token/s): 48{0}.55, #queue-req: 0
"""
END = """\
(EngineCore pid=9) ERROR 11-30 12:00:00 [core.py:1586] EngineCore encountered a fatal error.
(EngineCore pid=9) ERROR 11-30 12:00:00 [core.py:1586] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-30 12:00:00 [core.py:1586]   File "/x/site-packages/torch/cuda/__init__.py", line 9, in f
(EngineCore pid=9) ERROR 11-30 12:00:00 [core.py:1586]     g()
(EngineCore pid=9) ERROR 11-30 12:00:00 [core.py:1586] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate \
2.00 GiB.
"""
CHILD = """
import resource, sys, time
from attnfit.explain import explain, follow, marks
from attnfit.inputs.log import Count, open_log, read_lines
marks()
start = time.process_time()
count = Count()
with open_log(sys.argv[1]) as file:
    answer = explain(follow(read_lines(file, marks(), count), count))
spent = time.process_time() - start
print(spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, answer.cause and answer.cause.record.id)
"""


AT = "(APIServer pid=1) ERROR 11-30 09:{0:02d}:{1:02d} [serving_chat.py:257]"
TRACEBACK = f"""\
{AT} Error in preprocessing prompt inputs
{AT} Traceback (most recent call last):
{AT}   File "/usr/lib/python3/dist-packages/{{2}}.py", line 237, in create_chat_completion
{AT}     ) = await self._preprocess_chat(
{AT}   File "/usr/lib/python3/dist-packages/{{2}}.py", line 1017, in _preprocess_chat
{AT}     request_prompts = self._tokenize_prompt_input_async(request, tokenizer, prompt)
{AT} {{3}}: the {{2}} of this request is {{1}}{{0}} tokens long, {{2}} is less than that, it was not {{2}}
"""


def traffic(number: int) -> str:
    return TRAFFIC.format(number % 10)


def bars(number: int) -> str:
    return f"Loading error shards: {number % 100:3d}%|####      | {number}/99999 [00:01<00:09, 1.00s/it]\r"


def same(number: int) -> str:
    return TRACEBACK.format(number // 60 % 60, number % 60, "entrypoints/openai/serving_chat", "ValueError")


def different(number: int) -> str:
    letters = "".join(string.ascii_lowercase[number // 26**place % 26] for place in range(5))
    return TRACEBACK.format(number // 60 % 60, number % 60, letters, f"{letters.title()}Error")


def deep(number: int) -> str:
    return (
        f'  File "/usr/lib/python3/dist-packages/module_{number}.py", line {number % 977}, in call\n    return f(x)\n'
    )


FORMS: dict[str, Callable[[int], str]] = {each.__name__: each for each in (traffic, bars, same, different, deep)}


def write(path: Path, mib: int, form: str) -> int:
    number, left = 0, mib << 20
    with path.open("w") as file:
        file.write(HEAD + SERVES)
        if form == "deep":
            file.write("Traceback (most recent call last):\n")
        while left > 0:
            block = "".join(FORMS[form](number + n) for n in range(2000))
            number += 2000
            left -= len(block)
            file.write(block)
        file.write(END)
    return path.stat().st_size


def main() -> None:
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    for form in sys.argv[2:] or FORMS:
        measure(mib, form)


def measure(mib: int, form: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.log"
        size = write(path, mib, form)
        started = time.monotonic()
        out = subprocess.run(
            [sys.executable, "-c", CHILD, str(path)], check=True, capture_output=True, text=True
        ).stdout
        spent, peak, found = out.split()
        print(
            f"{form}: {size / 1e6:.0f} MB in {float(spent):.2f} s of one core: {size / 1e6 / float(spent):.0f} MB/s; "
            f"peak {int(peak) / 1024:.0f} MiB; found {found}; {time.monotonic() - started:.1f} s in all",
            flush=True,
        )


if __name__ == "__main__":
    main()
