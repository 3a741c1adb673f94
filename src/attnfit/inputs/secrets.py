"""Showing a command without its keys and tokens: their values become `$NAME`; and any text without what it holds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache

from attnfit.engines.entry import entry_points
from attnfit.errors import UsageError
from attnfit.inputs import secret_names, shell
from attnfit.inputs.starts import base_name
from attnfit.inputs.unwrap import unwrap
from attnfit.inputs.wrappers import SHELLS

_ASSIGNMENT = re.compile(r"(?s)^([A-Za-z_]\w*)=(.*)$")
_LOOKS_SECRET = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|github_pat_\w{20,}|gh[opsu]_\w{20,}|nvapi-[\w-]{16,}"
    r"|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}\b|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
)
_LOOSE = re.compile(r"((?:--?)?\b[A-Za-z][\w-]*)(=|\s+)([^\s;|&\"'$-][^\s;|&\"']*)")
_IN_URL = re.compile(r"(://)(?:[^/\s:@\"']*:)?[^/\s@\"']+(@)")

# argparse takes every beginning of an option for the option: `--api-k X` is `--api-key X`
_FLAGS = ("--api-key", "--hf-token", "--ssl-keyfile-password", "--admin-api-key")
_WHOLE = frozenset(("--ssl-keyfile",))  # options of their own that begin like one of those
_MANY = "--api-key"  # takes several values
_SSHPASS = re.compile(r"(?:^|/)sshpass$")
_STANDS = re.compile(r"\$(?:PASSWORD(?=@)|(?:TOKEN|SSHPASS)\b)")  # what `hide` puts into the middle of a word
_READS_NEXT = re.compile(r"-[A-Za-z]*c")  # a shell's option in front of the string it reads
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
_SHOWN = re.compile(r"\$[A-Z_][A-Z0-9_]*")
_LEAST_KEY = 4  # characters of a flag's value: what is shorter is found everywhere, and is no secret worth the name
_LEAST_WITHIN = 8  # of one that is looked for within other words: a short one may be a program's name, too


@cache
def _starts() -> re.Pattern[str]:
    """Words that start a server: where one more value cannot be."""
    names = "|".join(re.escape(name) for table in entry_points() for name in table.programs)
    return re.compile(rf"(?:^|/)(?:{names}|python[\d.]*)$")


def is_secret(name: str) -> bool:
    """Does a flag or variable of this name hold a key, token or password?"""
    return bool(secret_names.held(name.lstrip("-"))) or _meant(name) is not None


@lru_cache(maxsize=1024)
def _meant(name: str) -> str | None:
    """The secret flag that `name` is, is the beginning of, or is misspelt for."""
    plain = name.lower().replace("_", "-")
    if not plain.startswith("--") or len(plain) < 3 or plain in _WHOLE:
        return None
    return next((flag for flag in _FLAGS if flag.startswith(plain) or _near(plain, flag)), None)


def _near(word: str, flag: str) -> bool:
    """At most two letters added, left out or changed."""
    if abs(len(word) - len(flag)) > 2:
        return False
    row = list(range(len(flag) + 1))
    for i, letter in enumerate(word, 1):
        above, row[0] = row[0], i
        for j, other in enumerate(flag, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (letter != other))
    return row[-1] <= 2


def shown_name(name: str) -> str:
    return "$" + (_meant(name) or name).lstrip("-").replace("-", "_").upper()


def hide(words: Sequence[str]) -> list[str]:
    """The same words with every secret value replaced by `$NAME`."""
    return _hide(words, given(words))


def given(words: Sequence[str], environ: Mapping[str, str] = {}) -> dict[str, str]:
    """Value -> what stands for it, of the secret flags as the server gets them: the variable that such a value comes
    from may have any name. environ: what is set around the command."""
    found: dict[str, str] = {}
    if not any(is_secret(flag) for word in words for flag in _FLAG.findall(word)):
        return found
    for command in _commands(words):
        try:
            server = unwrap(command)
        except UsageError:
            continue
        known = {**environ, **server.env}
        argv = [_VARIABLE.sub(lambda m: known.get(m[1] or m[2], m[0]), word) for word in server.argv]  # noqa: B023
        for word, shown in zip(argv, _hide(argv, {}), strict=True):
            name, eq, value = word.partition("=") if _SHOWN.fullmatch(shown) is None else ("", "", word)
            stands = shown.removeprefix(name + eq)
            if value != stands and _SHOWN.fullmatch(stands) and len(value) >= _LEAST_KEY and not value.isspace():
                found.setdefault(value, stands)
    return found


def _commands(words: Sequence[str]) -> Iterator[list[str]]:
    """What of `words` may be a launch command: they may be those of attnfit, with the command behind `--` or in one."""
    yield list(words)
    if "--" in words:
        yield list(words[words.index("--") + 1 :])
    if len(words) > 1:
        yield from ([word] for word in words if re.search(r"\s", word))


def _hide(words: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """known: value -> what stands for it, of secrets that no name beside them tells of."""
    out: list[str] = []
    secret, many = "", False  # what stands for the values that follow, and whether more than one does
    shells = False  # whether one was started
    for word in words:
        read = shells and bool(out) and _READS_NEXT.fullmatch(out[-1]) is not None
        shells = shells or base_name(word.removeprefix("--entrypoint=")) in SHELLS
        if secret and not word.startswith("-") and not (many and out[-1] == secret and _starts().search(word)):
            out.append(word if word.startswith("$") else secret)
            secret = secret if many else ""
            continue
        secret = ""
        name, eq, value = word.partition("=")
        assigned = _ASSIGNMENT.match(word)
        if out and _SSHPASS.search(out[-1]) and word.startswith("-p"):
            secret = "" if word[2:] else "$SSHPASS"
            out.append("-p$SSHPASS" if word[2:] else word)
        elif word.startswith("-") and not eq and is_secret(word):
            secret, many = shown_name(word), _meant(word) == _MANY
            out.append(word)
        elif word.startswith("--") and eq and _ASSIGNMENT.match(value) and is_secret(value.partition("=")[0]):
            inner = value.partition("=")[0]
            out.append(f"{name}={inner}={shown_name(inner)}")
        elif assigned and value in known and not is_secret(name):
            out.append(f"{name}={known[value]}")
        elif word.startswith("--") and _ASSIGNMENT.match(value) and value.partition("=")[2] in known:
            out.append(f"{name}={value.partition('=')[0]}={known[value.partition('=')[2]]}")
        elif assigned and is_secret(name) and _is_command(word, read):
            out.append(_inside(word, known))
        elif (assigned or word.startswith("-")) and eq and is_secret(name) and not value.startswith("$"):
            out.append(f"{name}={shown_name(name)}")
        else:
            out.append(_plain(word, known))
    return out


def without_passwords(text: str) -> str:
    """`text` with no user and password in its URLs."""
    return _IN_URL.sub(r"\1$PASSWORD\2", text)


def _is_command(word: str, read: bool) -> bool:
    """Whether what begins like an assignment is a command of several words, and no value that holds blanks: it starts
    a server, or a shell reads it. Where it cannot be told all of it is hidden."""
    if not re.search(r"\s", word):
        return False
    try:
        if read:
            shell.words(word, {})
        else:
            unwrap([word])
    except UsageError:
        return False
    return True


def _plain(word: str, known: Mapping[str, str]) -> str:
    word = without_passwords(_LOOKS_SECRET.sub("$TOKEN", word))
    if any(c in word for c in " \t\n") and not word.lstrip().startswith(("{", "[")):
        word = _inside(word, known)
    for value in sorted((each for each in known if len(each) >= _LEAST_WITHIN), key=len, reverse=True):
        if value in word:
            word = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: known[value], word)  # noqa: B023
    return word


def _inside(text: str, known: Mapping[str, str]) -> str:
    """Secrets in a command given as one string: its words are searched where they stand, command by command."""
    try:
        found = shell.words(text, {})
    except UsageError:
        return _LOOSE.sub(lambda m: f"{m[1]}{m[2]}{shown_name(m[1])}" if is_secret(m[1]) else m[0], text)
    commands: list[list[shell.Word]] = [[]]
    for word in found:
        if word.operator:
            commands.append([])
        else:
            commands[-1].append(word)
    out, at = [], 0
    for command in commands:
        for word, shown in zip(command, _hide([w.value for w in command], known), strict=True):
            if shown != word.value:
                out += [text[at : word.start], shown if " " not in shown else shell.quote(shown)]
                at = word.end
    return "".join([*out, text[at:]])


def line(words: Sequence[str]) -> str:
    """One line a person can paste after setting the names: secrets hidden, the rest quoted for a shell."""
    hidden = hide(words)
    if len(hidden) == 1:
        return hidden[0]
    program = next((at for at, word in enumerate(hidden) if not _ASSIGNMENT.match(word)), len(hidden))
    return " ".join(_quoted(word, assigns=at < program) for at, word in enumerate(hidden))


def _quoted(word: str, *, assigns: bool) -> str:
    """assigns: it stands in front of the program, where a shell takes no quoted name."""
    if re.search(r"\$[A-Z_][A-Z0-9_]*$", word) and not re.search(r"[\s'\"\\;&|<>()`]", word):
        return word  # left for the shell to fill in
    beside = _STANDS.sub("", word)
    if beside != word and not re.search(r"[\s\"\\$`!]", beside):
        name, eq, value = word.partition("=") if _ASSIGNMENT.match(word) else ("", "", word)
        return f'{name}{eq}"{value}"'
    if _ASSIGNMENT.match(word) and (assigns or not re.search(r"\s", word)):
        name, _, value = word.partition("=")
        return f"{name}={shlex.quote(value) if value else ''}"
    return shlex.quote(word)


# What a flag that holds a secret may look like when it is misspelt or cut short, and not "--tokenizer".
_SECRETISH = r"[\w.-]*(?:tok|toke|tokne|tokens?[_-]value|keys|kye|pasword|auth|authorization)"
_VALUES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?<![\w-])--?{_SECRETISH}(?:=|\s+)[\"']?([^\s\"']+)",  # --flag value
        rf"\b{_SECRETISH}=[\"']?([^\s\"']+)",  # NAME=value
        r"\bBearer\s+([^\s\"';|&]+)",
        r"://(?:[^/\s:@]+:)?([^/\s:@]+)@",  # user:password@ and token@ of a URL
    )
)
_FLAG_VALUE = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)(?:=|\s+)[\"']?([^\s\"']+)")
_END = re.compile(r"[;|&,)\]}].*", re.DOTALL)  # what may stand behind a value in a shell's line or a list
_LEAST = 6  # characters: shorter values are words like "none", and would be found everywhere
HIDDEN = "$HIDDEN"


def values(words: Sequence[str]) -> frozenset[str]:
    """Everything in a command that looks like the value of a key, token or password, however it got there."""
    text = "\n".join([" ".join(words), *words])
    found = {match for pattern in _VALUES for match in pattern.findall(text)}
    found |= set(_LOOKS_SECRET.findall(text))
    found |= {value for name, value in _FLAG_VALUE.findall(text) if is_secret(name)}
    found |= {text[value.start : value.end] for value in secret_names.found(text)}
    found |= {_END.sub("", value) for value in found}
    return frozenset(
        v for v in found if len(v) >= _LEAST and not v.startswith(("$", "-", "/", ".")) and not v.isdigit()
    )


def clean(text: str, words: Sequence[str]) -> str:
    """`text` with none of those values in it, and no password of a URL: the last gate before anything is printed."""
    return _without(text, values(words).union(value for value in given(words) if len(value) >= _LEAST))


def _without(text: str, found: Iterable[str]) -> str:
    text = without_passwords(text)
    for value in sorted(found, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


_AUTHORIZED = re.compile(r"(?i)\b(bearer|basic)\s+(?=[\w+/=.-]*[\d+/=])[\w+/=.-]{8,}")
_SIGNED = re.compile(r"(?i)([?&][\w-]*(?:signature|sig|credential|key)=)[^&\s'\"$]+")


def masked(text: str) -> str:
    """`text`, whoever wrote it, without the keys, tokens and passwords that it holds."""
    out, at = [], 0
    for value in secret_names.found(text):
        out += [text[at : value.start], HIDDEN]
        at = value.end
    text = _LOOKS_SECRET.sub("$TOKEN", "".join([*out, text[at:]]))
    text = _SIGNED.sub(rf"\1{HIDDEN}", _AUTHORIZED.sub(r"\1 $TOKEN", text))
    return _without(text, values([text]))
