"""The isolated child: `python -I -S worker.py`, JSON lines in, JSON lines out. Standard library only.

The first line states the limits, the sources and the modules that add jobs; each later line is one request. Answers are
`{"item": ...}` (from a generator), then `{"result": ...}` or `{"error": ..., "kind": ...}`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).resolve().parent


def bare_packages(names: tuple[str, ...] = ("attnfit", "attnfit.witness", "attnfit.learn")) -> None:
    """Make attnfit's stdlib-only modules importable without running the package's own imports."""
    for name in names:
        package = types.ModuleType(name)
        package.__path__ = [str(HERE.parent.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package


def main() -> None:
    """Serve requests until stdin closes."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever engine code prints must not look like an answer
    sys.setrecursionlimit(5000)
    hello = json.loads(sys.stdin.readline())
    bare_packages()
    jobs = importlib.import_module("attnfit.witness.jobs")
    isolate = importlib.import_module("attnfit.witness.isolate")
    importlib.import_module("attnfit.witness.release")
    for name in hello["modules"]:
        importlib.import_module(name)
    state = jobs.State()
    state.root, state.version, state.env = hello["root"], hello["version"], hello["env"]
    state.isolation = isolate.shut_in(hello["cpu_seconds"], hello["memory_mb"], [hello["root"], str(HERE.parent)])
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
