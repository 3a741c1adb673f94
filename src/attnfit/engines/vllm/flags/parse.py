"""`parse_flags`: the whole way from a server's argument list to values, or the parser's refusal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnfit.engines.vllm.flags import convert, prepare, schema
from attnfit.engines.vllm.flags.class_rules import SchemaError
from attnfit.engines.vllm.flags.convert import EngineError
from attnfit.engines.vllm.flags.parser import Parser, ParserError
from attnfit.engines.vllm.flags.table import Flag, Table, load_table
from attnfit.engines.vllm.launch.state import ParsedFlags, Refusal, Unknown
from attnfit.errors import InputError, did_you_mean
from attnfit.inputs import shell

STAGE = "parse_flags"
WHERE = "vllm/utils/argparse_utils.py"


def parse_flags(
    table: Table | str,
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    *,
    form: str = "auto",
    files_here: bool = True,
) -> ParsedFlags:
    """What the release's parser makes of `argv` (after the subcommand, the positional model included).

    `table` may be a release with a book. `form` is "serve" for `vllm serve`, "module" for
    `python -m vllm.entrypoints.openai.api_server` and for the bare flags of a batch line; "auto" is "serve" when
    `argv` starts with a model. `files_here` False: a `--config` file lies in a container, not on this machine.

    Raises Refusal (stage parse_flags; `message` is what a launch prints last, `detail` the parser's own words),
    Unknown where the table cannot say, InputError for a --config file too large to read.
    """
    words = list(argv)
    if isinstance(table, str):
        table = load_table(table)
    if form == "auto":
        form = "serve" if words and not words[0].startswith("-") else "module"
    if not files_here and "--config" in words:
        raise Unknown("the --config file lies inside the container; give its flags on the command line")
    converter = _Converter(table)
    parser = Parser(table, converter)
    try:
        ready = prepare.prepare(["serve", *words] if form == "serve" else words, parser.options, table.syntax)
        if form == "serve":
            ready = ready[1:]
            _top_level(ready)
        values = parser.parse(ready)
    except EngineError as e:
        raise refusal(e.text, e.text) from None
    except ParserError as e:
        hint = _meant(e.option, parser.options) if e.message.startswith("unrecognized") else ""
        raise refusal(f"ValueError: argument parser refused the flags (exit {e.code})", e.message + hint) from None
    if converter.unknown is not None:
        raise converter.unknown
    if form == "serve" and values.get("model_tag") is not None:
        values["model"] = values["model_tag"]
    defaults = {f.dest: f.default for f in table.flags if f.default != "==SUPPRESS=="}
    return ParsedFlags(values=values, defaults=defaults, env=dict(env or {}))


def _meant(given: str, options: Iterable[str]) -> str:
    """The long option that a misspelt one is close to; dashes, which all of them share, do not count."""
    if not given.startswith("--"):
        return ""
    names = {option.strip("-"): option for option in options if option.startswith("--")}
    found = did_you_mean(given.partition("=")[0].strip("-"), names, cutoff=0.75)
    return found.replace("mean '", "mean '--")


def _top_level(args: list[str]) -> None:
    """`vllm` itself reads the list first; the one thing it can refuse there is an option without a name."""
    before = args[: args.index("--")] if "--" in args else args
    for arg in before:
        if arg.startswith("--="):
            raise ParserError(f"ambiguous option: {arg} could match --help, --version", option=arg)


def refusal(message: str, detail: str) -> Refusal:
    return Refusal(STAGE, message, WHERE, detail)


def flag_error(table: Table | str, argv: Sequence[str], form: str = "auto") -> str | None:
    """The parser's words for why it refuses `argv`, or None. Raises Unknown like `parse_flags`."""
    try:
        parse_flags(table, argv, form=form)
    except Refusal as e:
        return e.detail
    return None


def lenient_values(release: str, argv: Sequence[str], form: str) -> dict[str, Any]:
    """The text every flag was given, nothing converted or refused: for looking, not for judging."""
    parser = Lenient(load_table(release), lambda flag, text: text)
    try:
        ready = prepare.prepare(
            ["serve", *argv] if form == "serve" else list(argv), parser.options, parser.table.syntax
        )
        parser.parse(ready[1:] if form == "serve" else ready)
    except (EngineError, ParserError, InputError):
        pass  # what was read up to there
    return parser.values


class Lenient(Parser):
    def _value(self, flag: Flag, text: str) -> Any:
        return text


# What these say changes nothing of the answer, so a variable that is not set here may stand in them. The model is
# read before.
_INDIFFERENT = frozenset((
    "model", "model_tag", "tokenizer", "served_model_name", "host", "port", "uds", "api_key", "hf_token", "root_path",
    "uvicorn_log_level", "log_config_file", "max_log_len", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs",
    "allowed_origins", "allowed_methods", "allowed_headers", "chat_template", "response_role", "tool_parser_plugin",
    "middleware", "download_dir", "seed", "otlp_traces_endpoint", "data_parallel_address", "data_parallel_rpc_port",
    "master_addr", "master_port", "api_server_count",
))  # fmt: skip


class _Converter:
    """One flag's text to its value. A type that the table does not know is kept for the end: an argument that is
    wrong for certain wins over one that nobody can judge."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.unknown: Unknown | None = None
        self.suffixes = str(table.syntax.get("suffixes", "kmgt"))

    def __call__(self, flag: Flag, text: str) -> Any:
        name = shell.variable(text)
        if name is None:
            return self._checked(flag, text)
        try:
            value = self._checked(flag, text)
            told = not isinstance(value, str)  # an object that was read may hold a dollar sign of its own
        except (convert.BadValue, convert.WrongType):
            value, told = text, False
        if told or flag.dest in _INDIFFERENT:
            return value
        return self._unknown(f"{flag.name}: {name} is not set here; put its value into the command", text)

    def _checked(self, flag: Flag, text: str) -> Any:
        if flag.action not in ("store", "append", "lora"):
            return self._unknown(f"{flag.name}: its action {flag.action} is not known", text)
        return self._convert(flag.type, flag, text)

    def _convert(self, kind: Any, flag: Flag, text: str) -> Any:
        if kind is None:
            return self._unknown(f"{flag.name}: the type of its value is not known for this release", text)
        if isinstance(kind, str):
            if kind == "human_readable_int":
                return convert.human_int(text, self.suffixes)
            if kind == "human_readable_int_or_auto":
                return convert.human_int_or_auto(text, self.suffixes)
            return convert.PLAIN[kind](text)
        if "optional" in kind:
            inner = kind["optional"]
            return convert.optional(lambda t: self._convert(inner, flag, t))(text)
        if "parsed" in kind:
            inner = kind["parsed"]
            return convert.parsed(lambda t: self._convert(inner, flag, t))(text)
        if "dataclass" in kind:
            return self._dataclass(kind["dataclass"], flag, text)
        return self._unknown(f"{flag.name}: values of type {kind} are not known", text)

    def _dataclass(self, name: str, flag: Flag, text: str) -> Any:
        if self.table.syntax.get("json_ints"):
            text = convert.expand_json_ints(text)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise convert.BadValue(f"{name}: Invalid JSON: {e}") from None
        try:
            schema.accept(name, value, self.table.classes)
        except SchemaError as e:
            raise convert.BadValue(str(e)) from None
        except Unknown as e:
            self.unknown = self.unknown or Unknown(f"{flag.name}: {e}")
        return value

    def _unknown(self, why: str, value: Any) -> Any:
        self.unknown = self.unknown or Unknown(why)
        return value
