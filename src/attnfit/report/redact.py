"""A log's line fit to be shown to strangers: no keys, no addresses, no names of machines or people."""

from __future__ import annotations

import re

from attnfit.inputs.secrets import _LOOKS_SECRET as LOOKS_SECRET
from attnfit.inputs.secrets import clean

_RULES = (
    (re.compile(r"/(home|Users|root|data|mnt|scratch)/[\w.@-]+"), r"/\1/USER"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"), "ADDRESS"),
    (re.compile(r"(?<![\w:])(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{0,4}(?![\w:])", re.I), "ADDRESS"),
    (re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.-]+\b"), "ADDRESS"),
    (re.compile(r"(?i)\b(host(?:name)?|node|server|ip)([=:] ?)['\"]?(?!None)[\w.-]+"), r"\1\2HOST"),
    (re.compile(r"\b[\w-]+(?:\.[\w-]+)*\.(?:local|internal|lan|corp|cluster|svc)\b(?:\.[\w-]+)*"), "HOST"),
    (re.compile(r"(?i)(https?://)(?!github\.com|huggingface\.co|docs\.)[\w.:-]+"), r"\1HOST"),
    (re.compile(r"\bGPU-[0-9a-f-]{20,}\b"), "GPU-ID"),
    (re.compile(r"\b[A-Za-z0-9+/_-]{40,}={0,2}(?![\w/.])"), "$HIDDEN"),
)


def redacted(text: str) -> str:
    text = clean(LOOKS_SECRET.sub("$TOKEN", text), [text])
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text
