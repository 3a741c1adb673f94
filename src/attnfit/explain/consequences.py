"""What is only said because something else went wrong before, and whose log it is. Words of no engine in particular."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnfit.engines.log import LogWords

_FOLLOWS = (
    "BrokenPipeError", "Broken pipe", "ConnectionResetError", "Connection reset by peer", "Connection closed by peer",
    "ConnectionRefusedError", "EOFError", "CancelledError", "KeyboardInterrupt", "SystemExit", "GeneratorExit",
    "ProcessGroupNCCL", "ncclRemoteError", "NCCL watchdog", "watchdog thread", "heartbeat monitor", "TCPStore",
    "resource_tracker", "leaked shared_memory", "leaked semaphore", "destroy_process_group", "ChildFailedError",
    "Sending process", "closing signal", "ActorDiedError", "RayActorError", "WorkerCrashedError",
    "multiprocessing/process.py", "Main process exited", "Failed with result", "Shutting down", "shutting down",
    "core dumped", "The actor died", "DistStoreError", "DistNetworkError", "ZMQError",
)  # fmt: skip

_PROGRAMS = (
    (re.compile(r"^=+ test session starts =+$"), "pytest"),
    (re.compile(r'^[\d.a-f:]+ - \S+ \[\d\d/[A-Z][a-z]{2}/\d{4}:[\d:]+ [+-]\d{4}\] "[A-Z]+ '), "a web server"),
    (re.compile(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d \[(?:error|notice|warn)\] \d+#\d+:"), "nginx"),
    (re.compile(r"^(?:Collecting|Requirement already satisfied:|Looking in indexes:) \S"), "pip"),
    (re.compile(r"^\[ *\d+\.\d{6}\] "), "the kernel (dmesg)"),
)  # fmt: skip

_RESTARTED = re.compile(r"systemd\[1\]: .*(?:Scheduled restart job|Start(?:ed|ing) )|: Scheduled restart job")
_COMMAND = re.compile(r"(?:^|[\s\"'])(?:\$ |\+ |exec |[Cc]ommand: ?|COMMAND: ?|CMD: ?|[Rr]unning:? )")
_LIBRARY = re.compile(r"site-packages/|dist-packages/|/lib/python3|^<|/lib64/python3|\.deps/")


def follows(text: str, words: Sequence[LogWords]) -> bool:
    """Whether a line is said of something that happened before."""
    return any(word in text for word in _FOLLOWS) or any(word in text for log in words for word in log.follows)


def program(text: str) -> str:
    """Which other program writes such a line; "" where none is known by it."""
    return next((name for form, name in _PROGRAMS if form.search(text)), "")


def restarted(text: str) -> bool:
    return bool(_RESTARTED.search(text))


def command_like(text: str) -> bool:
    return len(text) < 20_000 and bool(_COMMAND.search(text))


def somebodys(file: str) -> bool:
    """A source file that belongs to no installed package: somebody's own program."""
    return not _LIBRARY.search(file)
