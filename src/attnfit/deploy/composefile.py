"""Another command in a service of a compose file, the rest of its text untouched. Pure: texts in, a text out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from msgspec import structs

from attnfit.errors import AttnfitError, UsageError
from attnfit.inputs.compose import Service, parse, plain, read_text_of

_HOW = "change the file by hand to that command"


def edited(service: Service, command: Sequence[str], variables: Mapping[str, str | None]) -> str:
    """The file's text with that command and those variables (None: taken away).

    Raises UsageError where that cannot be done in place; what comes out is read again and must say what was meant.
    """
    text = _ended(_edited(_plain_ends(service), command, variables), service.text)
    _agree(service, text, command, variables)
    return text


def _plain_ends(service: Service) -> Service:
    return structs.replace(service, text=service.text.replace("\r\n", "\n"))


def _ended(text: str, old: str) -> str:
    """The lines of `text` with the ends they have in `old`; a new one has that of the line before it."""
    if "\r\n" not in old:
        return text
    lines, before = text.split("\n"), old.split("\n")
    ends = ["\r" * line.endswith("\r") for line in before]
    ends[-1] = ends[-2]  # behind the last there is none; should a line follow it, it gets one
    had = [line.removesuffix("\r") for line in before]
    out: list[str] = []
    end = ends[0]
    for _, i1, i2, j1, j2 in SequenceMatcher(None, had, lines, autojunk=False).get_opcodes():
        for n, line in enumerate(lines[j1:j2]):
            end = ends[min(i1 + n, i2 - 1)] if i1 < i2 else end
            out.append(line + end)
    return "\n".join(out).removesuffix("\r")


def _edited(service: Service, command: Sequence[str], variables: Mapping[str, str | None]) -> str:
    root = parse(service.text, service.file)
    node = _child(_child(root, "services"), service.name)
    edits: list[tuple[int, int, str]] = []
    if list(command) != list(service.command):
        edits += _command(service, _child(node, "command"), command)
    if variables:
        edits += _variables(service, node, variables)
    text = service.text
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return _without_blank(service.text, text)


def _child(node: Any, name: str) -> Any:
    for key, value in getattr(node, "value", ()):
        if getattr(key, "value", None) == name:
            return value
    return None


def _span(node: Any) -> tuple[int, int]:
    return node.start_mark.index, node.end_mark.index


def _command(service: Service, node: Any, command: Sequence[str]) -> list[tuple[int, int, str]]:
    """The words of the node that change, each where it stands."""
    if node is None:
        raise UsageError(f"the service has no command to change; {_HOW}")
    spans = _list_spans(node) if isinstance(node.value, list) else _text_spans(service.text, *_span(node))
    if len(spans) != service.own:
        raise UsageError(f"the words of the command cannot be told apart in the file; {_HOW}")
    in_list = isinstance(node.value, list)
    flow = in_list and bool(node.flow_style)
    quote = node.style if not in_list and node.style in ("'", '"') else ""
    edits: list[tuple[int, int, str]] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, service.command, command, autojunk=False).get_opcodes():
        new = list(command[j1:j2])
        if tag == "equal":
            continue
        both = min(i2 - i1, len(new))
        edits += [(*spans[i1 + n], _spelt(new[n], in_list, quote)) for n in range(both)]
        if i1 + both < i2:
            edits += _removed(service.text, spans, i1 + both, i2, in_list, flow)
        if new[both:]:
            words = [_spelt(word, in_list, quote) for word in new[both:]]
            edits.append(_added(service.text, spans, i1 + both, words, in_list, flow))
    return edits


_PLAIN = re.compile(r"[A-Za-z./_-][\w./@=+,-]*")
# by YAML for something else
_MEANT = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "-", "---", ".nan", ".inf"))


def _spelt(word: str, in_list: bool, quote: str = "") -> str:
    """quote: in which of YAML's quotes the text stands that the word becomes part of."""
    word = word.replace("$", "$$")
    if not in_list:
        word = shlex.quote(word)
        if quote == '"':
            return word.replace("\\", "\\\\").replace('"', '\\"')
        return word.replace("'", "''") if quote else word
    if _PLAIN.fullmatch(word) and word.lower() not in _MEANT:
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _list_spans(node: Any) -> list[tuple[int, int]]:
    return [_span(each) for each in node.value]


def _text_spans(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Words of a text scalar, where no quotes of its own make that doubtful."""
    found = [(start + m.start(), start + m.end()) for m in re.finditer(r"\S+", text[start:end])]
    if found and re.fullmatch(r"[>|][+-]?\d?", text[slice(*found[0])]):
        found.pop(0)  # the mark of a block
    if found and text[start] in "\"'" and text[end - 1] == text[start]:
        found[0] = (found[0][0] + 1, found[0][1])
        found[-1] = (found[-1][0], found[-1][1] - 1)
    return [span for span in found if text[slice(*span)] != "\\"]


def _removed(
    text: str, spans: Sequence[tuple[int, int]], first: int, last: int, in_list: bool, flow: bool
) -> list[tuple[int, int, str]]:
    """What takes away the words from `first` up to before `last`."""
    if in_list and not flow:  # their dashes and whole lines
        lines = []
        for start, end in spans[first:last]:
            after = text.find("\n", end)
            lines.append((text.rfind("\n", 0, start) + 1, len(text) if after < 0 else after + 1, ""))
        return lines
    start, end = spans[first][0], spans[last - 1][1]
    if last < len(spans) and (flow or "\n" not in text[end : spans[last][0]]):
        return [(start, spans[last][0], "")]
    if last == len(spans) and first and (flow or "\n" not in text[spans[first - 1][1] : start]):
        return [(spans[first - 1][1], end, "")]
    return [(start, end, "")]


def _added(
    text: str, spans: Sequence[tuple[int, int]], at: int, words: Sequence[str], in_list: bool, flow: bool
) -> tuple[int, int, str]:
    if not spans:
        raise UsageError(f"the command is empty in the file; {_HOW}")
    if in_list and not flow:
        start, end = spans[max(at - 1, 0)]
        line = text.rfind("\n", 0, start) + 1
        lead = text[line:start]
        where = (text.find("\n", end) + 1 or len(text)) if at else line
        gap = "" if text[where - 1 : where] == "\n" else "\n"
        return where, where, gap + "".join(f"{lead}{word}\n" for word in words)
    comma = ", " if flow else " "
    if at:
        return spans[at - 1][1], spans[at - 1][1], "".join(comma + word for word in words)
    return spans[0][0], spans[0][0], "".join(word + comma for word in words)


def _variables(service: Service, node: Any, variables: Mapping[str, str | None]) -> list[tuple[int, int, str]]:
    environment = _child(node, "environment")
    edits: list[tuple[int, int, str]] = []
    added: list[tuple[str, str]] = []
    for name, value in variables.items():
        place = None
        if environment is not None and environment.value and isinstance(environment.value[0], tuple):
            place = next((_span(v) for k, v in environment.value if k.value == name), None)
            text = _spelt(value or "", True)
        elif environment is not None:
            place = next((_span(v) for v in environment.value if str(v.value).partition("=")[0] == name), None)
            text = _spelt(f"{name}={value}", True)
        if place is None and name in service.variables:
            raise UsageError(f"{name} is set in an env_file; set it to {value!r} there")
        if place is None:
            added += [(name, value)] if value is not None else []
        elif value is None:
            edits += _removed(service.text, [place], 0, 1, True, bool(environment.flow_style))
        else:
            edits.append((*place, text))
    if added:
        edits.append(_new_variables(service.text, node, environment, added))
    return edits


def _new_variables(text: str, node: Any, environment: Any, added: Sequence[tuple[str, str]]) -> tuple[int, int, str]:
    if environment is None:
        first = node.value[0][0]
        lead = text[text.rfind("\n", 0, first.start_mark.index) + 1 : first.start_mark.index]
        lines = "".join(f"{lead}  {name}: {_quoted(value)}\n" for name, value in added)
        at = first.start_mark.index - len(lead)
        return at, at, f"{lead}environment:\n{lines}"
    if environment.flow_style or not environment.value:
        raise UsageError(f"environment is written on one line in the file; {_HOW}")
    first = environment.value[0]
    is_map = isinstance(first, tuple)
    begin = (first[0] if is_map else first).start_mark.index
    line = text.rfind("\n", 0, begin) + 1
    lead = text[line:begin]
    return (
        line,
        line,
        "".join(
            f"{lead}{name}: {_quoted(value)}\n" if is_map else f"{lead}{_spelt(f'{name}={value}', True)}\n"
            for name, value in added
        ),
    )


def _quoted(value: str) -> str:
    return '"' + value.replace("$", "$$").replace("\\", "\\\\").replace('"', '\\"') + '"'


def _without_blank(before: str, after: str) -> str:
    """Without the lines that are empty only since their words were taken."""
    old = {line for line in before.split("\n") if not line.strip(" \\")}
    lines = [line for line in after.split("\n") if line.strip(" \\") or line in old or not line]
    return re.sub(r"[ ]+\n", "\n", "\n".join(lines)) if re.search(r"[ ]+\n", before) is None else "\n".join(lines)


def _agree(service: Service, text: str, command: Sequence[str], variables: Mapping[str, str | None]) -> None:
    """Raises UsageError unless the command, and those variables, are what is wanted, and nothing else differs."""

    def rest(source: str) -> Any:
        whole = plain(parse(source, service.file))
        one = whole["services"][service.name]
        one.pop("command", None)
        if variables:
            one.pop("environment", None)
        return whole

    try:
        new = read_text_of(service.file, text, service.name, service.around)
        wanted = {**service.variables, **variables}
        same = list(new.command) == list(command) and rest(text) == rest(service.text)
        same = same and new.variables == {name: value for name, value in wanted.items() if value is not None}
    except AttnfitError:
        same = False
    if not same:
        raise UsageError(f"the file cannot be changed in place; {_HOW}")
