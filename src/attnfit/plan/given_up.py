"""What an offer costs its user: what its changes say of themselves, and what became of the launch's numbers."""

from __future__ import annotations

from collections.abc import Iterator

from attnfit.core import Launch
from attnfit.decide import Request
from attnfit.engines import Cost, Engine
from attnfit.plan.edits import Origin, with_parts
from attnfit.plan.search import Found

_OF_CLASS = ((Cost.GRAPHS, Cost.BLOCK, "CUDA graphs or fusions: speed"), (Cost.BLOCK, Cost.KV_DTYPE, "speed, at most"))
_BITS = (("fp8", 8), ("float8", 8), ("int8", 8), ("nvfp4", 4), ("fp4", 4), ("bfloat16", 16), ("bf16", 16),
         ("float16", 16), ("half", 16), ("float32", 32))  # fmt: skip


def given_up(origin: Origin, before: Launch, found: Found) -> Iterator[str]:
    """Everything that is lost, each once; nothing where the launch only gets another kernel."""
    said = []
    for move, _ in found.moves:
        by_class = (text for least, below, text in _OF_CLASS if least <= move.cost < below)
        said.append(move.gives_up or next(by_class, ""))
    yield from filter(None, said)
    yield from changed(before, found.outcome.launch)
    if not any("KV cache" in text for text in said):
        yield from _cache(before, found.outcome.launch)
    yield from _gpus(origin.engine, origin.request, with_parts(origin, found.parts))


def changed(before: Launch, after: Launch) -> Iterator[str]:
    """What an offer changes of the launch's numbers, whatever flag did it."""
    if before.dtype and after.dtype and before.dtype != after.dtype:
        yield f"activations run in {after.dtype} instead of {before.dtype}"


def _cache(before: Launch, after: Launch) -> Iterator[str]:
    if {before.kv_cache_dtype, after.kv_cache_dtype} <= {None, "auto"}:
        return  # nobody asks for one: what the engine takes is no price of the change
    old, new = (_cached(launch) for launch in (before, after))
    wide, narrow = (_bits(name) for name in (new, old))
    if wide is None or narrow is None or wide == narrow:
        return
    lost = "room" if wide > narrow else "precision"
    yield f"{lost}: the KV cache is held in {new} instead of {old}"


def _cached(launch: Launch) -> str:
    """The dtype of the KV cache; of "auto" that of the activations."""
    name = launch.kv_cache_dtype_after_init or launch.kv_cache_dtype or "auto"
    return (launch.dtype or "") if name == "auto" else name


def _bits(name: str) -> int | None:
    return next((bits for start, bits in _BITS if name.startswith(start)), None)


def _gpus(engine: Engine, before: Request, after: Request) -> Iterator[str]:
    """Fewer GPUs than were asked for, of those there are."""
    old, new = (_divided(engine, request) for request in (before, after))
    if old is None or new is None:
        return
    old = min(old, before.counted or old)
    if new < old:
        yield f"GPUs: the model is divided among {new} instead of {old}"


def _divided(engine: Engine, request: Request) -> int | None:
    values = engine.common(request.given()).values
    sizes = [values.get(name, "1") for name in ("tensor parallel", "pipeline parallel")]
    if not all(size.isascii() and size.isdecimal() and len(size) < 7 for size in sizes):
        return None
    return int(sizes[0]) * int(sizes[1])
