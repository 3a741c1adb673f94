"""Lines of a log fit to be shown: `masked` has no keys, tokens and passwords; `redacted`, for strangers, no addresses
and no names of machines or people either."""

from __future__ import annotations

import re
from typing import Any

from attnfit.inputs.secrets import _LOOKS_SECRET as LOOKS_SECRET
from attnfit.inputs.secrets import clean

_SECRET_NAME = r"[\w-]*(?:api[_-]?key|access[_-]?key|secret|password|passwd|credentials?|(?<!per[_-])(?<!max[_-])token)"
_IS_SECRET = re.compile(_SECRET_NAME, re.I).fullmatch
_MASKS = (
    (re.compile(r"\b(?:github_pat_\w{20,}|gh[opsu]_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,})"), "$TOKEN"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{30,}"), "$TOKEN"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), "$TOKEN"),
    (re.compile(r"(?i)\b(bearer|basic)\s+(?=[\w+/=.-]*[\d+/=])[\w+/=.-]{8,}"), r"\1 $TOKEN"),
    (re.compile(r"(?i)([?&][\w-]*(?:token|key|signature|sig|credential|password|secret)=)[^&\s'\"]+"), r"\1$HIDDEN"),
    (re.compile(r"(?i)\b((?:x-)?api[_-]?key\s*:\s*)[^\s'\"\[;,$]+"), r"\1$HIDDEN"),
    (
        re.compile(r"\b([A-Z][A-Z0-9_]*_(?:KEY|TOKEN|SECRET|PASSWORD)\s*[:=]\s*)('[^']*'|\"[^\"]*\"|[^\s'\";,$]+)"),
        r"\1$HIDDEN",
    ),
    # A name and its value as Python or JSON print them: 'api_key': ['x', 'y'], hf_token='x', "password": "x".
    (
        re.compile(rf"(?i)(['\"]?\b{_SECRET_NAME}['\"]?\s*[:=]\s*)(\[[^\]]*\]|'[^']*'|\"[^\"]*\")"),
        r"\1'$HIDDEN'",
    ),
)
_RULES = (
    (re.compile(r"/(home|Users|root|data|mnt|scratch)/[\w.@-]+"), r"/\1/USER"),
    (re.compile(r"(?i)\b([A-Z]:\\Users\\)[\w.@-]+"), r"\1USER"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"), "ADDRESS"),
    (re.compile(r"(?<![\w:])(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{0,4}(?![\w:])", re.I), "ADDRESS"),
    (
        re.compile(
            r"(?<![\w:])(?=[0-9a-f:]*[0-9])[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*)?",
            re.I,
        ),
        "ADDRESS",
    ),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*"), "ADDRESS"),
    (re.compile(r"(?i)\b(host(?:name)?|node|server|ip)([=:] ?)['\"]?(?!None)[\w.-]+"), r"\1\2HOST"),
    (re.compile(r"(?i)\b(host|node) (?=[\w.-]*\d)(?=[\w.-]*-)[a-z][\w.-]+"), r"\1 HOST"),
    (re.compile(r"\b[\w-]+(?:\.[\w-]+)*\.(?:local|internal|lan|corp|cluster|svc)\b(?:\.[\w-]+)*"), "HOST"),
    (
        re.compile(r"(?i)\b((?:https?|tcp|grpc|wss?|redis|amqp|ucx)://)(?!github\.com|huggingface\.co|docs\.)[\w.:-]+"),
        r"\1HOST",
    ),
    (re.compile(r"\bGPU-[0-9a-f-]{20,}\b"), "GPU-ID"),
    (re.compile(r"\b[A-Za-z0-9+/_-]{40,}={0,2}(?![\w/.])"), "$HIDDEN"),
)


def masked(text: str) -> str:
    text = LOOKS_SECRET.sub("$TOKEN", text)
    for pattern, instead in _MASKS:
        text = pattern.sub(instead, text)
    return clean(text, [text])


def masked_all(value: Any) -> Any:
    """The same in every text of a JSON answer."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {name: "$HIDDEN" if each and _IS_SECRET(str(name)) else masked_all(each) for name, each in value.items()}
    return [masked_all(each) for each in value] if isinstance(value, list | tuple) else value


def redacted(text: str) -> str:
    text = masked(text)
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text
