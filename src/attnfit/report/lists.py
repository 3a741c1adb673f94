"""What attnfit knows: GPUs, releases, backends. Plain columns, or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from attnfit import engines as known
from attnfit.gpus import catalogue


def gpus(as_json: bool) -> str:
    rows = [
        (
            g.name,
            str(g.capability) if g.capability else "not covered yet",
            _figure(g.memory_gib),
            _figure(g.bandwidth_gbs),
            _figure(g.smem_per_block_kib),
        )
        for g in (entry.gpu for entry in catalogue())
    ]
    return _table(("name", "capability", "memory GiB", "bandwidth GB/s", "smem/block KiB"), rows, as_json)


def engines(as_json: bool) -> str:
    rows = [(name, version) for name in known.ENGINES for version in known.engine(name).releases()]
    return _table(("engine", "release"), rows, as_json)


def backends(spec: str, as_json: bool) -> str:
    name, version = known.split_spec(spec)
    release = known.engine(name).release(version)
    head = (
        ""
        if as_json
        else f"{name} {release.version}{'' if release.exact else ' (nearest book: ' + release.book + ')'}\n"
    )
    return head + _table(("backend", "defined in"), list(release.backends()), as_json)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], as_json: bool) -> str:
    rows = list(rows)
    if as_json:
        items = [dict(zip((name.split()[0] for name in head), row, strict=True)) for row in rows]
        return msgspec.json.format(msgspec.json.encode(items), indent=2).decode() + "\n"
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"
        for row in [head, *rows]
    )
