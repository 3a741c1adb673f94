"""Shuts the current process in before somebody else's code runs: no network, no writing, no children, bounded.

Standard library only; called once, at the start of the child. Every measure that is not available is left out and
reported, none is a reason to fail.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from . import stubs

NO_NEW_PRIVS = 38  # prctl(2)
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
# Audit events (sys.audit) of what engine predicates never need.
FORBIDDEN = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "pty.",
    "ctypes.",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
    "os.kill",
    "os.putenv",
    "shutil.",
    "urllib.",
    "http.",
    "ftplib.",
    "smtplib.",
    "tempfile.",
    "mmap.",
    "signal.",
    "winreg.",
    "webbrowser.",
    "os.truncate",
    "os.setxattr",
    "os.utime",
    "code.__new__",
    "os.startfile",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Refused(PermissionError):
    """Raised inside the child when code there tries what it may not."""


READABLE: list[str] = []  # directories whose files may be opened, with a trailing slash


def shut_in(cpu_seconds: int, memory_mb: int, readable: list[str] | None = None) -> dict[str, Any]:
    """Apply everything; returns what took effect (`network`, `limits`, `audit`).

    Files may be read only below the `readable` directories and the standard library; None: anywhere.
    """
    if readable is not None:
        READABLE.extend(os.path.join(os.path.realpath(path), "") for path in [*readable, *sys.path] if path)
    report: dict[str, Any] = {"network": _namespaces(), "limits": _limits(cpu_seconds, memory_mb)}
    sys.dont_write_bytecode = True  # a refused write would count as a leak
    sys.addaudithook(_audit)
    report["audit"] = True
    return report


def _namespaces() -> str:
    """A user and network namespace of our own, in which no interface is up. 'namespace' or 'audit only'."""
    if sys.platform != "linux":
        return "audit only"
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0:
            return "namespace"
        if hasattr(os, "geteuid") and os.geteuid() == 0 and libc.unshare(CLONE_NEWNET) == 0:
            return "namespace"
    except (ImportError, OSError, AttributeError):
        pass
    return "audit only"


def _limits(cpu_seconds: int, memory_mb: int) -> list[str]:
    """Hard limits of the process. Returns the names of those that took effect."""
    try:
        import resource
    except ImportError:
        return []
    wanted = {
        "RLIMIT_CPU": cpu_seconds,
        "RLIMIT_AS": memory_mb << 20,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
        "RLIMIT_NPROC": 1,
    }
    done = []
    for name, value in wanted.items():
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (OSError, ValueError, AttributeError):
            continue
        done.append(name)
    return done


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, mode, flags = (*arguments, None, None, None)[:3]
        writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
        if writes or (isinstance(flags, int) and flags & WRITING):
            _refuse(f"writing {path!r}")
        named = READABLE and isinstance(path, (str, bytes))
        if named and not os.path.realpath(os.fsdecode(path)).startswith(tuple(READABLE)):
            _refuse(f"reading {path!r}")
    elif event.startswith(FORBIDDEN):
        _refuse(event)


def _refuse(what: str) -> None:
    stubs.STATE.leaks.append(f"{what} is refused in the witness")  # even if engine code swallows the exception
    raise Refused(f"{what} is refused in the witness")
