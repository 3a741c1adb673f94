"""How a release's FlexibleArgumentParser treats the argument list before argparse sees it, found by trying it.

Standard library only: this runs inside the isolated child.
"""

from __future__ import annotations

import argparse
import ast
import types
from typing import Any

from attnfit.engines.vllm.learn.flagworker.source import digest
from attnfit.engines.vllm.learn.flagworker.stubs import NullContext, StubLeak


def probe_syntax(make_parser: Any, arg_utils: Any, argparse_utils: Any) -> dict[str, Any]:
    """How this release's FlexibleArgumentParser treats the list before argparse, found by trying it."""

    def outcome(args: list[str]) -> Any:
        parser = make_parser()
        parser.add_argument("model_tag", nargs="?")
        for flag in ("--probe", "-cc", "--model", "--served-model-name", "--config", "--optimization-level"):
            parser.add_argument(flag)
        parser.add_argument("--switch", action=argparse.BooleanOptionalAction)
        parser.error = lambda message: (_ for _ in ()).throw(StubLeak(message))
        try:
            return vars(parser.parse_args(args))
        except (StubLeak, Exception) as e:
            return f"{type(e).__name__}: {e}"

    human = getattr(arg_utils, "human_readable_int", None) or argparse_utils.human_readable_int
    try:
        suffixes = "kmgt" if human("1t") == 10**12 else "kmg"
    except ValueError:
        suffixes = "kmg"
    served = outcome(["serve", "--served-model-name", "x"])
    dotted = outcome(["--probe.a", "1k"])
    loader = make_parser()
    loader.add_argument("--switch", action=argparse.BooleanOptionalAction)

    def load(value: Any) -> Any:
        argparse_utils.yaml = types.SimpleNamespace(safe_load=lambda f: value)
        try:
            return loader.load_config_file("PROBE.yaml")
        except Exception as e:
            return f"{type(e).__name__}: {e}"

    argparse_utils.open = lambda *a, **k: NullContext()
    bad_name = ""
    try:
        loader.load_config_file("x.json")
    except ValueError as e:
        bad_name = str(e)
    missing = outcome(["serve", "m", "--config"])
    syntax = {
        "suffixes": suffixes,
        "json_ints": hasattr(arg_utils, "_expand_json_human_readable_numbers"),
        "dotted_ints": isinstance(dotted, dict) and dotted.get("probe") == '{"a": 1000}',
        "O_dot": isinstance(outcome(["-O.x=1"]), dict) and outcome(["-O.x=1"]).get("cc") == '{"x": 1}',
        "served_name_check": isinstance(served, str) and served.startswith("ValueError"),
        "model_eq": "unrecognized" in str(outcome(["serve", "--model="])),
        "yaml_dict": load({"k": {"a": 1}}) == ["--k", '{"a": 1}'],
        "no_key": load({"switch": False}) == ["--no-switch"],
        "extension_message": bad_name.replace("json", "{}"),
        "missing_message": missing if isinstance(missing, str) else "",
        "task_hint": "Hint: --task" in str(outcome(["serve", "m", "--task", "embed"])),
    }
    del argparse_utils.open
    return {k: v for k, v in syntax.items() if v is not False}


def function_digests(finder: Any) -> dict[str, str]:
    """Digests of the functions this tool's reading of the parser rests on."""
    path = finder.path("vllm.utils.argparse_utils") or ""
    out = {}
    for name in ("parse_args", "_pull_args_from_config", "load_config_file"):
        out[name] = digest(path, "FlexibleArgumentParser", name)
    return out


def quantization_names(finder: Any) -> dict[str, Any]:
    """The names `--quantization-config` accepts, read from the two tables of vllm/config/quantization.py."""
    out: dict[str, Any] = {}
    for node in (finder.tree("vllm.config.quantization") or ast.Module([], [])).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.value, ast.Dict):
            continue
        target = node.target
        if not isinstance(target, ast.Name):
            continue
        if target.id in ("QUANT_KEY_NAMES", "_ONLINE_SHORTHANDS"):
            names = {}
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if key is None:
                    continue
                given = [k.arg for k in value.keywords] if isinstance(value, ast.Call) else []
                names[str(ast.literal_eval(key))] = given
            out[target.id] = {"names": names, "where": f"vllm/config/quantization.py:{node.lineno}"}
    return out
