"""How fast `attnfit explain` reads a long log of a server that failed in the end, and how much memory that takes.

    python benchmarks/log_throughput.py [MIB]

Writes a log of that many MiB (default 256) to a temporary directory, reads it in a child process and prints MB/s of one
core and the child's peak of resident memory. The log is deleted.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
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
from attnfit.inputs.log import open_log, read_lines
marks()
start = time.process_time()
with open_log(sys.argv[1]) as file:
    answer = explain(follow(read_lines(file, marks())))
spent = time.process_time() - start
print(spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, answer.cause and answer.cause.record.id)
"""


def write(path: Path, mib: int) -> int:
    block = "".join(TRAFFIC.format(n % 10) for n in range(2000))
    with path.open("w") as file:
        file.write(HEAD + SERVES)
        for _ in range(max(1, mib * (1 << 20) // len(block))):
            file.write(block)
        file.write(END)
    return path.stat().st_size


def main() -> None:
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.log"
        size = write(path, mib)
        started = time.monotonic()
        out = subprocess.run(
            [sys.executable, "-c", CHILD, str(path)], check=True, capture_output=True, text=True
        ).stdout
        spent, peak, found = out.split()
        print(
            f"{size / 1e6:.0f} MB in {float(spent):.2f} s of one core: {size / 1e6 / float(spent):.0f} MB/s; "
            f"peak {int(peak) / 1024:.0f} MiB; found {found}; {time.monotonic() - started:.1f} s in all"
        )


if __name__ == "__main__":
    main()
