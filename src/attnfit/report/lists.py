"""What attnfit knows: GPUs, releases, backends. Plain columns, or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from attnfit import engines as known
from attnfit.core import Gpu
from attnfit.gpus import catalogue

SCHEMA, WIDTH = 1, 80


def gpus(as_json: bool) -> str:
    rows = [
        (
            g.name,
            str(g.capability) if g.capability else "none yet",
            _figure(g.memory_gib),
            _figure(g.bandwidth_gbs),
            _figure(g.smem_per_block_kib),
        )
        for g in (entry.gpu for entry in catalogue())
    ]
    if as_json:
        found = [{**msgspec.to_builtins(entry.gpu), "capability": _capability(entry.gpu)} for entry in catalogue()]
        return _json(gpus=found)
    return _table(("name", "capability", "GiB", "GB/s", "KiB smem/block"), rows)


def engines(as_json: bool) -> str:
    rows = [(name, version) for name in known.ENGINES for version in known.engine(name).releases()]
    if as_json:
        return _json(engines=[{"engine": name, "release": version} for name, version in rows])
    return _table(("engine", "release"), rows)


def backends(spec: str, as_json: bool) -> str:
    """Each backend's name, and under it where it is defined."""
    name, version = known.split_spec(spec)
    release = known.engine(name).release(version)
    rows = list(release.backends())
    if as_json:
        found = [{"backend": backend, "defined": where} for backend, where in rows]
        return _json(engine=name, release=release.version, exact=release.exact, backends=found)
    head = f"{name} {release.version}{'' if release.exact else ' (nearest book: ' + release.book + ')'}\n"
    return head + "".join(f"{backend}\n{_place(where)}" for backend, where in rows)


def _place(where: str) -> str:
    """A dotted class name, broken before the class where it is wider than a terminal."""
    module, dot, cls = where.rpartition(".")
    if len(where) <= WIDTH - 2:
        return f"  {where}\n" if where else ""
    return f"  {module}{dot}\n    {cls}\n"


def _capability(gpu: Gpu) -> str | None:
    return None if gpu.capability is None else str(gpu.capability)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _json(**body: object) -> str:
    """`schema` changes when a key is renamed, removed or changes its meaning (docs/json.md)."""
    return msgspec.json.format(msgspec.json.encode({"schema": SCHEMA, **body}), indent=2).decode() + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rows = list(rows)
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"
        for row in [head, *rows]
    )
