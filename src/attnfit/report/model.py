"""A model as a release reads it: for people, and as JSON (docs/json.md)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from attnfit.engines.traits import LayerKind
from attnfit.report.plain import printable
from attnfit.understand import ModelReport, Weights

WIDTH = 80
_LABEL, _VALUE = 26, 9


def render(report: ModelReport) -> str:
    """80 columns: each trait, its value, and where it comes from."""
    found = report.traits
    lines = [click.style(line, bold=True) for line in _wrap(_headline(report), "", "  ")]
    for sentence in report.said:
        lines += _wrap(sentence, "  ")
    lines += [""] if found.traits else []
    for trait in found.traits:
        lines += _row(trait.name, _shown(trait.value), trait.source)
    if found.layers:
        by = f" ({'; '.join(found.layers_from)})" if found.layers_from else ""
        lines += ["", *_wrap(f"layers with a cache, as the model class builds them{by}", "")]
        lines += [_layer(layer) for layer in found.layers]
    lines += ["", *_weights(report)]
    for sentence in found.unknown:
        lines += _wrap(f"unknown: {sentence}", "")
    for sentence in found.notes:
        lines += _wrap(f"note: {sentence}", "")
    return "\n".join(lines) + "\n"


def render_json(report: ModelReport) -> str:
    """The whole report; `schema` changes when a key is renamed, removed or changes its meaning."""
    body: dict[str, Any] = {
        "schema": 1,
        "exit_code": report.exit_code,
        "model": report.model,
        "repo": report.repo,
        "commit": report.commit,
        "engine": report.engine,
        "release": report.traits.release,
        "said": report.said,
        "traits": [{"name": t.name, "value": t.value, "source": t.source} for t in report.traits.traits],
        "layers": report.traits.layers,
        "layers_from": report.traits.layers_from,
        "weights": report.weights,
        "without_weights": report.without_weights,
        "unknown": report.traits.unknown,
        "notes": report.traits.notes,
    }
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"


def size(number: int) -> str:
    """ "1,234,567,890 bytes (1.1 GiB)"."""
    value = float(number)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{number:,} bytes" + (f" ({value:.1f} {unit})" if unit != "bytes" else "")


def _headline(report: ModelReport) -> str:
    values = {trait.name: trait.value for trait in report.traits.traits}
    name = values.get("architecture") or values.get("model_type") or "not understood"
    return f"{report.model}: {name}, as {report.engine} {report.traits.release} reads it"


def _row(name: str, value: str, source: str) -> list[str]:
    shown = f"{value.ljust(_VALUE)} ({source})" if source else value
    return _wrap(shown, name.ljust(_LABEL - 1) + " ", " " * _LABEL)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        names = [str(each) for each in value]
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return str(value)


def _layer(layer: LayerKind) -> str:
    facts = []
    if layer.head_size:
        facts.append(f"head_size {layer.head_size}")
    if layer.kv_heads:
        facts.append(f"{layer.kv_heads} KV head{'s' if layer.kv_heads > 1 else ''}")
    if layer.window:
        facts.append(f"window {layer.window}")
    return f"  {layer.count:>4}  {layer.kind.ljust(28)} {', '.join(facts)}".rstrip()


def _weights(report: ModelReport) -> Iterator[str]:
    if report.weights is None:
        yield from _wrap(f"weights: not known ({report.without_weights})", "")
        return
    found: Weights = report.weights
    kinds = list(found.by_dtype.items())
    shown = ", ".join(f"{kind} {each * 100 / max(found.bytes, 1):.1f} %" for kind, each in kinds[:6])
    files = f"{len(found.files)} file{'s' if len(found.files) != 1 else ''}"
    yield from _wrap(f"weights: {size(found.bytes)}, {found.tensors:,} tensors in {files}: {shown}", "")


def _wrap(text: str, lead: str, indent: str | None = None) -> list[str]:
    return textwrap.wrap(
        printable(text), WIDTH, initial_indent=lead, subsequent_indent=lead if indent is None else indent,
        break_on_hyphens=False, break_long_words=True,
    ) or [lead.rstrip()]  # fmt: skip
