"""Changes of `vllm serve` flags worth trying after a refusal, cheapest first. Whether one helps is not said here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from attnfit.core import Fit, Launch
from attnfit.engines import Move
from attnfit.inputs.secrets import is_secret

BACKEND_FLAG = "--attention-backend"

# Flags that say which GPUs and which model, not how: dropping one is no fix but another launch.
_NEVER_DROPPED = frozenset({
    "--model", "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp",
    "--host", "--port", "--api-key", "--served-model-name", "--hf-overrides", "--config",
})  # fmt: skip


# The argument parser's own words about a flag it does not know, and our guess at what was meant.
_MEANT = re.compile(r"unrecognized arguments: (--?[\w.-]+).*; did you mean '(--?[\w.-]+)'\?", re.DOTALL)


def moves(argv: Sequence[str], launch: Launch) -> Iterator[Move]:
    """A flag spelt right; drop one flag; another backend by name; another dtype; drop two flags."""
    if (meant := _MEANT.search(launch.detail)) is not None:
        wrong, right = meant.groups()
        for i, word in enumerate(argv):
            if word.partition("=")[0] == wrong and is_secret(wrong) == is_secret(right):
                yield Move(f"{right} instead of {wrong}", (*argv[:i], word.replace(wrong, right, 1), *argv[i + 1 :]))
    spans = [span for span in _spans(argv) if _name(argv[span.start]) not in _NEVER_DROPPED]
    for span in spans:
        flag = " ".join(argv[span.start : span.stop])
        yield Move(f"drop {flag}", _without(argv, span))
    if any(_name(argv[span.start]) == BACKEND_FLAG for span in spans):
        for name in _backends_accepting_all(launch):
            yield Move(f"{BACKEND_FLAG} {name}", _with(argv, BACKEND_FLAG, name))
    for dtype in ("bfloat16", "float16"):
        if launch.dtype is not None and dtype != launch.dtype:
            yield Move(
                f"--dtype {dtype}",
                _with(argv, "--dtype", dtype),
                f"activations run in {dtype} instead of {launch.dtype}",
            )
    for i, first in enumerate(spans):
        for second in spans[i + 1 :]:
            words = " and ".join(" ".join(argv[s.start : s.stop]) for s in (first, second))
            yield Move(f"drop {words}", _without(_without(argv, second), first))


def room(argv: Sequence[str], fit: Fit) -> Iterator[Move]:
    """Shorter requests, then an FP8 KV cache. Whether that is enough is not said here."""
    for length in dict.fromkeys(n for n in fit.longest or () if n > 0):
        words = f"--max-model-len {length}"
        yield Move(words, _with(argv, "--max-model-len", str(length)), f"requests of more than {length:,} tokens")
    if not any(_name(word) == "--kv-cache-dtype" for word in argv):
        yield Move("--kv-cache-dtype fp8", (*argv, "--kv-cache-dtype", "fp8"), "precision of the KV cache")


def _backends_accepting_all(launch: Launch) -> list[str]:
    """Backends valid for every question of the launch, in the engine's priority order."""
    layers = launch.layers
    return [
        name for name in (layers[0].selection.valid if layers else ()) if all(name in x.selection.valid for x in layers)
    ]


def _spans(argv: Sequence[str]) -> list[range]:
    """Each flag with its values. A word that starts with a dash and a digit is a value, not a flag."""
    starts = [i for i, word in enumerate(argv) if word.startswith("-") and not word[1:2].isdigit() and word != "-"]
    return [range(start, stop) for start, stop in pairwise([*starts, len(argv)])]


def _name(word: str) -> str:
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _without(argv: Sequence[str], span: range) -> tuple[str, ...]:
    return (*argv[: span.start], *argv[span.stop :])


def _with(argv: Sequence[str], flag: str, value: str) -> tuple[str, ...]:
    for span in _spans(argv):
        if _name(argv[span.start]) == flag:
            return (*argv[: span.start], flag, value, *argv[span.stop :])
    return (*argv, flag, value)
