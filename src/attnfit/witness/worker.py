"""The isolated child: `python -I -S worker.py`, JSON lines in, JSON lines out. Standard library only.

The first line, the hello, states `root`, `version` and `env` of the release, the `modules` to import here (they
register jobs), further `packages` whose folders may be read, `cpu_seconds` and `memory_mb`; each later line is one
request. Answers are `{"item": ...}` (from a generator), then `{"result": ...}` or `{"error": ..., "kind": ...}`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

SRC = Path(__file__).resolve().parents[2]  # the directory that holds attnfit/


def bare_packages(names: Iterable[str], src: Path = SRC) -> None:
    """Make these packages and those above them importable without running their own `__init__`."""
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            package = ".".join(parts[:depth])
            if package not in sys.modules:
                module = types.ModuleType(package)
                module.__path__ = [str(src.joinpath(*parts[:depth]))]
                sys.modules[package] = module


def folders(packages: Iterable[str], src: Path = SRC) -> list[str]:
    """The directories these packages lie in."""
    return sorted({str(src.joinpath(*name.split("."))) for name in packages})


def main() -> None:
    """Serve requests until stdin closes."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever engine code prints must not look like an answer
    sys.setrecursionlimit(5000)
    hello = json.loads(sys.stdin.readline())
    packages = {"attnfit.witness", *hello["packages"], *(name.rpartition(".")[0] for name in hello["modules"])}
    bare_packages(packages)
    jobs = importlib.import_module("attnfit.witness.jobs")
    isolate = importlib.import_module("attnfit.witness.isolate")
    for name in hello["modules"]:
        importlib.import_module(name)
    state = jobs.State(hello["root"], hello["version"], hello["env"])
    readable = [hello["root"], *folders(packages)]
    state.isolation = isolate.shut_in(hello["cpu_seconds"], hello["memory_mb"], readable)
    _send(out, {"result": state.isolation})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            value = jobs.JOBS[request["job"]](state, **request["arguments"])
            if isinstance(value, types.GeneratorType):
                for item in value:
                    _send(out, {"item": item})
                value = None
            answer: dict[str, Any] = {"result": value}
        except KeyboardInterrupt:
            return
        except BaseException as error:
            answer = {"error": str(error) or type(error).__name__, "kind": type(error).__name__}
        _send(out, answer)


def _send(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
