"""Many answers at once: JSON lines in, one JSON line each out, in order, never stopping at a bad one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from attnfit import engines
from attnfit.api import check_facts
from attnfit.core import Capability, Gpu
from attnfit.decide import Request, decide
from attnfit.errors import AttnfitError, InputError, UsageError
from attnfit.inputs.secrets import clean
from attnfit.report.json import layer_dict
from attnfit.report.plain import printable

if TYPE_CHECKING:
    from attnfit.inputs.command import Command
    from attnfit.inputs.hub_ref import HubSettings
    from attnfit.inputs.model import ModelFiles

MOST_BYTES = 16 << 20  # of one line; a longer one is answered with a usage error, not read into a question


def run(
    source: str,
    out: BinaryIO,
    *,
    gpu: str | None = None,
    count: int | None = None,
    engine: str | None = None,
    env: Mapping[str, bool] | None = None,
) -> None:
    """Answer every line of the file `source` ("-": stdin). Raises InputError only if it cannot be opened."""
    try:
        if source == "-" and sys.stdin is None:
            raise InputError("standard input is closed; name a file of JSON lines")
        opened = nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb")  # noqa: SIM115  (closed by the with below)
    except OSError as error:
        raise InputError(f"{source} cannot be read ({error.strerror}); name a file of JSON lines, or -") from error
    encoder = msgspec.json.Encoder()
    with opened as lines:
        for reply in answers(lines, gpu=gpu, count=count, engine=engine, env=env):
            raw = encoder.encode(reply)
            if not raw.isascii():  # JSON escapes the lower control characters only
                raw = printable(raw.decode()).encode()
            out.write(raw + b"\n")
        out.flush()


def answers(
    lines: Iterable[bytes],
    *,
    gpu: str | None = None,
    count: int | None = None,
    engine: str | None = None,
    env: Mapping[str, bool] | None = None,
) -> Iterator[dict[str, Any]]:
    """One reply for each line that is not blank. `gpu`, `count`, `engine`, `env` stand in where a line has none."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        item: dict[str, Any] = {}
        try:
            item = _decode(line)
            _one_of_each(item)
            item["env"] = {**(env or {}), **_typed(item, "env", dict, {})}
            reply = _question(item, engine) if "question" in item else _launch(item, gpu, count, engine)
        except AttnfitError as error:
            reply = {"ok": None, "problem": str(error), "line": number, "exit_code": error.exit_code}
        except Exception as error:  # a fault of ours must not cost the other lines their answers
            problem = f"internal error, {type(error).__name__}: {error}; report this line"
            reply = {"ok": None, "problem": problem, "line": number, "exit_code": 2}
        for key in ("detail", "problem", "error"):
            if reply.get(key):
                reply[key] = clean(reply[key], _words(item))
        if "id" in item:
            reply = {"id": item["id"], **reply}
        yield reply


def _words(item: dict[str, Any]) -> list[str]:
    """What of a line may hold keys and tokens."""
    found: list[str] = [str(item[key]) for key in ("model", "env") if key in item]
    for key in ("command", "flags"):
        value = item.get(key)
        found += [str(word) for word in value] if isinstance(value, list) else [str(value)] if value else []
    return found


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


# Two ways to say one thing: a line that uses both contradicts itself.
_EITHER = (("gpu", "capability"), ("command", "flags"), ("question", "command"), ("question", "flags"))


_SIZES = ("head_size", "block_size", "num_heads", "num_kv_heads", "model_head_size", "model_num_heads")


def _one_of_each(item: dict[str, Any]) -> None:
    for one, other in _EITHER:
        if one in item and other in item:
            raise UsageError(f'both "{one}" and "{other}"; give one of them')


def _question(item: dict[str, Any], engine: str | None) -> dict[str, Any]:
    asked = dict(_typed(item, "question", dict))
    release = _release(_typed(item, "engine", str, engine or engines.ENGINES[0]))
    check_facts(item["env"], release)
    asked["backend"] = _name(asked.get("backend", item.get("backend")))
    for name in _SIZES:
        value = asked.get(name)
        if isinstance(value, int) and value < 0:  # 0 the engine's own selector answers, and so do the books
            raise UsageError(f"{name} is {value}; a size is no negative number")
    question = release.question(asked)
    selection = release.select(question, item["env"], explained=False)
    code = 3 if selection.unknown or not release.exact else 0 if selection.chosen else 1
    return {
        **release.row(question, selection),
        "release": release.version,
        "exact": release.exact,
        "exit_code": code,
    }


def _launch(item: dict[str, Any], gpu: str | None, count: int | None, engine: str | None) -> dict[str, Any]:
    from attnfit.inputs.agree import agreed_model, agreed_release
    from attnfit.inputs.command import parse_command

    argv: tuple[str, ...]
    variables: dict[str, str] = {}
    form, files_here = "auto", True
    spec, path = _typed(item, "engine", str, engine or engines.ENGINES[0]), item.get("model")
    notes: list[str] = []
    if "command" in item:
        if not isinstance(item["command"], str):
            _typed(item, "command", list)
        parsed = parse_command(item["command"])
        argv, variables = tuple(parsed.argv), dict(parsed.env)
        path, notes = agreed_model(_typed(item, "model", str) if "model" in item else None, parsed)
        form, files_here = parsed.form, parsed.files_here
        name, version = engines.split_spec(spec)
        if "engine" in item and name != parsed.engine:
            raise UsageError(f'"engine" says {name}, but the command starts {parsed.engine}; make the two agree')
        named = parsed.image_release or parsed.required_release
        if named and (version is None or "engine" not in item):  # the command's own release wins over a default
            spec = f"{parsed.engine}=={named}"
        elif name != parsed.engine:
            spec = parsed.engine  # a default of another engine says nothing of this one
        elif version:
            agreed_release(version, parsed)
    else:
        parsed = None
        argv = tuple(_words_only(_typed(item, "flags", list, [])))
    if not isinstance(path, str):
        raise UsageError('no model: give "model": PATH, or a command that names one')
    release, files = _release(spec), _model(path, parsed, argv, engines.split_spec(spec)[0])
    check_facts(item["env"], release)
    gpus, counted = _gpus(item, gpu, count)
    launch = decide(
        Request(
            release=release,
            model=files.model(),
            gpus=gpus,
            argv=argv,
            form=form,
            files_here=files_here,
            counted=counted,
            variables=variables,
            env=item["env"],
        )
    )
    resolved = launch.stage not in ("parse_flags", "create_engine_config")  # else the engine never came to them
    broken = bool(launch.ok) and any(hazard.breaks for hazard in launch.hazards)
    code = (1 if broken else {True: 0, False: 1, None: 3}[launch.ok]) if release.exact else 3
    if launch.reply:
        circumstances = {"release": release.version, "exact": release.exact, "exit_code": code}
        return {**launch.reply, "notes": [*notes, *launch.notes], **circumstances}
    return {
        "ok": launch.ok,
        "stage": launch.stage,
        "error": launch.error,
        "detail": launch.detail,
        "unknown": list(launch.unknown),
        "dtype": launch.dtype if resolved else None,
        "kv_cache_dtype": launch.kv_cache_dtype if resolved else None,
        "kv_cache_dtype_after_init": launch.kv_cache_dtype_after_init,
        "block_size": launch.block_size if resolved else None,
        "block_size_after_load": launch.block_size_after_load,
        "selector_configs": [] if launch.hypothetical else [layer_dict(layer) for layer in launch.layers],
        "notes": [*notes, *launch.notes],
        "hazards": [msgspec.structs.asdict(hazard) for hazard in launch.hazards],
        "release": release.version,
        "exact": release.exact,
        "exit_code": code,
    }


def _words_only(flags: list[Any]) -> Iterator[str]:
    for word in flags:
        if isinstance(word, bool) or not isinstance(word, str | int | float):
            raise UsageError(f'"flags" holds {msgspec.json.encode(word).decode()[:40]}; write words and numbers')
        yield str(word)


def _gpus(
    item: dict[str, Any], default: str | None, count: int | None
) -> tuple[tuple[tuple[Gpu, int], ...], int | None]:
    """The GPUs of a line, and how many there are, if it says so."""
    from attnfit.inputs.gpu import read_gpus

    if "capability" in item:
        return ((_bare(item), 1),), _whole(item, "gpus")
    spec = item.get("gpu", default)
    if not isinstance(spec, str):
        raise UsageError('no GPU: give "gpu": "h200x8" or "capability": "12.0"')
    if "count" in item or "gpu" in item:
        count = item.get("count")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
        raise UsageError(f'"count" is {count!r}; write a whole number of GPUs')
    found = read_gpus(spec, count)
    return found.gpus, sum(n for _, n in found.gpus) if found.counted else None


def _bare(item: dict[str, Any]) -> Gpu:
    """A GPU of which a line says the compute capability, and maybe its name and memory."""
    from attnfit.gpus import by_capability

    gpu = by_capability(_capability(item["capability"]))
    name, size = item.get("gpu_name"), item.get("gpu_mem_gb")
    if name is not None:
        gpu = msgspec.structs.replace(gpu, name=_typed(item, "gpu_name", str))
    if size is not None:
        if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
            raise UsageError(f'"gpu_mem_gb" is {size!r}; write its memory in GiB')
        gpu = msgspec.structs.replace(gpu, memory_gib=float(size))
    return gpu


def _whole(item: dict[str, Any], key: str) -> int | None:
    count = item.get(key)
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise UsageError(f'"{key}" is {count!r}; write a whole number of GPUs')
    return count


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


def _model(path: str, command: Command | None, argv: tuple[str, ...], engine: str) -> ModelFiles:
    """The model at `path`, read once; a hub model once for each way its launches reach the hub."""
    import os

    if os.path.exists(path):
        return _read(path, None)
    from attnfit.inputs.hub_ref import hub_settings

    return _read(path, hub_settings(command, argv, engine))


@lru_cache(maxsize=256)
def _read(path: str, settings: HubSettings | None) -> ModelFiles:
    from attnfit.inputs.model import read_model

    return read_model(path, None if settings is None else lambda: settings)
