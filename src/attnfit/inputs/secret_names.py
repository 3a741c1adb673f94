"""Which names hold a key, token or password, and where in a text its value stands. Pure; of no engine in particular."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A word of a name: between _ - . and where the letters change their size, as in apiKey.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SURE = ("password", "passwd", "passphrase", "passcode", "secret", "apikey")  # and what ends like one: PGPASSWORD
_SURE_WHOLE = _words("pwd pw secrets credential credentials creds cookie cookies authorization bearer jwt")
_ALONE = _words("auth session sessionid")  # said of much else behind other words: --new-session, --require-auth
_BEFORE_AUTH = _words("basic http https proxy registry")
_BEFORE_KEY_ID = _words("access secret private api")  # and not the id of a public key
_PLACES = frozenset(("PWD", "OLDPWD"))  # where a shell stands
_SWITCH = frozenset(("no", "disable", "enable", "allow", "skip"))  # such a name says whether, not what
_BEHIND = frozenset(("value", "val", "string", "str", "b64", "base64", "old", "new"))  # of what the words before name
# What stands before "token" where a text is cut into them, before "key" in a table, before "pass" in a compiler.
_NO_TOKEN = _words(
    "per max min num eos bos pad unk cls sep mask image video audio stop special think start end next last first each"
    " prompt decode prefill draft output input new boi eoi tool kv cached single multi newline placeholder every"
)
_NO_KEY = _words(
    "cache sort public primary foreign group partition dict state routing hash param weight layer config model query"
    " missing unexpected layers kv lookup expert index tensor metadata field header column map dispatch bucket"
)
_NO_PASS = _words(
    "forward backward grad compile fusion inductor first second single one two three multi per noop ir graph fx warmup"
    " optimization last next each dummy custom post pre reshape cleanup"
)
_NO_GLUED_PASS = re.compile(
    r"(?:by|com|encom|sur|tres|over|under|all|high|low|band|multi|single|one|two|pre|sub|im|fore)pass$"
)
_NO_GLUED_KEY = _words("mon hot tur don joc whis hoc lac pub sub sym row short soft") | _NO_KEY  # a MONKEY
_GLUED_KEY = re.compile(r"(?:api|access|secret|private|auth|ssh|master|license|sign(?:ing)?|encryption)key$")

Held = Literal["", "perhaps", "sure"]


def held(name: str) -> Held:
    """Whether what has this name is a secret: "perhaps", unless it is a number."""
    words = [word.lower() for word in _WORD.findall(name)]
    if name in _PLACES or (words and words[0] in _SWITCH):
        return ""
    while len(words) > 1 and (words[-1] in _BEHIND or words[-1].isdigit() or len(words[-1]) == 1):
        words.pop()
    if not words:
        return ""
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _SURE_WHOLE or last.endswith(_SURE):
        return "sure"
    if words[-2:] == ["key", "id"] and words[-3:][0] in _BEFORE_KEY_ID:
        return "perhaps"
    if (last in _ALONE and not before) or (last == "auth" and before in _BEFORE_AUTH):
        return "perhaps"
    if last == "token":
        return "" if before in _NO_TOKEN else "perhaps"
    if last == "key":
        return "" if before in _NO_KEY else "perhaps"
    if last == "pass":
        return "" if before in _NO_PASS else "sure" if before else "perhaps"
    if last.endswith("token") or _GLUED_KEY.search(last):
        return "perhaps"
    if last.endswith("key") and name.isupper() and last.removesuffix("key") not in _NO_GLUED_KEY:
        return "perhaps"  # a variable like MYKEY
    if last == "auth" and before and name.isupper():
        return "perhaps"  # a variable like REDISCLI_AUTH
    return "sure" if last.endswith("pass") and not _NO_GLUED_PASS.search(last) else ""


class Value(NamedTuple):
    """A secret in a text: where it begins and ends, without quotes around it."""

    start: int
    end: int


_PAIR = re.compile(
    r"(?P<name>(?<![\w$])-{0,2}[A-Za-z_][\w.-]{0,80})(?P<quote>\\*[\"'`])?\s{0,3}(?P<sep>[:=])(?![:=/\\])\s{0,3}"
)
_HEADER = re.compile(r"(?i)(?<![\w-])(?:set-cookie|cookie|(?:proxy-)?authorization)\\*[\"']?\s{0,3}:\s{0,3}")
_SSHPASS = re.compile(r"(?<![\w-])sshpass\s+-p\s*")
_AWS = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}:(?=\S)")
_OPENING = re.compile(r"\\*[\"'`]")
_LISTED = re.compile(r"[\[({][^\])}]*[\])}]")
_NEXT = re.compile(r",\s*[\"']?[A-Za-z_][\w.-]*[\"']?\s*[=:]")  # a name and a value behind this one
_OPENS = re.compile(r"(?:^|(?<=[\s=(\[{,:]))[\"'`]")
_NOTHING = re.compile(r"(?i)(?:none|null|true|false|nil|not|is|\*+|<[^<>]*>|\.{2,}|…|\$.*)?$")
_NUMBER = re.compile(r"[-+~]?[\d.,_]+(?:e[-+]?\d+)?[%kKMG]?$")
_MIXED = re.compile(r"(?=[^.]*[A-Za-z])(?=[^.]*\d)[^.\s]+$")
_CLOSES = {")": "(", "]": "[", "}": "{", ">": "<"}


def found(text: str) -> Iterator[Value]:
    """Every secret value of `text` that stands behind a name, in order and none within another."""
    at = 0
    for value in sorted(_found(text), key=lambda value: (value.start, -value.end)):
        if value.start >= at and value.end > value.start:
            at = value.end
            yield value


def _found(text: str) -> Iterator[Value]:
    for header in _HEADER.finditer(text):
        yield _value(text, header.start(), header.end(), whole=True)
    for bare in (*_SSHPASS.finditer(text), *_AWS.finditer(text)):
        yield _value(text, bare.start(), bare.end())
    at = 0
    while (pair := _PAIR.search(text, at)) is not None:
        at = pair.end()
        how = held(pair["name"])
        if not how:
            continue
        value = _value(text, pair.start(), pair.end())
        key = pair["quote"] is not None and text[value.start - 1 : value.start] in ("'", '"')  # of a table, and a text
        if _counts(pair["name"].lstrip("-"), pair["sep"], how, text[value.start : value.end], key):
            yield value
            at = max(at, value.end)


def _counts(name: str, sep: str, how: Held, value: str, key: bool) -> bool:
    """Whether a value can be a secret. key: name and value stand in quotes of their own."""
    if _NOTHING.match(value):
        return False
    if name.upper() in _PLACES and value[0] in "/~.":
        return False
    if name.lower() == "key":  # said of much else
        return sep == "=" and _MIXED.match(value) is not None
    if name.lower() in _ALONE and not key:  # a log says it of states and of people
        return _MIXED.match(value) is not None
    if name.lower() == "pass" and value.isalpha():
        return False
    return how == "sure" or not _NUMBER.match(value)


def _value(text: str, begins: int, at: int, *, whole: bool = False) -> Value:
    """The value at a place, up to its end. begins: where its name does. whole: it may hold spaces."""
    if (quote := _OPENING.match(text, at)) is not None:
        end = _closed(text, quote.end(), quote[0])
        if end >= 0 and text[end + len(quote[0]) : end + len(quote[0]) + 1] in ("", *" \t\n\r,;:)]}>|&\\\"'`"):
            return Value(quote.end(), end)
    elif (listed := _LISTED.match(text, at)) is not None:
        return Value(at, listed.end())
    end = _line_end(text, at) if whole else _bare_end(text, at)
    if text[max(begins - 1, 0) : begins] in ("?", "&"):  # of an address
        end = min((place for c in "&#" if (place := text.find(c, at, end)) >= 0), default=end)
    if (within := _open_quote(text, begins)) and (place := text.find(within, at, end)) >= 0:
        end = place
    if (more := _NEXT.search(text, at, end)) is not None and not whole:
        end = more.start()
    while end > at and (text[end - 1] in ",;" or _unopened(text[at:end])):
        end -= 1
    return Value(at, end)


def _closed(text: str, at: int, quote: str) -> int:
    """Where a quote is closed; -1: nowhere."""
    place = text.find(quote, at)
    while place > 0 and len(quote) == 1 and text[place - 1] == "\\":
        place = text.find(quote, place + 1)
    return place


def _bare_end(text: str, at: int) -> int:
    """Up to the next space; of one that begins with a quote, as a shell joins them, up to the next that none holds."""
    end, open_ = at, ""
    quotes = "\"'" if text[at : at + 1] in ("'", '"') else ""
    while end < len(text):
        c = text[end]
        if open_:
            open_ = "" if c == open_ else open_
        elif c in quotes and text.find(c, end + 1) >= 0:
            open_ = c
        elif c.isspace():
            break
        end += 1
    return end


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _open_quote(text: str, at: int) -> str:
    """The quote that a place stands in; "": in none."""
    open_ = ""
    for c in _OPENS.finditer(text, 0, at):
        if not open_ and text.find(c[0], c.end(), at) < 0:
            open_ = c[0]
    return open_


def _unopened(value: str) -> bool:
    """Whether it ends with a bracket that was opened before it."""
    opens = _CLOSES.get(value[-1])
    return opens is not None and value.count(value[-1]) > value.count(opens)
