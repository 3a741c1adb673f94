"""Lines of a log fit to be shown: `masked` has no keys, tokens and passwords; `redacted`, for strangers, no addresses
and no names of machines or people either."""

from __future__ import annotations

import re
from typing import Any

from attnfit.inputs.secrets import HIDDEN, is_secret, masked

__all__ = ["masked", "masked_all", "redacted"]

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


def masked_all(value: Any) -> Any:
    """The same in every text of a JSON answer."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {name: _hidden(each) if is_secret(str(name)) else masked_all(each) for name, each in value.items()}
    return [masked_all(each) for each in value] if isinstance(value, list | tuple) else value


def _hidden(value: Any) -> Any:
    return HIDDEN if value and not isinstance(value, bool | int | float) else value


def redacted(text: str) -> str:
    text = masked(text)
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text
