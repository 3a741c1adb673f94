"""argparse's algorithm (Python 3.12, which vLLM's images ship) over a flag table.

Written here, not borrowed from the running Python's argparse: abbreviations, `--`, negative numbers and error texts
differ between Python versions, and the engine runs under its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from attnfit.engines.vllm.flags.convert import BadValue, WrongType
from attnfit.engines.vllm.flags.table import Flag, Table
from attnfit.inputs import shell

_NEGATIVE = re.compile(r"^-\d+$|^-\d*\.\d+$")
Convert = Callable[[Flag, str], Any]


class ParserError(Exception):
    """argparse prints this and exits with `code`."""

    def __init__(self, message: str, code: int = 2, option: str = "") -> None:
        super().__init__(message)
        self.message, self.code, self.option = message, code, option


class Parser:
    """One parse: `values` holds what the command line set, in the order it was set."""

    def __init__(self, table: Table, convert: Convert) -> None:
        self.table, self.flags = table, table.flags
        self.options = table.by_option()
        self.convert = convert
        self.values: dict[str, Any] = {}
        self.extras: list[str] = []

    def parse(self, args: list[str]) -> dict[str, Any]:
        """Raises ParserError (with argparse's message), or whatever `convert` raises for its own reasons."""
        marks, found = self._classify(args)
        pattern = "".join(marks)
        positionals = [f for f in self.flags if not f.options]
        at = 0
        last = max(found, default=-1)
        upcoming = sorted(found)
        while at <= last:
            following = next(i for i in upcoming if i >= at)
            if at != following:
                end = self._positionals(positionals, args, pattern, at)
                if end > at:
                    at = end
                    continue
            if at not in found:
                self.extras += args[at:following]
                at = following
            at = self._optional(args, pattern, at, *found[at])
            upcoming = [i for i in upcoming if i >= at] if len(upcoming) < 500 else upcoming
        end = self._positionals(positionals, args, pattern, at)
        self.extras += args[end:]
        missing = [f.name for f in self.flags if f.required and f.dest not in self.values]
        if missing:
            raise ParserError(f"the following arguments are required: {', '.join(missing)}")
        if self.extras:
            raise ParserError(f"unrecognized arguments: {' '.join(self.extras)}", option=self.extras[0])
        return self.values

    # -- which strings are options

    def _classify(self, args: list[str]) -> tuple[list[str], dict[int, tuple[Flag | None, str, str | None]]]:
        marks: list[str] = []
        found: dict[int, tuple[Flag | None, str, str | None]] = {}
        for i, arg in enumerate(args):
            if arg == "--":
                return [*marks, "-", *("A" * (len(args) - i - 1))], found
            option = self._as_option(arg)
            if option is None:
                marks.append("A")
            else:
                marks.append("O")
                found[i] = option
        return marks, found

    def _as_option(self, arg: str) -> tuple[Flag | None, str, str | None] | None:
        if not arg or arg[0] != "-":
            return None
        if arg in self.options:
            return self.options[arg], arg, None
        if len(arg) == 1:
            return None
        name, eq, value = arg.partition("=")
        if eq and name in self.options:
            return self.options[name], name, value
        near = self._abbreviations(arg)
        if len(near) > 1:
            matches = ", ".join(n[1] for n in near)
            raise ParserError(f"ambiguous option: {arg} could match {matches}", option=arg)
        if near:
            return near[0]
        if _NEGATIVE.match(arg) or " " in arg:
            return None
        return None, arg, None

    def _abbreviations(self, arg: str) -> list[tuple[Flag | None, str, str | None]]:
        if arg[1] == "-":
            prefix, eq, value = arg.partition("=")
            return [(f, o, value if eq else None) for o, f in self.options.items() if o.startswith(prefix)]
        out: list[tuple[Flag | None, str, str | None]] = []
        for option, flag in self.options.items():
            if option == arg[:2]:
                out.append((flag, option, arg[2:]))
            elif option.startswith(arg):
                out.append((flag, option, None))
        return out

    # -- taking values

    def _positionals(self, waiting: list[Flag], args: list[str], pattern: str, at: int) -> int:
        while waiting:
            flag = waiting[0]
            match = re.compile(r"-*A?-*" if flag.nargs == "?" else r"-*A-*").match(pattern, at)
            if match is None:
                break
            waiting.pop(0)
            taken = args[at : match.end()]
            at = match.end()
            if "--" in taken:
                taken.remove("--")
            if taken:
                self._store(flag, taken, "")
        return at

    def _optional(
        self, args: list[str], pattern: str, at: int, flag: Flag | None, option: str, value: str | None
    ) -> int:
        todo: list[tuple[Flag, list[str], str]] = []
        while True:
            if flag is None:
                self.extras.append(args[at])
                return at + 1
            if value is None:
                count = self._count(flag, pattern, at + 1)
                stop = at + 1 + count
                todo.append((flag, args[at + 1 : stop], option))
                break
            count = self._count(flag, "A", 0)
            if count == 0 and option[1] != "-" and value != "":
                todo.append((flag, [], option))
                option, rest = "-" + value[0], value[1:] or None
                if option not in self.options:
                    raise ParserError(f"argument {flag.name}: ignored explicit argument {value!r}", option=option)
                flag, value = self.options[option], rest
            elif count == 1:
                stop = at + 1
                todo.append((flag, [value], option))
                break
            else:
                raise ParserError(f"argument {flag.name}: ignored explicit argument {value!r}", option=option)
        for one, texts, spelled in todo:
            self._store(one, texts, spelled)
        return stop

    def _count(self, flag: Flag, pattern: str, at: int) -> int:
        """How many of the strings from `at` on this option takes."""
        if flag.action in ("bool", "true", "false", "help", "version"):
            return 0
        run = 0
        while at + run < len(pattern) and pattern[at + run] == "A":
            run += 1
        nargs = flag.nargs
        if nargs is None:
            if run < 1:
                raise ParserError(f"argument {flag.name}: expected one argument", option=flag.name)
            return 1
        if nargs == "?":
            return min(run, 1)
        if nargs == "*":
            return run
        if nargs == "+":
            if run < 1:
                raise ParserError(f"argument {flag.name}: expected at least one argument", option=flag.name)
            return run
        if run < int(nargs):
            plural = "argument" if int(nargs) == 1 else "arguments"
            raise ParserError(f"argument {flag.name}: expected {nargs} {plural}", option=flag.name)
        return int(nargs)

    def _store(self, flag: Flag, texts: list[str], option: str) -> None:
        if flag.action == "help":
            raise ParserError("shows the help text and exits", code=0, option=option)
        if flag.action == "version":
            raise ParserError("shows the version and exits", code=0, option=option)
        if flag.action in ("bool", "true", "false"):
            self.values[flag.dest] = option not in flag.negative if flag.action == "bool" else flag.action == "true"
            return
        if "--" in texts:  # `--flag=--`: argparse drops the text
            texts = list(texts)
            texts.remove("--")
        if not texts and flag.nargs == "?":
            value: Any = flag.const
        elif len(texts) == 1 and flag.nargs in (None, "?"):
            value = self._value(flag, texts[0])
        else:
            value = [self._value(flag, t) for t in texts]
        if flag.action == "lora":
            value = _lora(value)
        if flag.action == "append":
            value = [*self.values.get(flag.dest, flag.default or []), value]
        self.values[flag.dest] = value

    def _value(self, flag: Flag, text: str) -> Any:
        try:
            value = self.convert(flag, text)
        except BadValue as e:
            raise ParserError(f"argument {flag.name}: {e}", option=flag.name) from None
        except WrongType as e:
            raise ParserError(f"argument {flag.name}: invalid {e.name} value: {text!r}", option=flag.name) from None
        if flag.choices is not None and value not in flag.choices and shell.variable(text) is None:
            choices = ", ".join(map(repr, flag.choices))
            raise ParserError(
                f"argument {flag.name}: invalid choice: {value!r} (choose from {choices})", option=flag.name
            )
        return value


def _lora(items: list[Any]) -> list[dict[str, Any]]:
    """`name=path`, or a JSON object with the fields of the engine's LoRAModulePath."""
    out = []
    for item in items:
        if not item:
            continue
        if "=" in item and "," not in item:
            name, path = item.split("=", 1)
            out.append({"name": name, "path": path})
            continue
        try:
            module = json.loads(item)
        except ValueError:
            raise ParserError(f"Invalid JSON format for --lora-modules: {item}") from None
        if not isinstance(module, dict) or not {"name", "path"} <= set(module) <= LORA_FIELDS:
            raise ParserError(f"Invalid fields for --lora-modules: {item} - LoRAModulePath takes name, path")
        out.append(module)
    return out


LORA_FIELDS = {"name", "path", "base_model_name", "is_3d_lora_weight"}
