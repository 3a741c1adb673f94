"""What is only said because something else went wrong before, and whose log it is. Words of no engine in particular."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from attnfit.engines.log import LogWords

FOLLOWS = (
    "BrokenPipeError", "Broken pipe", "ConnectionResetError", "Connection reset by peer", "Connection closed by peer",
    "ConnectionRefusedError", "EOFError", "CancelledError", "KeyboardInterrupt", "SystemExit", "GeneratorExit",
    "ProcessGroupNCCL", "ncclRemoteError", "NCCL watchdog", "watchdog thread", "heartbeat monitor", "TCPStore",
    "resource_tracker", "leaked shared_memory", "leaked semaphore", "destroy_process_group", "ChildFailedError",
    "Sending process", "closing signal", "ActorDiedError", "RayActorError", "WorkerCrashedError",
    "multiprocessing/process.py", "Main process exited", "Failed with result", "Shutting down", "shutting down",
    "core dumped", "The actor died", "DistStoreError", "DistNetworkError", "ZMQError",
)  # fmt: skip

_PROGRAMS = {
    "git": r"commit [0-9a-f]{40}(?: \(.*\))?$|Author: [^<>]{1,80} <[^<>]*@[^<>]*>$|diff --git a/",
    "a client of a server": r"(?:litellm|openai|langchain\w*|httpx)\.[\w.]*(?:Error|Exception)\b",
    "pytest": r"=+ test session starts =+$",
    "a web server": r'[\d.a-f:]+ - \S+ \[\d\d/[A-Z][a-z]{2}/\d{4}:[\d:]+ [+-]\d{4}\] "[A-Z]+ ',
    "nginx": r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d \[(?:error|notice|warn|crit|alert)\] \d+#\d+:",
    "pip": r"(?:Collecting|Requirement already satisfied:|Looking in indexes:) \S",
    "the kernel (dmesg)": r"(?:\[ *\d+\.\d+\] |kernel: )",
    "kubectl (what a cluster did)": (
        r"LAST SEEN\s+(?:FIRST SEEN\s+)?(?:COUNT\s+)?(?:NAME|TYPE)\s|Events:(?:$|\s+<none>)"
        r"|\s*Type\s+Reason\s+Age\s+From\s|(?:\d+[smhdy]){1,2}(?: \([^)]{1,40}\))?\s+(?:Warning|Normal)\s+[A-Z]\w+\s"
        r"|\s*(?:Warning|Normal)\s+[A-Z]\w+\s+(?:\d+[smhdy]){1,2}[ (]|Namespace: +[\w-]+$|Service Account: "
        r"|NAME +READY +STATUS +RESTARTS"
    ),
    "Ollama": r"time=\S+ level=[A-Z]+ source=\w+\.go:?\d* |\[GIN\] \d{4}/|ollama (?:serve|run)\b",
    "llama.cpp": (
        r"ggml_[a-z]\w*: |llama_(?:model_|new_|init_|load_|kv_|perf_|context)\w*: |llama_context: |llm_load_\w+: "
        r"|common_init_from_params: |main: (?:build|server is listening)|srv +\w+: |build: \d+ \([0-9a-f]+\)"
    ),
    "ComfyUI": r"Prompt executed in \d|got prompt$|(?:\*\* )?ComfyUI |\[ComfyUI|!!! Exception during processing !!!",
    "Stable Diffusion web UI": r"Stable diffusion model failed to load|Launching Web UI with arguments:",
}
_PROGRAM = re.compile("|".join(rf"(?P<p{place}>^(?:{form}))" for place, form in enumerate(_PROGRAMS.values())))
SERVED_MARK = b" 200 OK"  # in every such line
_SERVED = re.compile(
    r'- "(?:(?P<work>POST /(?:v\d+/|generate|pooling|score|rerank|classify|embed|encode|invocations|inference)'
    r'|GET /health)|GET /(?:metrics|v1/models))[^"]* HTTP/[\d.]+" 200\b'
)
RESTARTED_MARK = b"Scheduled restart job"
_RESTARTED = re.compile(r"systemd\[1\]: .*(?:Scheduled restart job|Start(?:ed|ing) )|: Scheduled restart job")
_LIBRARY = re.compile(r"site-packages/|dist-packages/|/lib/python3|^<|/lib64/python3|\.deps/")
_APPLICATION = re.compile(
    r"(?:site|dist)-packages/(?:litellm|openai|langchain\w*|llama_index|open_webui|smolagents|crewai|dspy)\b"
    r"|(?:site|dist)-packages/(?:axolotl|trl|diffusers|accelerate|lightning|pytorch_lightning|deepspeed|unsloth|unsloth_zoo"
    r"|lmdeploy|tensorrt_llm|text_generation_server|ultralytics|whisper|faster_whisper|exllamav[23]|llama_cpp|mlc_llm|peft"
    r"|gradio|transformers/trainer\.py|torchtune|open_clip|TTS)\b"
)


def follows(text: str, words: Sequence[LogWords]) -> bool:
    """Whether a line is said of something that happened before."""
    return any(word in text for word in FOLLOWS) or any(word in text for log in words for word in log.follows)


def program(text: str) -> str:
    """Which other program writes such a line; "" where none is known by it."""
    found = _PROGRAM.match(text)
    return list(_PROGRAMS)[int((found.lastgroup or "p0")[1:])] if found is not None else ""


def served(text: str) -> Literal["", "up", "work"]:
    """Whether a server answered: "up", only what it says of itself; "work", a request, or that it is well."""
    found = _SERVED.search(text) if " 200" in text else None
    return "" if found is None else "work" if found["work"] else "up"


def restarted(text: str) -> bool:
    return ("systemd" in text or "restart" in text) and bool(_RESTARTED.search(text))


def somebodys(file: str) -> bool:
    """A source file of somebody's own program: of no installed package, or of one that is a program by itself."""
    return not _LIBRARY.search(file) or bool(_APPLICATION.search(file))
