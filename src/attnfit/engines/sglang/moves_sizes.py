"""How many GPUs share the model in SGLang, and in which way: sizes worth trying where the given ones are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attnfit.engines import Cost, Given, Move
from attnfit.engines.sglang import words

TENSOR, STAGES, REPLICAS, EXPERTS = (
    "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--expert-parallel-size",
)  # fmt: skip
SHORT = {TENSOR: "--tp-size", STAGES: "--pp-size", REPLICAS: "--dp-size", EXPERTS: "--ep-size"}
_SPOKEN_OF = re.compile(r"processes here|parallel|divisible|[tpde]p_size|topology", re.IGNORECASE)
_SHARED = "--enable-dp-attention"  # then the replicas are of the attention alone, on the GPUs of the tensor parallelism
_MOST = 8
_Sizes = dict[str, int]


def sizes(given: Given, said: str) -> Iterator[Move]:
    """Splits that the GPUs allow: those that use the most of them first, of these the fewest changes."""
    now = {flag: _number(given.argv, flag) for flag in SHORT}
    if given.gpus is None or not _SPOKEN_OF.search(said):
        return
    ways = [way for way in _ways(now, given.gpus) if way != now and _processes(way, given.argv) <= given.gpus]
    wanted = min(_processes(now, given.argv), given.gpus)

    def order(way: _Sizes) -> tuple[int, int, int]:
        used = _processes(way, given.argv)
        return (abs(used - wanted), sum(way[flag] != now[flag] for flag in way), -way[TENSOR])

    for way in sorted(ways, key=order)[:_MOST]:
        yield _move(given.argv, now, way)


def _ways(now: _Sizes, there: int) -> Iterator[_Sizes]:
    """Another size of one kind; one of two kinds where both multiply; experts divided no more."""
    near = range(1, there + 1)
    pairs = [(n, now[STAGES]) for n in near] + [(now[TENSOR], n) for n in near] + [(n, there // n) for n in near]
    for tensor, stages in dict.fromkeys(pairs):
        for replicas in dict.fromkeys((now[REPLICAS], 1)):
            for experts in dict.fromkeys((now[EXPERTS], 1, tensor if now[EXPERTS] > 1 else 1)):
                yield {TENSOR: tensor, STAGES: stages, REPLICAS: replicas, EXPERTS: experts}


def _processes(way: _Sizes, argv: Sequence[str]) -> int:
    shared = any(span.flag == _SHARED for span in words.spans(argv))
    return way[TENSOR] * way[STAGES] * (1 if shared else way[REPLICAS])


def _move(argv: tuple[str, ...], now: _Sizes, way: _Sizes) -> Move:
    changed = {flag: n for flag, n in way.items() if n != now[flag]}
    said, lost = [], []
    for flag, n in changed.items():
        span = words.last(argv, flag)
        spelt = SHORT[flag] if span is None else argv[span.start].partition("=")[0]
        said.append(f"{spelt} {n}")
        argv = words.put(argv, spelt if span is None else flag, str(n))
    if changed.get(REPLICAS) == 1:
        lost.append("replicas: requests served at once")
    if changed.get(EXPERTS, 0) == 1:
        lost.append("expert parallelism: every GPU holds a part of each expert")
    kind = "stages" if way[STAGES] > now[STAGES] else "less" if way[TENSOR] <= now[TENSOR] else "more"
    cost = Cost.SPLIT + 3 * (len(changed) - 1)
    return Move(", ".join(said), argv, "; ".join(lost), cost=cost, kind=kind, whole=True)


def _number(argv: Sequence[str], flag: str) -> int:
    text = words.value_of(argv, flag) or "1"
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 1
