"""The answer for people: 80 columns, calm, meaning never in colour alone."""

from __future__ import annotations

from collections.abc import Iterator

import click

from attnfit.core import Fit, Gpu, Launch, LayerQuestion, Report, Status, Verdict
from attnfit.report import launch_kernels, memory, planned, resolved
from attnfit.report.plain import WIDTH as WIDTH
from attnfit.report.plain import printable
from attnfit.report.plain import wrap as _wrap

_COLOUR = {"passes": "green", "refused": "red", "unknown": "yellow", "breaks": "red",
           "picks": "green", "accepts": "green", "refuses": "red"}  # fmt: skip


def render(report: Report, *, every: bool = False) -> str:
    """The whole report as text with ANSI styles (click strips them where stdout is no terminal)."""
    launch = report.launch
    lines = [verdict_line(report), "", *_circumstances(report)]
    if launch.hypothetical:
        lines += _engine_words(report)
        if launch.layers:
            lines += ["", "it stops before it asks for an attention backend; past that it would ask:"]
    for layer in launch.layers:
        lines += ["", *_layer(layer, launch.error, every)]
    lines += resolved.lines(launch, every)
    if not launch.hypothetical:
        lines += _engine_words(report)
    lines += resolved.hazards(launch)
    lines += launch_kernels.lines(launch, every)
    if launch.fit is not None:
        lines += ["", *_fit(launch.fit)]
    for unknown in launch.unknown:
        lines += _wrap(f"unknown: {unknown}", "")
    for note in launch.notes:
        lines += _wrap(f"note: {note}", "")
    lines += planned.lines(report)
    return "\n".join(lines) + "\n"


def verdict_line(report: Report) -> str:
    """One line: the verdict, and its shortest reason."""
    word = click.style(report.verdict, fg=_COLOUR[report.verdict], bold=True)
    release = f"{report.engine} {report.release}"
    if report.verdict == "passes":
        chosen = list(dict.fromkeys(layer.selection.chosen for layer in report.launch.layers))
        names = resolved.names(report.launch) or ", ".join(name for name in chosen if name)
        on = f"on {names}" if names else ""
        sentence = f"{release} passes every gate we know{on and ', '}{on}"
        if report.may_run_out:
            sentence = f"{release}{on and ' '}{on}; it may run out of memory"
        elif report.launch.fit is not None and report.launch.fit.files:
            sentence = f"{release}{on and ' '}{on}; but its weights may not load: {report.launch.fit.files}"
        if report.kernel_may_break:
            sentence += "; a kernel may not run"
        elif report.launch.kernels_unknown:
            sentence += "; whether its kernels run is not known"
        if report.hazard_may_break:
            sentence += f"; it may break: {resolved.shortest(report.launch)}"
    elif report.verdict == "breaks":
        why = report.launch.fit.why if report.launch.fit else ""
        broken = report.launch.fit is not None and report.launch.fit.files
        what = "cannot load these weights" if broken else "would start and run out of memory"
        sentence = f"{release} {what}: {why}"
        if report.launch.fit is None or report.launch.fit.verdict != "breaks":
            sentence = f"{release} starts a kernel that cannot run here: {launch_kernels.shortest(report.launch)}"
            if any(hazard.breaks for hazard in report.launch.hazards):
                sentence = f"{release} passes its own checks and then breaks: {resolved.shortest(report.launch)}"
    elif report.verdict == "refused":
        sentence = f"{release} refuses this launch {_at(report.launch)}"
    else:
        sentence = f"{release}: what decides is missing"
    if not report.exact:
        sentence += " (the nearest rule book's opinion)"
    return f"{word}: {printable(sentence)}"


def describe_gpu(gpu: Gpu, count: int) -> str:
    """ "8 x H200 SXM 141GB (140.4 GiB, compute capability 9.0)"."""
    size = f"{gpu.memory_gib:g} GiB, " if gpu.memory_gib else ""
    what = f"compute capability {gpu.capability}" if gpu.capability else "not covered yet"
    return f"{count} x {gpu.name} ({size}{what})"


def _circumstances(report: Report) -> Iterator[str]:
    launch = report.launch
    facts = [report.model]
    if launch.dtype:
        kv = launch.kv_cache_dtype or "auto"
        after = launch.kv_cache_dtype_after_init
        kv = f"{kv}, then {after}" if after and after != kv else kv
        facts.append(f"{launch.dtype}, KV cache {kv}")
    yield from _wrap("; ".join(facts), "  model   ")
    yield from _wrap("; ".join(describe_gpu(gpu, count) for gpu, count in report.gpus), "  gpu     ")
    yield f"  engine  {report.engine} {report.release}"
    for sentence in report.said:
        yield from _wrap(sentence, "          ")


def _layer(layer: LayerQuestion, shown_error: str | None, every: bool) -> Iterator[str]:
    q = layer.question
    kind = [word for word, on in (
        ("MLA", q.use_mla), ("sparse", q.use_sparse), ("sliding window", q.has_sliding_window),
        ("attention sinks", q.has_sink), ("multimodal prefix", q.use_mm_prefix),
        (q.attn_type.replace("_", "-"), q.attn_type != "decoder"),
    ) if on]  # fmt: skip
    facts = [*(kind or ["full attention"]), f"head_size {q.head_size}", q.dtype]
    if q.kv_cache_dtype != "auto":
        facts.append(f"KV {q.kv_cache_dtype}")
    if q.num_heads is not None:
        facts.append(f"{q.num_heads} heads per rank")
    who = "draft model, " if layer.role == "draft" else ""
    plural = "layer" if layer.count == 1 else "layers"
    yield from _wrap(f"{who}{layer.count} {plural}: {', '.join(facts)}", "")
    candidates = [v for v in layer.selection.verdicts if v.candidate or v.backend == q.backend]
    brought = [v for v in layer.selection.verdicts if v.brought_by and v not in candidates]
    others = [v for v in layer.selection.verdicts if v not in candidates and v not in brought]
    for verdict in candidates:
        yield from _verdict(verdict, layer.selection.chosen, tail=_brought(verdict))
    for verdict in brought:
        yield from _verdict(verdict, layer.selection.chosen, tail=_brought(verdict))
    if every:
        for verdict in others:
            yield from _verdict(verdict, layer.selection.chosen, tail=" (not tried here by itself)")
    elif others:
        accept = [v.backend for v in others if v.status is Status.ACCEPTS]
        if accept:
            yield from _wrap(", ".join(accept), "  accept if asked for by name: ", "    ")
        rest = len(others) - len(accept)
        if rest:
            yield f"  {rest} more are not tried on this GPU and refuse too (--all lists them)"
    if layer.selection.error and layer.selection.error != shown_error:
        yield from _wrap(_short(layer.selection.error), "  ", "    ")


def _brought(verdict: Verdict) -> str:
    return f" (not in the release; {verdict.brought_by} brings it)" if verdict.brought_by else ""


def _verdict(verdict: Verdict, chosen: str | None, tail: str = "") -> Iterator[str]:
    word = "picks" if verdict.backend == chosen else verdict.status.value
    styled = click.style(f"{word:<8}", fg=_COLOUR.get(word))
    yield f"  {styled} {click.style(verdict.backend, bold=True)}{tail}"
    for reason in verdict.reasons:
        yield from _wrap(reason.text, "             ")
        facts = ", ".join(
            f"{name} {value}" for name, value in (("required", reason.required), ("observed", reason.observed)) if value
        )
        detail = "; ".join(part for part in (facts, reason.where) if part)
        if detail:
            yield from (click.style(part, dim=True) for part in _wrap(detail, "               "))
    if verdict.unknown:
        yield from _wrap(verdict.unknown, "             ")


def _engine_words(report: Report) -> Iterator[str]:
    launch = report.launch
    if not launch.error:
        return
    yield ""
    where = f" ({launch.where})" if launch.where else ""
    yield from _wrap(f"the engine would say, {_at(launch)}{where}:", "")
    for words in _short(launch.detail or launch.error).splitlines():
        yield from _wrap(words.strip(), "  ", "    ")


def _fit(fit: Fit) -> Iterator[str]:
    for name, sentence in memory.lines(fit):
        yield from _wrap(sentence, f"  {name:<9} ")
    word = "not known whether it fits" if fit.verdict == "unknown" else fit.verdict
    yield from _wrap(f"{word}: {fit.why}", f"  {'':<9} ")
    for sentence in fit.inputs:
        yield from (click.style(part, dim=True) for part in _wrap(sentence, f"  {'':<9} "))


def _at(launch: Launch) -> str:
    return launch.when or f"at stage {launch.stage}"


def _short(message: str, most: int = 600) -> str:
    """Long messages keep their head; --json has them whole."""
    return message if len(message) <= most else message[:most].rstrip() + " ... (--json has it whole)"
