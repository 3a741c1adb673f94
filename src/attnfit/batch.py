"""Many answers at once: JSON lines in, one JSON line each out, in order, never stopping at a bad one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, BinaryIO

import msgspec

from attnfit import engines
from attnfit.core import Capability, Gpu, Question, Selection, Status
from attnfit.decide import Request, decide
from attnfit.errors import AttnfitError, InputError, UsageError
from attnfit.report.json import layer_dict

MOST_BYTES = 16 << 20  # of one line; a longer one is answered with a usage error, not read into a question


def run(
    source: str,
    out: BinaryIO,
    *,
    gpu: str | None = None,
    engine: str | None = None,
    env: Mapping[str, bool] | None = None,
) -> None:
    """Answer every line of the file `source` ("-": stdin). Raises InputError only if it cannot be opened."""
    try:
        opened = nullcontext(sys.stdin.buffer) if source == "-" else open(source, "rb")
    except OSError as error:
        raise InputError(f"{source} cannot be read ({error.strerror}); name a file of JSON lines, or -") from error
    encoder = msgspec.json.Encoder()
    with opened as lines:
        for reply in answers(lines, gpu=gpu, engine=engine, env=env):
            out.write(encoder.encode(reply) + b"\n")
        out.flush()


def answers(
    lines: Iterable[bytes],
    *,
    gpu: str | None = None,
    engine: str | None = None,
    env: Mapping[str, bool] | None = None,
) -> Iterator[dict[str, Any]]:
    """One reply for each line that is not blank. `gpu`, `engine`, `env` stand in where a line has none."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        item: dict[str, Any] = {}
        try:
            item = _decode(line)
            item.setdefault("engine", engine or engines.ENGINES[0])
            item["env"] = {**(env or {}), **_typed(item, "env", dict, {})}
            reply = _question(item) if "question" in item else _launch(item, gpu)
        except AttnfitError as error:
            reply = {"ok": None, "problem": str(error), "line": number, "exit_code": error.exit_code}
        except Exception as error:  # a fault of ours must not cost the other lines their answers
            problem = f"internal error, {type(error).__name__}: {error}; report this line"
            reply = {"ok": None, "problem": problem, "line": number, "exit_code": 2}
        if "id" in item:
            reply = {"id": item["id"], **reply}
        yield reply


def _decode(line: bytes) -> dict[str, Any]:
    if len(line) > MOST_BYTES:
        raise UsageError(f"a line of {len(line)} bytes; at most {MOST_BYTES} are read")
    try:
        item = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"not JSON ({error}); write one object a line") from error
    if not isinstance(item, dict):
        raise UsageError("not a JSON object; write {...} with a launch or a question (docs/json.md)")
    return item


def _question(item: dict[str, Any]) -> dict[str, Any]:
    asked = dict(_typed(item, "question", dict))
    release = _release(_typed(item, "engine", str))
    backend = asked.pop("backend", item.get("backend"))
    asked["capability"] = _capability(asked.get("capability"))
    known = {name: value for name, value in asked.items() if name in Question.__struct_fields__ and value is not None}
    for name in ("kv_cache_dtype", "hf"):  # None is an answer of its own here: no KV cache, no model config
        if name in asked:
            known[name] = asked[name]
    try:
        question = msgspec.convert(known, Question)
    except msgspec.ValidationError as error:
        raise UsageError(f"the question cannot be used: {error}") from error
    question = msgspec.structs.replace(question, backend=_name(backend))
    selection = release.select(question, item["env"])
    return {**selection_answer(selection), "release": release.version, "exact": release.exact}


def selection_answer(selection: Selection) -> dict[str, Any]:
    """As the truth files have it: chosen, valid, refused and every backend with the engine's texts in its order."""
    texts = {v.backend: [reason.text for reason in v.reasons] for v in selection.verdicts}
    refused = {v.backend: texts[v.backend] for v in selection.verdicts if v.candidate and v.status is Status.REFUSES}
    reply: dict[str, Any] = {
        "chosen": selection.chosen,
        "valid": list(selection.valid),
        "refused": refused,
        "every_backend": texts,
    }
    unsure = {v.backend: v.unknown for v in selection.verdicts if v.status is Status.UNKNOWN}
    if unsure:
        reply["unknown_backends"] = unsure
    if selection.error:
        reply["engine_message"] = selection.error
    if selection.unknown:
        reply["unknown"] = selection.unknown
    reply["exit_code"] = 3 if selection.unknown else 0 if selection.chosen else 1
    return reply


def _launch(item: dict[str, Any], default_gpu: str | None) -> dict[str, Any]:
    from attnfit.inputs.command import parse_command

    argv: tuple[str, ...]
    variables: dict[str, str] = {}
    spec, path = _typed(item, "engine", str), item.get("model")
    if "command" in item:
        parsed = parse_command(item["command"])
        argv, variables, path = tuple(parsed.argv), dict(parsed.env), path or parsed.model
        if engines.split_spec(spec)[1] is None and parsed.image_release:
            spec = f"{parsed.engine}=={parsed.image_release}"
    else:
        argv = tuple(str(word) for word in _typed(item, "flags", list, []))
    if not isinstance(path, str):
        raise UsageError('no model: give "model": PATH, or a command that names one')
    release, files = _release(spec), _model(path)
    launch = decide(
        Request(
            release=release,
            config=files.config,
            hf_quant=files.hf_quant,
            gpus=_gpus(item, default_gpu),
            argv=argv,
            variables=variables,
            env=item["env"],
        )
    )
    code = {True: 0, False: 1, None: 3}[launch.ok] if release.exact else 3
    return {
        "ok": launch.ok,
        "stage": launch.stage,
        "error": launch.error,
        "unknown": list(launch.unknown),
        "dtype": launch.dtype,
        "kv_cache_dtype": launch.kv_cache_dtype,
        "kv_cache_dtype_after_init": launch.kv_cache_dtype_after_init,
        "block_size": launch.block_size,
        "block_size_after_load": launch.block_size_after_load,
        "selector_configs": [layer_dict(layer) for layer in launch.layers],
        "notes": list(launch.notes),
        "release": release.version,
        "exact": release.exact,
        "exit_code": code,
    }


def _gpus(item: dict[str, Any], default: str | None) -> tuple[tuple[Gpu, int], ...]:
    from attnfit.inputs.gpu import parse_gpus

    if "capability" in item:
        capability = _capability(item["capability"])
        return ((Gpu(name=f"compute capability {capability}", capability=capability), 1),)
    spec = item.get("gpu", default)
    if not isinstance(spec, str):
        raise UsageError('no GPU: give "gpu": "h200x8" or "capability": "12.0"')
    return parse_gpus(spec, item.get("count"))


def _capability(value: Any) -> Capability:
    if isinstance(value, list | tuple) and len(value) == 2:
        value = f"{value[0]}.{value[1]}"
    try:
        return Capability.parse(value)
    except (ValueError, AttributeError, TypeError):
        raise UsageError(f'capability {value!r}: write it as "12.0"') from None


def _name(backend: Any) -> str | None:
    if backend is None:
        return None
    if not isinstance(backend, str):
        raise UsageError(f"backend {backend!r}: write its name, or leave it away")
    return None if backend.lower() == "auto" else backend.upper()


def _typed(item: dict[str, Any], key: str, kind: type, default: Any = None) -> Any:
    value = item.get(key, default)
    if not isinstance(value, kind):
        raise UsageError(f'"{key}" is {type(value).__name__}, not {kind.__name__}; see docs/json.md')
    return value


@lru_cache(maxsize=64)
def _release(spec: str) -> engines.Release:
    name, version = engines.split_spec(spec)
    return engines.engine(name).release(version)


@lru_cache(maxsize=256)
def _model(path: str) -> Any:
    from attnfit.inputs.model import read_model

    return read_model(path)
