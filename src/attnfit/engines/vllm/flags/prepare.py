"""What vLLM's FlexibleArgumentParser does to the argument list before argparse reads it.

Underscores, `-O3`, dotted keys (`--compilation-config.mode 3`, `-cc.x+ a,b`), `--config file.yaml`. Differences
between releases are in the table's `syntax`. Whatever goes wrong here leaves the engine as an exception of its own,
not as an argparse message: `EngineError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnfit.engines.vllm.flags.convert import BadValue, EngineError, WrongType, human_int
from attnfit.errors import InputError

MAX_CONFIG_BYTES = 4 << 20
MAX_CONFIG_NODES = 100_000
_MODEL = re.compile(r"^--model(=.+|$)")
_CONFIG = re.compile(r"^--config(=.+|$)")
_SERVED = re.compile(r"^--served[-_]model[-_]name(=.+|$)")
_NAME = re.compile(r"(?<=--)[^\.]*")


def prepare(args: list[str], options: Mapping[str, Any], syntax: Mapping[str, Any]) -> list[str]:
    """`args` as argparse would get them. `args[0]` is "serve" for the CLI, absent for the module entry point."""
    if args[:1] == ["serve"]:
        args = _serve_form(args, syntax)
    if "--config" in args:
        args = _insert_config(args, options, syntax)
    return _dotted(_normalise(args, syntax), syntax)


def _serve_form(args: list[str], syntax: Mapping[str, Any]) -> list[str]:
    """`--model M` anywhere moves to the front as the positional."""
    at = next((i for i, a in enumerate(args) if _MODEL.match(a) or (syntax.get("model_eq") and a == "--model=")), None)
    if at is not None:
        if args[at] == "--model":
            if at + 1 >= len(args):
                raise EngineError("IndexError: list index out of range")
            tag, rest = args[at + 1], at + 2
        else:
            tag, rest = args[at].removeprefix("--model="), at + 1
        args = ["serve", tag, *args[1:at], *args[rest:]]
    if (
        syntax.get("served_name_check")
        and len(args) > 1
        and args[1].startswith("-")
        and not any(_CONFIG.match(a) for a in args)
        and any(_SERVED.match(a) for a in args)
    ):
        raise EngineError(
            "ValueError: `model` should be provided as the first positional argument when "
            "using `vllm serve`. i.e. `vllm serve <model> --<arg> <value>`."
        )
    return args


def _normalise(args: list[str], syntax: Mapping[str, Any]) -> list[str]:
    out: list[str] = []
    for i, arg in enumerate(args):
        if arg.startswith("--help="):
            out.append("--help")
        elif arg.startswith("--"):
            key, eq, value = arg.partition("=")
            out.append(_NAME.sub(lambda m: m[0].replace("_", "-"), key, count=1) + eq + value)
        elif syntax.get("O_dot") and arg.startswith("-O."):
            out.append("-cc" + arg[2:])
        elif arg.startswith("-O") and arg != "-O":
            out += ["--optimization-level", arg[3:] if arg[2] == "=" else arg[2:]]
        elif arg == "-O" and args[i + 1 : i + 2] and args[i + 1] in {"0", "1", "2", "3"}:
            out.append("--optimization-level")
        else:
            out.append(arg)
    return out


def _merge(into: dict[str, Any], update: dict[str, Any]) -> None:
    for key, value in update.items():
        old = into.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            _merge(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            into[key] = old + value
        else:
            into[key] = value


def _dotted(args: list[str], syntax: Mapping[str, Any]) -> list[str]:
    """`--x.a.b v` pairs are merged into one `--x '{"a": {"b": v}}'` at the end of the list."""
    gone: set[int] = set()
    merged: dict[str, dict[str, Any]] = {}
    for i, arg in enumerate(args):
        if i in gone or not (arg.startswith("-") and "." in arg):
            continue
        if "=" in arg:
            name, text = arg.split("=", 1)
            if "." not in name:
                continue
        else:
            if i + 1 >= len(args):
                raise EngineError("IndexError: list index out of range")
            name, text = arg, args[i + 1]
            gone.add(i + 1)
        if name.endswith("+"):
            name, text = name[:-1], json.dumps(text.split(","))
        key, *keys = name.split(".")
        value: Any = _dotted_value(text, syntax)
        for k in reversed(keys):
            value = {k: value}
        if not isinstance(value, dict):  # "--x+" after stripping has no dot left
            raise EngineError(f"AttributeError: {type(value).__name__!r} object has no attribute 'items'")
        _merge(merged.setdefault(key, {}), value)
        gone.add(i)
    out = [a for i, a in enumerate(args) if i not in gone]
    for key, tree in merged.items():
        out += [key, json.dumps(tree)]
    return out


def _dotted_value(text: str, syntax: Mapping[str, Any]) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    except RecursionError:
        raise EngineError("RecursionError: maximum recursion depth exceeded") from None
    if syntax.get("dotted_ints"):
        try:
            return human_int(text)
        except (WrongType, BadValue):
            pass
    return text


# ---- --config file.yaml ----------------------------------------------------------------------------------------


def _insert_config(args: list[str], options: Mapping[str, Any], syntax: Mapping[str, Any]) -> list[str]:
    if args.count("--config") > 1:
        raise EngineError("AssertionError: More than one config file specified!")
    at = args.index("--config")
    if at == len(args) - 1:
        raise EngineError(syntax.get("missing_message", "ValueError: No config file specified!"))
    extra = load_config(args[at + 1], options, syntax)
    before, after = args[:at], args[at + 2 :]
    if args[0].startswith("-"):
        return extra + before + after
    if args[0] == "serve":
        in_line = len(args) > 1 and not args[1].startswith("-")
        if not in_line and "--model" not in extra:
            raise EngineError(
                "ValueError: No model specified! Please specify model either "
                "as a positional argument or in a config file."
            )
        head = 2 if in_line else 1
        return args[:head] + extra + args[head:at] + after
    return [args[0], *extra, *args[1:at], *after]


def load_config(path: str, options: Mapping[str, Any], syntax: Mapping[str, Any]) -> list[str]:
    """The YAML file as flags, in the file's order. Raises EngineError with the engine's own exception."""
    extension = path.split(".")[-1]
    if extension not in ("yaml", "yml"):
        raise EngineError("ValueError: " + str(syntax.get("extension_message", "{}")).replace("{}", extension))
    config = _read_yaml(path)
    if not isinstance(config, dict):
        raise EngineError(f"AttributeError: {type(config).__name__!r} object has no attribute 'items'")
    out: list[str] = []
    for key, value in config.items():
        if isinstance(value, bool) and not value:
            if syntax.get("no_key") and f"--no-{key}" in options:
                out.append(f"--no-{key}")
            continue
        if isinstance(value, list) and not value:
            continue
        if not isinstance(key, str):
            raise EngineError(f'TypeError: can only concatenate str (not "{type(key).__name__}") to str')
        out.append("--" + key)
        if isinstance(value, bool):
            continue
        if isinstance(value, list):
            out += [str(item) for item in value]
        elif isinstance(value, dict) and syntax.get("yaml_dict"):
            try:
                out.append(json.dumps(value))
            except (TypeError, ValueError) as e:
                raise EngineError(f"{type(e).__name__}: {e}") from None
        else:
            out.append(str(value))
    return out


def _read_yaml(path: str) -> Any:
    import yaml  # only here: it costs more than all the rest

    try:
        place = Path(path)
        if place.exists() and not place.is_file() and not place.is_dir():  # a pipe would be waited for, for ever
            raise InputError(f"--config {path} is no regular file; give a YAML file")
        with place.open("rb") as f:
            raw = f.read(MAX_CONFIG_BYTES + 1)
    except ValueError as e:  # a NUL in the name
        raise EngineError(f"ValueError: {e}") from None
    except OSError as e:
        raise EngineError(f"{type(e).__name__}: {e}") from None
    if len(raw) > MAX_CONFIG_BYTES:
        raise InputError(f"--config {path} is larger than {MAX_CONFIG_BYTES >> 20} MiB; give a smaller one")
    try:
        config = yaml.safe_load(raw.decode("utf-8"))
    except yaml.YAMLError as e:
        # The engine prints the line as well; a line of a configuration file may be a key.
        mark = getattr(e, "problem_mark", None)
        line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(e, "problem", None) or "not YAML"
        raise EngineError(f'{type(e).__name__}: {problem}\n  in "{path}"{line}') from None
    except (ValueError, TypeError, RecursionError, OverflowError) as e:
        raise EngineError(f"{type(e).__name__}: {e}") from None
    _bounded(config, path)
    return config


def _bounded(value: Any, path: str) -> None:
    """YAML aliases can make a few lines expand to gigabytes; count what an expansion would hold."""
    left, stack = MAX_CONFIG_NODES, [value]
    while stack:
        left -= 1
        if left < 0:
            raise InputError(f"--config {path} expands to more than {MAX_CONFIG_NODES} values; write them out plainly")
        item = stack.pop()
        if isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, (list, tuple, set)):
            stack += item
