"""The isolated child: `python -I -S -B __main__.py SOURCE_ROOT` prints the release's flags as JSON.

The modules that define the flags (`vllm/config/*`, `arg_utils.py`, `cli_args.py`, `argparse_utils.py`) are executed as
they are, with no site packages; everything else they import is a stub. Standard library only.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

CPU_SECONDS, MEMORY_MB = 120, 2048


def bare_packages(src: Path) -> None:
    """Make these modules importable without running the packages' own imports."""
    for name in (
        "attnfit",
        "attnfit.engines.vllm.learn",
        "attnfit.engines.vllm.learn.flagworker",
        "attnfit.witness",
        "attnfit.engines",
        "attnfit.engines.vllm",
    ):
        package = types.ModuleType(name)
        package.__path__ = [str(src.joinpath(*name.split(".")))]
        sys.modules[name] = package


CLI_ARGS = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)


def extract(root: str) -> dict[str, Any]:
    from attnfit.engines.vllm.learn.flagworker.classes import describe_class
    from attnfit.engines.vllm.learn.flagworker.describe import describe, describe_type, watch_hints
    from attnfit.engines.vllm.learn.flagworker.loader import Finder
    from attnfit.engines.vllm.learn.flagworker.probe import function_digests, probe_syntax, quantization_names

    root = os.path.abspath(root)
    finder = Finder(root)
    sys.meta_path.insert(0, finder)
    sys.argv = ["vllm"]
    cli = next((n for n in CLI_ARGS if finder.path(n)), None)
    if cli is None:
        raise SystemExit("no vllm/entrypoints/*/cli_args.py in this source tree")
    unsure: dict[tuple[str, str], list[str]] = {}
    watch_hints(importlib.import_module("vllm.engine.arg_utils"), unsure)
    make = importlib.import_module(cli).make_arg_parser
    parser_module = importlib.import_module("vllm.utils.argparse_utils")
    parser = make(parser_module.FlexibleArgumentParser())
    rows = describe(parser)
    classes: dict[str, Any] = {}
    for action in parser._actions:
        found = describe_type(action.type)
        while isinstance(found, dict) and "optional" in found:
            found = found["optional"]
        if isinstance(found, dict) and "dataclass" in found:
            _find_class(action.type, classes)
    described_names = quantization_names(finder)
    kinds = finder.evaluate("vllm.v1.kv_cache_interface", "KVCacheSpecKind", 0)
    if isinstance(kinds, type):
        classes["KVCacheSpecKind"] = kinds
    described: dict[str, Any] = dict(described_names)
    while set(classes) - set(described):
        for name in sorted(set(classes) - set(described)):
            described[name] = describe_class(classes[name], classes, root)
    syntax = probe_syntax(
        parser_module.FlexibleArgumentParser, importlib.import_module("vllm.engine.arg_utils"), parser_module
    )
    return {
        "flags": rows,
        "classes": described,
        "loaded": sorted(set(finder.loaded)),
        "syntax": syntax,
        "digests": function_digests(finder),
        "unsure": {".".join(k): v for k, v in unsure.items()},
    }


def _find_class(t: Any, classes: dict[str, Any]) -> None:
    if getattr(t, "__name__", "") == "_optional_type":
        _find_class(t.__closure__[0].cell_contents, classes)
    elif getattr(t, "__name__", "") == "parse_dataclass":
        cls = t.__defaults__[-1]
        classes[cls.__name__] = cls


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever engine code prints must not look like an answer
    sys.dont_write_bytecode = True
    bare_packages(Path(__file__).resolve().parents[5])
    importlib.import_module("attnfit.engines.vllm.learn.flagworker.loader")  # before the door is shut
    importlib.import_module("attnfit.witness.isolate").shut_in(CPU_SECONDS, MEMORY_MB)
    json.dump(extract(sys.argv[1]), out)
    out.flush()


if __name__ == "__main__":
    main()
