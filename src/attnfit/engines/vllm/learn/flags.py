"""`attnfit learn`, the part about flags: a release's own command-line parser as data.

The release's `make_arg_parser` is executed from its source files in a child process with no site packages
(`flagworker`), and every action of the parser it builds is written down, with the config classes that JSON-valued
flags name. What the child cannot settle is unknown in the table, never guessed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from attnfit.engines.vllm.flags.table import Table
from attnfit.errors import InputError

WORKER = Path(__file__).parent / "flagworker" / "__main__.py"
TIMEOUT_S = 120


def extract_flags(source_root: Path | str, release: str = "") -> dict[str, Any]:
    """The flag table of the vLLM sources under `source_root` (the directory that holds `vllm/`), as plain data.

    Runs somebody else's code in a child: isolated mode, empty environment, a scratch directory, bounded time and
    memory. Raises InputError when the sources hold no parser or building it fails, with the child's last line.
    """
    root = Path(source_root)
    if not (root / "vllm" / "engine" / "arg_utils.py").is_file():
        raise InputError(f"{root} holds no vllm/engine/arg_utils.py; give the directory that contains vllm/")
    with tempfile.TemporaryDirectory() as scratch:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-B", str(WORKER), str(root.resolve())],
                env={"PATH": os.defpath, "HOME": scratch},
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InputError(f"building the parser of {root} took more than {TIMEOUT_S} s") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise InputError(f"the parser of {root} could not be built without its dependencies: {last}")
    found = json.loads(done.stdout)
    return {
        "release": release,
        "flags": [_compact(f) for f in found["flags"]],
        "classes": found["classes"],
        "syntax": found["syntax"],
        "unsure": found["unsure"],
        "sources": found["digests"],
    }


def write_table(source_root: Path | str, release: str, directory: Path) -> Path:
    """Extract and write `directory/RELEASE.json`; returns its path."""
    data = msgspec.convert(extract_flags(source_root, release), type=Table)
    path = directory / f"{release}.json"
    path.write_text(_lines(msgspec.to_builtins(data)), encoding="utf-8")
    return path


def _lines(data: dict[str, Any]) -> str:
    """One flag and one class a line, so that two releases can be compared with `diff`."""

    def rows(items: list[str]) -> str:
        return ",\n".join(items)

    flags = rows([json.dumps(f, separators=(",", ":")) for f in data["flags"]])
    classes = rows([f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in data["classes"].items()])
    rest = {k: v for k, v in data.items() if k not in ("flags", "classes")}
    head = json.dumps(rest, separators=(",", ":"))[:-1]
    return f'{head},\n"flags":[\n{flags}\n],\n"classes":{{\n{classes}\n}}}}\n'


def _compact(flag: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in flag.items() if v is not None or k == "type"}


if __name__ == "__main__":
    print(write_table(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
