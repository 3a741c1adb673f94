"""`attnfit explain`: what somebody sent, and what a server survived, is no cause; nor is another program's failure."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explain_logs import answer, kind, rows, sglang, vllm

HEAD = (
    "(APIServer pid=1) INFO 11-20 10:00:01 [utils.py:299] vLLM API server version 0.28.0, serving model\n"
    "(APIServer pid=1) INFO 11-20 10:00:01 [utils.py:233] non-default args: {'model_tag': 'org/m', 'model': 'org/m'}\n"
)
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
OK = '(APIServer pid=1) INFO:     10.0.0.1:5000 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
STATS = (
    "(APIServer pid=1) INFO 11-20 10:03:00 [loggers.py:236] Engine 000: Avg prompt throughput: 11.1 tokens/s, Avg "
    "generation throughput: 90.0 tokens/s, Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.2%\n"
)
S_HEAD = "[2026-11-20 10:00:00] server_args=ServerArgs(model_path='org/m', tp_size=1)\n"
S_READY = "[2026-11-20 10:01:00] The server is fired up and ready to roll!\n"
S_OK = '[2026-11-20 10:02:00] INFO:     127.0.0.1:48000 - "POST /generate HTTP/1.1" 200 OK\n'
S_STATS = (
    "[2026-11-20 10:02:00 TP0] Decode batch, #running-req: 3, #token: 100, token usage: 0.01, cuda graph: True, gen "
    "throughput (token/s): 100.1, #queue-req: 0\n"
)
PASTED = """\
Traceback (most recent call last):
  File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core.py", line 701, in run_engine_core
    engine_core = EngineCoreProc(*args, **kwargs)
ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (524).
RuntimeError: CUDA error: no kernel image is available for execution on the device
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
Scheduler hit an exception: Traceback (most recent call last):
"""
AT = "(APIServer pid=1) ERROR 11-20 12:00:00 [app.py:5]"
LOGGED = {  # what stands in front of the text, and behind it
    "vllm, quoted": ("(APIServer pid=1) INFO 11-20 12:00:00 [logger.py:40] Received request c-1: prompt: 'help me\n",
                     "', params: SamplingParams(n=1)\n"),
    "vllm, not quoted": ("(APIServer pid=1) INFO 11-20 12:00:00 [logger.py:40] Received request c-1: prompt: hi\n", ""),
    "sglang": ("[2026-11-20 10:02:01] Receive: obj=GenerateReqInput(rid='a', text='help me with this, don\\'t\n",
               "', image_data=None)\n"),
    "an answer": ("(APIServer pid=1) INFO 11-20 12:00:00 [logger.py:70] Generated response c-1: output: 'You see\n",
                  "', finish_reason: stop\n"),
    "an application's error": (f'{AT} could not answer, user prompt: "why do I get\n', '"\n'),
    "another's": (f"{AT} tool call failed; messages=[{{'role': 'user', 'content': 'look:\n", "'}]\n"),
}  # fmt: skip


@pytest.mark.parametrize("far", [False, True], ids=["near the start", "far into it"])
@pytest.mark.parametrize("logged", LOGGED)
def test_the_lines_of_a_logged_request_are_no_evidence(logged: str, far: bool) -> None:
    before, after = LOGGED[logged]
    serving = HEAD + READY + OK * (3000 if far else 3)
    assert answer(serving + before + PASTED + after + OK).verdict == "no failure"
    headless = (STATS + OK) * (2000 if far else 3)
    assert answer(headless + before + PASTED + after + OK).verdict == "no failure"


@pytest.mark.parametrize("form", ["2026-11-20T10:00:00.123456789Z {}", "Nov 20 10:00:00 g llm[7]: {}", "llm-1  | {}"])
@pytest.mark.parametrize("named", [True, False], ids=["each line with the process", "the first only"])
def test_nor_are_they_behind_what_a_collector_puts_in_front(form: str, named: bool) -> None:
    for before, after in LOGGED.values():
        process = before[: before.index(")") + 2] if before.startswith("(") and named else ""
        quoted = "".join(f"{process}{line}\n" for line in (PASTED + after).splitlines())
        for far in (3, 3000):
            text = HEAD + READY + OK * far + before + quoted + OK
            log = "".join(form.format(line) + "\n" for line in text.splitlines())
            assert answer(log).verdict == "no failure", (before, far)


@pytest.mark.parametrize(
    "before",
    [
        "(APIServer pid=1) INFO 11-20 12:00:00 [app.py:9] the model says\n",
        "(APIServer pid=1) INFO 11-20 12:00:00 [app.py:9] Request body: {\n",
        "(APIServer pid=1) ERROR 11-20 12:00:00 [app.py:9] tool failed: my server crashed:\n",
        "",
    ],
)
def test_text_that_is_printed_as_it_is_does_not_end_a_server_whose_lines_have_levels(before: str) -> None:
    for far in (3, 3000):
        assert answer(HEAD + READY + OK * far + before + PASTED + OK).verdict == "no failure"
        assert answer(HEAD + READY + OK * far + before + PASTED).verdict == "no failure"


def test_a_log_that_somebody_pasted_into_a_prompt_is_no_evidence() -> None:
    """Its lines have levels of their own, but not the name that this server puts in front of each."""
    before, after = LOGGED["vllm, quoted"]
    pasted = "".join(f"ERROR 11-20 10:01:02 [core.py:867] {line}\n" for line in PASTED.splitlines())
    assert answer(HEAD + READY + OK + before + pasted + after + OK).verdict == "no failure"
    other = "(EngineCore_DP0 pid=9) INFO 11-20 10:01:02 [core.py:867] still here\n"
    assert answer(HEAD + READY + before + other + PASTED + after + OK).verdict == "no failure"


@pytest.mark.parametrize(
    "opens", ["user message: help", 'user prompt: "why', "messages=[{'role': 'user', 'content': 'see"]
)
def test_nor_are_they_where_the_logger_puts_its_prefix_in_front_of_each(opens: str) -> None:
    text = f"tool call failed, {opens}\n{PASTED}"
    logged = "".join(f"{AT} {line}\n" for line in text.splitlines())
    assert answer(HEAD + READY + OK + logged + OK).verdict == "no failure"
    died = (
        "(APIServer pid=1) ERROR 11-20 12:00:00 [async_llm.py:480] EngineDeadError: EngineCore encountered an issue.\n"
    )
    core = "(EngineCore pid=9) ERROR 11-20 12:00:00 [core.py:710] torch.OutOfMemoryError: CUDA out of memory.\n"
    assert kind(HEAD + READY + OK + logged + core + died) == "gpu-memory"  # another place, and another process


def test_a_request_is_over_with_the_next_line_of_a_logger() -> None:
    before, after = LOGGED["vllm, quoted"]
    core = "(EngineCore pid=9) ERROR 11-20 12:00:00 [core.py:710]"
    died = (
        f"{core} EngineCore encountered a fatal error.\n{core} Traceback (most recent call last):\n"
        f'{core}   File "/x/site-packages/torch/cuda.py", line 1, in f\n'
        f"{core} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert kind(HEAD + READY + OK + before + PASTED + died) == "gpu-memory"
    assert kind(HEAD + READY + OK * 3000 + before + PASTED + after + died) == "gpu-memory"
    closed = "(APIServer pid=1) INFO 11-20 12:00:00 [logger.py:40] Received request c-1: prompt: 'a', params: x\n"
    first, _, rest = died.partition("\n")
    raw = first + "\n" + rest.replace(f"{core} ", "")  # the traceback as the interpreter prints it
    assert kind(HEAD + READY + closed + raw) == "gpu-memory"
    assert kind(S_HEAD + S_READY + S_OK + "[2026-11-20 10:02:01] Receive: obj=GenerateReqInput(text='a')\n"
                + sglang("torch.OutOfMemoryError: CUDA out of memory.").partition("avail mem=94.21 GB\n")[2]) == (
        "gpu-memory"
    )  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        f"{AT} request asked: EngineDeadError? torch.OutOfMemoryError: CUDA out of memory.\n",
        f"{AT} EngineDeadError: EngineCore encountered an issue.\n",
        f"{AT} could not parse 'EngineCore failed to start. CUDA error: no kernel image is available'\n",
        PASTED,
    ],
)
@pytest.mark.parametrize("work", [OK, STATS], ids=["answers", "throughput"])
def test_a_server_that_goes_on_serving_has_not_failed(line: str, work: str) -> None:
    assert answer(HEAD + READY + line + work * 5).verdict == "no failure"
    assert answer(HEAD + READY + work * 3000 + line + work * 3000).verdict == "no failure"


HEALTHY = {"vllm": HEAD + READY + (OK + STATS) * 9, "sglang": S_HEAD + S_READY + (S_OK + S_STATS) * 9}
LINES = [*PASTED.splitlines(), *(row["line"] for row in rows("library_lines.jsonl"))]


@given(st.sampled_from(sorted(HEALTHY)), st.lists(st.tuples(st.floats(0, 1), st.sampled_from(LINES)), max_size=30))
@settings(max_examples=100, deadline=None)
def test_whatever_is_printed_between_its_lines_a_server_at_work_is_healthy(
    engine: str, said: list[tuple[float, str]]
) -> None:
    lines = HEALTHY[engine].splitlines()
    for place, what in said:
        lines.insert(2 + int(place * (len(lines) - 2)), what)
    assert answer("\n".join([*lines, *HEALTHY[engine].splitlines()[-3:]])).verdict == "no failure"


def test_what_a_server_survived_is_not_what_ended_it() -> None:
    """An error in the morning, a day of answers, and an end for another reason."""
    error = f"{AT} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    end = (
        "(EngineCore pid=9) ERROR 11-20 22:00:00 [core.py:710] EngineCore encountered a fatal error.\n"
        "(EngineCore pid=9) ERROR 11-20 22:00:00 [core.py:710] ValueError: of which nothing is known\n"
    )
    assert kind(HEAD + READY + error + end) == "gpu-memory"
    found = answer(HEAD + READY + error + OK * 10 + end)
    assert (found.verdict, found.cause) == ("cause unknown", None)
    assert found.unknown is not None
    assert found.unknown.chain == ("ValueError: of which nothing is known",)


WARNINGS = (
    "(EngineCore_DP0 pid=150) WARNING 11-20 10:00:30 [x.py:1] CUDA driver error: no kernel image; falling back\n",
    "(EngineCore pid=150) INFO 11-20 10:00:30 [cuda.py:300] Cannot use FlashAttention-2 backend for head size 72.\n",
    "(EngineCore_DP0 pid=150) INFO 11-20 10:00:30 [cuda.py:300] Using FLASH_ATTN attention backend out of potential "
    "backends: ['FLASH_ATTN', 'FLASHINFER']\n",
    "(EngineCore pid=150) ERROR 11-20 10:00:30 [fa_utils.py:64] Cannot use FA version 3 is not supported due to FA3 "
    "is only supported on devices with compute capability 9.0\n",
    "CUDA error: no kernel image is available for execution on the device, trying another one\n",
)  # fmt: skip


@pytest.mark.parametrize("warning", WARNINGS)
@pytest.mark.parametrize("work", [OK, STATS, S_OK, S_STATS], ids=["vllm", "vllm stats", "sglang", "sglang stats"])
def test_the_tail_of_a_healthy_log_is_healthy(warning: str, work: str) -> None:
    """`docker logs --tail`, a rotated journal: no start, no line that it is ready, only what it does."""
    for log in (warning + work, work + warning, work + warning + work, work * 3000 + warning + work * 3):
        assert answer(log).verdict == "no failure", log[:300]
    for form in ("2026-11-20T10:00:00.123456789Z {}", "Nov 20 10:00:00 gpu-1 llm[77]: {}", "llm-1  | {}"):
        log = "".join(form.format(line) + "\n" for line in (warning + work * 2).splitlines())
        assert answer(log).verdict == "no failure", form


def test_a_line_that_only_warns_is_no_cause_where_other_lines_stand_beside_it() -> None:
    for warning in WARNINGS[:3]:
        assert answer(warning + "(EngineCore_DP0 pid=150) INFO 11-20 10:00:31 [m.py:1] Loading weights\n").cause is None


def test_a_health_check_is_work_and_a_failed_one_is_none() -> None:
    health = '(APIServer pid=1) INFO:     10.0.0.1:5000 - "GET /health HTTP/1.1" {}\n'
    assert answer(WARNINGS[-1] + health.format("200 OK")).verdict == "no failure"
    scraped = health.replace("/health", "/metrics").format("200 OK")
    assert answer(WARNINGS[-1] + scraped).verdict == "no failure"
    assert kind(HEAD + READY + vllm("torch.OutOfMemoryError: CUDA out of memory.") + scraped * 9) == "gpu-memory"
    failing = health.format("503 Service Unavailable") * 5
    assert kind(vllm("torch.OutOfMemoryError: CUDA out of memory.") + failing) == "gpu-memory"


def test_a_few_answers_that_overtake_the_end_of_a_server_do_not_hide_it() -> None:
    end = vllm("torch.OutOfMemoryError: CUDA out of memory.").partition("\n")[2]
    assert kind(HEAD + READY + OK * 50 + end + OK * 2) == "gpu-memory"


# ---- other programs -----------------------------------------------------------------------------------------------

NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 23.6 GiB\n"
OTHERS = {
    "Ollama": (
        'time=2026-11-20T10:00:00.000Z level=INFO source=server.go:431 msg="llama runner started in 3.01 seconds"\n'
        "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\n"
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer\npanic: CUDA error: out of memory\n"
    ),
    "llama.cpp": (
        "build: 4821 (abcdef12) with cc (Ubuntu 13.2.0) for x86_64-linux-gnu\n"
        "main: server is listening on 0.0.0.0:8080\n"
        "ggml_cuda_init: found 1 CUDA devices:\n"
        "CUDA error: no kernel image is available for execution on the device\n  current device: 0, in function f\n"
        "CUDA error: out of memory\n"
    ),
    "ComfyUI": "got prompt\nPrompt executed in 3.11 seconds\n" + NO_KERNEL + '  File "/ComfyUI/execution.py", line 3\n',
    "a program of its own": (
        "Epoch 1/3\nstep 10 loss 2.1\nTraceback (most recent call last):\n"
        '  File "/home/u/train.py", line 90, in step\n    loss.backward()\n' + OOM
    ),
    "kubectl": (
        "LAST SEEN   TYPE      REASON      OBJECT     MESSAGE\n"
        "2m  Warning  FailedScheduling pod/vllm-0  0/5 nodes are available: 5 Insufficient nvidia.com/gpu.\n"
        "1m  Warning  BackOff  pod/vllm-0  Back-off restarting failed container vllm in pod vllm-0\n"
    ),
}  # fmt: skip
DESCRIBE = """\
Name:             vllm-0
Namespace:        llm
Containers:
  vllm:
    Image:         vllm/vllm-openai:v0.28.0
    Args:
      --model
      org/m
    State:          Waiting
      Reason:       CrashLoopBackOff
    Last State:     Terminated
      Reason:       Error
      Message:      RuntimeError: CUDA error: no kernel image is available for execution on the device
Events:
  Type     Reason     Age                   From               Message
  ----     ------     ----                  ----               -------
  Warning  BackOff    2m3s (x12 over 5m)    kubelet            Back-off restarting failed container vllm
"""


@pytest.mark.parametrize("program", OTHERS)
def test_another_program_s_failure_is_claimed_for_no_engine(program: str) -> None:
    found = answer(OTHERS[program])
    assert (found.verdict, found.cause) == ("no log of an engine", None)
    assert program in found.why


@pytest.mark.parametrize("package", ["axolotl/cli/train.py", "diffusers/pipelines/a.py", "transformers/trainer.py"])
def test_nor_is_that_of_an_installed_program(package: str) -> None:
    frames = f'Traceback (most recent call last):\n  File "/x/site-packages/{package}", line 3, in f\n    g()\n'
    inner = '  File "/x/site-packages/torch/autograd/graph.py", line 3, in f\n    g()\n'
    assert answer(frames + inner + OOM).verdict == "no log of an engine"
    engine = '  File "/x/site-packages/vllm/worker.py", line 3, in f\n    g()\n'
    assert kind(frames + engine + inner + OOM) == "gpu-memory"
    assert kind("Traceback (most recent call last):\n" + inner + OOM) == "gpu-memory"  # the end of anybody's


def test_a_notebook_s_traceback_is_read_as_one() -> None:
    top = (
        "OutOfMemoryError                          Traceback (most recent call last)\nCell In[3], line 1\n"
        '----> 1 model.to("cuda")\n\n'
    )
    torch = (
        "File /opt/lib/python3.11/site-packages/torch/nn/module.py:1340, in Module.to(self)\n   1339 def to(self):\n"
    )
    engine = "File /opt/lib/python3.11/site-packages/vllm/entrypoints/llm.py:10, in LLM.__init__(self)\n      9 x\n"
    found = answer(top + torch + OOM)
    assert found.verdict == "no log of an engine"
    assert "Cell In[3]" in found.why
    assert kind(top + engine + torch + OOM) == "gpu-memory"


def test_the_middle_of_an_engine_s_log_is_one_though_it_does_not_name_itself() -> None:
    at = "(EngineCore_DP0 pid=9) ERROR 11-20 10:00:36 [core.py:700]"
    lines = "(EngineCore_DP0 pid=9) INFO 11-20 10:00:30 [m.py:1] Loading weights took 3 seconds\n" * 20
    assert kind(f"{lines}{at} Traceback (most recent call last):\n{at} {NO_KERNEL}") == "no-kernel-image"


def test_what_a_cluster_says_of_a_pod_is_not_the_pod_s_log() -> None:
    found = answer(DESCRIBE)
    assert (found.verdict, found.exit_code) == ("no log of an engine", 3)
    assert "kubectl" in found.why


def test_a_script_that_only_imports_the_engine_is_somebody_s_own() -> None:
    log = (
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/home/u/train.py", line 3, in <module>\n'
        "[rank0]:     import vllm\n[rank0]: " + NO_KERNEL
    )
    assert answer(log).verdict == "no log of an engine"
    inside = log.replace("import vllm\n", 'llm = LLM(m)\n[rank0]:   File "/x/site-packages/vllm/a.py", line 3, in f\n')
    assert kind(inside) == "no-kernel-image"  # through the engine's own files it is the engine's


def test_a_long_log_in_which_no_engine_speaks_is_none_of_an_engine() -> None:
    assert answer("".join(f"loaded shard {n}\n" for n in range(30)) + NO_KERNEL).verdict == "no log of an engine"
    assert kind(NO_KERNEL) == "no-kernel-image"  # the line alone is a quotation of somebody's log


def test_of_several_pods_in_one_log_the_one_that_failed_is_answered() -> None:
    good = [f"[pod/llm-0/server] {line}" for line in (HEAD + READY + OK * 20).splitlines()]
    bad = [f"[pod/llm-1/server] {line}" for line in vllm("torch.OutOfMemoryError: CUDA out of memory.").splitlines()]
    mixed = [line for pair in zip(good, bad, strict=False) for line in pair] + good[len(bad) :] + bad[len(good) :]
    for lines in (mixed, bad + good, good + bad):
        found = answer("\n".join(lines))
        assert found.cause is not None
        assert found.cause.record.kind == "gpu-memory"
        assert "pod/llm-1/server" in " ".join(found.notes)
    gateway = ['gateway-1  | INFO:     10.0.0.7:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK' for _ in range(9)]
    engine = [f"llm-1  | {line}" for line in vllm("torch.OutOfMemoryError: CUDA out of memory.").splitlines()]
    assert kind("\n".join(engine + gateway)) == "gpu-memory"


def test_a_table_in_a_log_is_no_other_program() -> None:
    lines = vllm("torch.OutOfMemoryError: CUDA out of memory.").splitlines()
    found = answer("\n".join([*lines[:5], "weights | 3.1 GiB", "cache   | 9.0 GiB", *lines[5:]]))
    assert found.cause is not None
    assert found.notes == ()
    compose = ["Attaching to llm-1, gateway-1", "llm-1  | starting", "gateway-1  | waiting"]
    assert answer("\n".join([*compose, *(f"llm-1  | {line}" for line in lines)])).notes != ()
