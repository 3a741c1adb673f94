"""`python -m attnfit.kernels.fit`, or this file itself: one job in JSON on stdin, the answer in JSON on stdout.

Lines of {"progress": [done, of]} come first, then one line: the answer, or {"error": {"kind", "message"}}. Whatever
else is printed (a compiler's output, an engine's logging) goes to stderr. Given as a file, it runs under a Python in
which attnfit is not installed: only the package's own folder is made importable, not what lies beside it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NEEDED = (3, 11)  # as attnfit itself; the asker says so of those that cannot read even this file


def _make_importable() -> None:
    """`attnfit` from this very folder, whatever the Python that runs it has installed."""
    package = HERE.parent.parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    spec = importlib.util.spec_from_file_location(
        "attnfit", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["attnfit"] = module
    spec.loader.exec_module(module)


def main() -> int:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # from here on nothing but the answer reaches stdout
    sys.stdout = sys.stderr
    os.environ.pop("TRITON_INTERPRET", None)

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    if sys.version_info < NEEDED:
        say({"error": {"kind": "python", "message": ".".join(str(part) for part in sys.version_info[:2])}})
        return 0
    if not __package__:
        _make_importable()
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        say({"error": {"kind": "missing", "message": " and ".join(missing)}})
        return 0
    try:
        job = json.loads(sys.stdin.read())
        from attnfit.kernels.fit.lifeline import Lifeline

        lifeline = Lifeline(job)
        from attnfit.kernels.fit.service import answer

        say(answer(job, lambda done, of: say({"progress": [done, of]}), lifeline))
    except (ValueError, KeyError, ImportError) as raised:
        say({"error": {"kind": type(raised).__name__, "message": str(raised)}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
