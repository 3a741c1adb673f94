"""The words of an SGLang command line: which belong to which flag, and changed copies of them.

`launch_server` takes no positional word, so every word behind a flag up to the next one belongs to that flag.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_NUMBER = re.compile(r"^-\d")

# Options that are read here before the release's own parser is asked, with their beginnings that argparse takes for
# them because no other option begins like that (server_args.py of 0.5.6 to 0.5.23).
KNOWN = {
    "--model-path": ("--model", "--model-p", "--model-pa", "--model-pat"),
    "--revision": ("--rev", "--revi", "--revis", "--revisi", "--revisio"),
    "--tokenizer-path": ("--tokenizer-p", "--tokenizer-pa", "--tokenizer-pat"),
    "--download-dir": ("--dow", "--down", "--downl", "--downlo", "--downloa", "--download", "--download-",
                       "--download-d", "--download-di"),
    "--tensor-parallel-size": ("--tp", "--tp-size"),
    "--pipeline-parallel-size": ("--pp-size",),
    "--data-parallel-size": ("--dp", "--dp-size"),
    "--expert-parallel-size": ("--ep", "--ep-size"),
    "--decode-context-parallel-size": ("--dcp-size",),
    "--speculative-draft-model-path": ("--speculative-draft-model",),
}  # fmt: skip
_MEANT = {short: flag for flag, shorts in KNOWN.items() for short in shorts}

# Options that say which model, GPUs and address, not how: without one it is another launch.
WHICH = frozenset({
    "--model-path", "--revision", "--tokenizer-path", "--config", "--tensor-parallel-size", "--pipeline-parallel-size",
    "--data-parallel-size", "--expert-parallel-size", "--nnodes", "--node-rank", "--dist-init-addr", "--host", "--port",
    "--api-key", "--admin-api-key", "--served-model-name", "--load-format", "--context-length", "--trust-remote-code",
    "--quantization", "--mem-fraction-static", "--download-dir",
})  # fmt: skip


class Span(NamedTuple):
    """One flag and its values: argv[start:stop]."""

    flag: str  # in full, where it is one of KNOWN
    start: int
    stop: int


def full(word: str) -> str:
    """The flag that `word` names, without a value behind `=`."""
    name = word.partition("=")[0]
    return _MEANT.get(name, name)


def is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NUMBER.match(word)


def spans(argv: Sequence[str]) -> list[Span]:
    """Every flag, in order. Words in front of the first one (`sglang serve MODEL`) belong to none."""
    starts = [i for i, word in enumerate(argv) if is_flag(word)]
    return [Span(full(argv[i]), i, stop) for i, stop in pairwise([*starts, len(argv)])]


def values(argv: Sequence[str], span: Span) -> list[str]:
    """The values of a flag, `--flag=value` included."""
    _, equals, value = argv[span.start].partition("=")
    return [value] if equals else list(argv[span.start + 1 : span.stop])


def last(argv: Sequence[str], flag: str) -> Span | None:
    """Where `flag` stands; of several the last, which counts."""
    return next((span for span in reversed(spans(argv)) if span.flag == flag), None)


def value_of(argv: Sequence[str], flag: str) -> str | None:
    """What `flag` was given last; None where it is not there or stands bare."""
    span = last(argv, flag)
    given = values(argv, span) if span is not None else []
    return given[0] if given else None


def without(argv: Sequence[str], *flags: str) -> tuple[str, ...]:
    """The words without those flags and their values, every time they stand there."""
    gone = {i for span in spans(argv) if span.flag in flags for i in range(span.start, span.stop)}
    return tuple(word for i, word in enumerate(argv) if i not in gone)


def put(argv: Sequence[str], flag: str, *given: str) -> tuple[str, ...]:
    """The words with `flag` set: where it stands and as it is spelt there, else at the end."""
    span = last(argv, flag)
    if span is None:
        return (*argv, flag, *given)
    spelt, equals, _ = argv[span.start].partition("=")
    written = (f"{spelt}={given[0]}",) if equals and len(given) == 1 else (spelt, *given)
    return (*argv[: span.start], *written, *argv[span.stop :])


def shown(argv: Sequence[str], flag: str) -> str:
    """The flag with its values as they stand in the command; the flag alone where it is not there."""
    span = last(argv, flag)
    return flag if span is None else " ".join(argv[span.start : span.stop])
