"""The real selector's choice on a faked GPU without the plug-in, with it, and with it among the automatic choices.

Run by vllm_plugin.py with the python of a venv that has vLLM; questions as JSON lines on stdin, in the form of
real_selector.py, which is the judge here too. One line for each question and mode: what is chosen, our class's own
reasons, and a digest of all else that the selector says, without our backend's share in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

import real_selector as judge

OURS = "attnfit.engines.vllm.plugin.backend.TritonMLASparseBackend"
MODES = ("without", "with", "auto", "named")
ABOUT_ALL = ("valid", "refused", "every_backend", "backends_that_raise", "raises")


def prepare(mode: str) -> list[str]:
    """Loads the plug-in as the mode has it; returns the names that stand for our backend."""
    if mode == "without":
        return []
    from vllm.plugins import load_general_plugins

    if mode == "auto":
        os.environ["ATTNFIT_VLLM_AUTO"] = "1"
    load_general_plugins()
    names = [m.name for m in judge.Backends if m.name in ("CUSTOM", "TRITON_MLA_SPARSE") and m.get_path() == OURS]
    judge.NAME_OF[OURS] = "OURS"
    judge.LOADED["OURS"] = judge.Backends["CUSTOM"].get_class()
    return names


def rest_of(got: dict[str, Any], names: list[str]) -> str:
    """Digest of what the selector says besides its choice, of all backends but ours."""
    kept: dict[str, Any] = {}
    for key in ABOUT_ALL:
        value = got.get(key)
        if isinstance(value, dict):
            value = {name: texts for name, texts in value.items() if name not in (*names, "OURS")}
        elif isinstance(value, list):
            value = [name for name in value if name not in names]
        kept[key] = value
    return hashlib.sha1(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def main() -> None:
    questions = [json.loads(line) for line in sys.stdin if line.strip()]
    out = os.fdopen(judge.ANSWERS, "w")
    for mode in MODES:
        out.flush()
        if os.fork():
            os.wait()
            continue
        names = prepare(mode)
        asked = [q for q in questions if mode != "named" or q.get("use_mla")]
        for name in names if mode == "named" else [None]:
            found = judge.answer_all([{**q, "backend": name} if name else q for q in asked])
            for q, got in zip(asked, found, strict=True):
                row = {"n": q["_n"], "mode": mode, "name": name, "chosen": got.get("chosen"),
                       "message": got.get("engine_message"), "rest": rest_of(got, names),
                       "ours": got.get("every_backend", {}).get("OURS"), "error": got.get("oracle_error"),
                       "valid": [n for n in got.get("valid", []) if n not in names]}  # fmt: skip
                out.write(json.dumps(row) + "\n")
        out.flush()
        os._exit(0)


main()
