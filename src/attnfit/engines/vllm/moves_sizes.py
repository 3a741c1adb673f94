"""Sizes of the parallel groups worth trying: how many GPUs share the model, and in which way."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from attnfit.engines import Cost, Move
from attnfit.engines.vllm.moves_flags import Flags

# dest -> every spelling, the one to write first
SIZES = {
    "tensor_parallel_size": ("--tensor-parallel-size", "-tp"),
    "pipeline_parallel_size": ("--pipeline-parallel-size", "-pp"),
    "decode_context_parallel_size": ("--decode-context-parallel-size", "-dcp"),
}
_TENSOR = SIZES["tensor_parallel_size"]
_CONTEXT = SIZES["decode_context_parallel_size"]
_WHOLE = "room: every GPU holds its KV cache whole"
_NEAR = 8  # sizes tried of each kind


def sizes(flags: Flags, named: str = "") -> Iterator[Move]:
    """The sizes nearest to those given that the GPUs allow. `named`: only the kinds that this text names."""
    ways = []
    if not named:
        yield from _fitting(flags)
        yield from _undivided(flags)
    for dest, spellings in SIZES.items():
        span = flags.span_of(*spellings)
        if (span is not None or dest in flags.values) and (not named or spellings[0] in named):
            now = _number(flags, dest) or 0
            ways.append(
                [
                    _sized(flags, spellings, n)._replace(
                        kind="more" if n > now else "less", gives_up=_less_divided(spellings, n, now)
                    )
                    for n in _near(flags, dest)
                ]
            )
    for group in zip_longest(*ways):  # in turns: the cure of one kind is no better than that of another
        yield from (move for move in group if move is not None)


def _fitting(flags: Flags) -> Iterator[Move]:
    """Where there are fewer GPUs than were asked for: splits that use as many as they can, the fewest changes first.

    The KV cache is divided among no more GPUs than the heads are; where that is in the way, it is not divided.
    """
    there, now = flags.given.gpus, [_number(flags, dest) or 1 for dest in SIZES]
    if there is None or now[0] * now[1] <= there:
        return
    ways = {(n, there // n) for n in range(1, there + 1)}
    ways |= {(n, now[1]) for n in range(1, there // now[1] + 1)} | {(now[0], n) for n in range(1, there // now[0] + 1)}
    split = [(n, stages, now[2]) for n, stages in ways] + [(n, stages, 1) for n, stages in ways if now[2] > 1]

    def order(way: tuple[int, ...]) -> tuple[int, int, int]:
        return (-way[0] * way[1], sum(a != b for a, b in zip(way, now, strict=True)), -way[0])

    for way in sorted(split, key=order)[: 2 * _NEAR]:
        changed = [(s, n) for s, n, old in zip(SIZES.values(), way, now, strict=True) if n != old]
        here = flags
        for spellings, n in changed:
            here = Flags(here.given._replace(argv=_sized(here, spellings, n).argv))
        text = ", ".join(f"{spellings[0]} {n}" for spellings, n in changed)
        lost = "" if way[2] == now[2] else _WHOLE
        kind = "stages" if way[1] > now[1] else "less"
        yield Move(text, here.argv, lost, cost=Cost.SPLIT + 3 * (len(changed) - 1), kind=kind, whole=True)


def _undivided(flags: Flags) -> Iterator[Move]:
    """Another size of the tensor parallelism, and the KV cache not divided any more: what one size allows the other
    may not, and each alone is refused."""
    if (_number(flags, "decode_context_parallel_size") or 1) > 1:
        here = Flags(flags.given._replace(argv=_sized(flags, _CONTEXT, 1).argv))
        for n in _near(flags, "tensor_parallel_size")[:_NEAR]:
            move = _sized(here, _TENSOR, n)
            text = f"{move.text}, {_CONTEXT[0]} 1"
            yield move._replace(text=text, gives_up=_WHOLE, cost=Cost.SPLIT + 3, kind="undivided", whole=True)


def stages(flags: Flags) -> Iterator[Move]:
    """As many GPUs as tensor parallelism was to use, one behind the other: what cannot be divided need not be."""
    size, there = _number(flags, "tensor_parallel_size"), "pipeline_parallel_size" in flags.values
    if size is None or size < 2 or there:
        return
    one = _sized(flags, _TENSOR, 1).argv
    argv = Flags(flags.given._replace(argv=one)).put(SIZES["pipeline_parallel_size"][0], str(size))
    lost = "tensor parallelism: the GPUs work one after the other on a request"
    yield Move(
        f"{SIZES['pipeline_parallel_size'][0]} {size}", argv, lost, cost=Cost.SPLIT + 2, kind="stages", whole=True
    )


def more(flags: Flags) -> Iterator[Move]:
    """The model divided among more of the GPUs there are, fewest first."""
    now, stages = (_number(flags, d) or 1 for d in ("tensor_parallel_size", "pipeline_parallel_size"))
    for n in range(now + 1, (flags.given.gpus or 0) // stages + 1)[: 4 * _NEAR]:
        yield _sized(flags, _TENSOR, n)._replace(kind="size")


def visible(flags: Flags) -> Iterator[Move]:
    """As many GPUs left visible as the sizes ask for."""
    shown = flags.given.variables.get("CUDA_VISIBLE_DEVICES")
    ids = (shown or "").split(",")
    need = (_number(flags, "tensor_parallel_size") or 1) * (_number(flags, "pipeline_parallel_size") or 1)
    if all(i.isdecimal() for i in ids) and len(ids) < need <= flags.given.total:
        free = (str(i) for i in range(flags.given.total) if str(i) not in ids)
        wide = ",".join([*ids, *(i for _, i in zip(range(need - len(ids)), free, strict=False))])
        name = "CUDA_VISIBLE_DEVICES"
        yield Move(f"{name}={wide} instead of {shown}", flags.argv, variables={name: wide}, gpus=need,
                   gives_up="the GPUs that were left to others", cost=Cost.SPLIT + 9, kind="visible")  # fmt: skip


def _less_divided(spellings: tuple[str, ...], n: int, now: int) -> str:
    if spellings != _CONTEXT or n >= now:
        return ""
    return _WHOLE if n == 1 else "room: the KV cache is divided among fewer GPUs"


def _near(flags: Flags, dest: str) -> list[int]:
    given, most = _number(flags, dest), flags.given.gpus
    if given is None:
        return list(range(most or 1, 0, -1))[:_NEAR]
    most = most or given
    centre = min(given, most)
    around = range(max(1, centre - _NEAR), min(most, centre + _NEAR) + 1)
    return sorted((n for n in around if n != given), key=lambda n: (abs(n - given), -n))[: 2 * _NEAR]


def _number(flags: Flags, dest: str) -> int | None:
    text = str(flags.values.get(dest, ""))
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 7 else None


def _sized(flags: Flags, spellings: tuple[str, ...], size: int) -> Move:
    span = flags.span_of(*spellings)
    spelt = flags.argv[span.start].partition("=")[0] if span is not None else spellings[0]
    return Move(f"{spelt} {size}", flags.put(spellings[0], str(size), *spellings), cost=Cost.SPLIT)
