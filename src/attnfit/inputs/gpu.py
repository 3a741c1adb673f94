"""`--gpu` and `-n`: which GPUs, and how many of each.

A value is one or more parts joined by `,` or `+`. A part is a name, an alias or a compute capability, alone or with a
count: `h200`, `h200x8`, `8xh200`, `h200:8`, `12.0`, `3090x2+2080ti`. `auto` alone reads the machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from attnfit import gpus as catalogue
from attnfit.core import Gpu
from attnfit.errors import UsageError

MOST = 4096  # GPUs in one launch; more is taken for a typing error

_NAME_THEN_COUNT = re.compile(r"(?P<name>.+?)\s*[x×*:]\s*(?P<count>\d+)", re.IGNORECASE)
_COUNT_THEN_NAME = re.compile(r"(?P<count>\d+)\s*[x×*]\s*(?P<name>.+)", re.IGNORECASE)


class GpuInput(msgspec.Struct, frozen=True):
    """What `--gpu` and `-n` come to. `notes` says what was assumed or found, a sentence each."""

    gpus: tuple[tuple[Gpu, int], ...]
    notes: tuple[str, ...] = ()
    counted: bool = True  # False: nobody said how many, 1 is assumed
    driver: str = ""  # of this machine, where the GPUs are its own: "580.65.06"


def parse_gpus(spec: str, count: int | None = None) -> tuple[tuple[Gpu, int], ...]:
    """(GPU, how many) for each kind named by `spec`, in its order. Errors as `read_gpus`."""
    return read_gpus(spec, count).gpus


def read_gpus(spec: str, count: int | None = None, *, detect: Callable[[], GpuInput] | None = None) -> GpuInput:
    """What the user means by `--gpu SPEC -n COUNT`.

    detect: how `auto` finds the machine's GPUs; by default NVML (`inputs/nvml.py`). Raises UsageError for an unknown
    or ambiguous name, a count that is none, and a `-n` that contradicts the counts in `spec`.
    """
    if count is not None and not 1 <= count <= MOST:
        raise UsageError(f"-n {count}: give a number of GPUs from 1 to {MOST}")
    if not isinstance(spec, str) or not spec.strip():
        raise UsageError("--gpu is empty; give a name such as h200x8, a compute capability such as 12.0, or auto")
    if spec.strip().lower() == "auto":
        return _limited((detect or _detect)(), count)
    parts = [part.strip() for part in re.split(r"[,+]", spec)]
    if not all(parts):
        raise UsageError(f"--gpu {spec!r} has an empty part; write for example 3090x2,2080ti")
    found: list[tuple[Gpu, int | None]] = []
    notes: list[str] = []
    for part in parts:
        if part.lower() == "auto":
            raise UsageError("--gpu auto reads this machine and cannot be mixed with other names; leave one away")
        name, own = _split(part)
        match = catalogue.lookup(name)
        found.append((match.gpu, own))
        if match.note and match.note not in notes:
            notes.append(match.note)
    gpus, counted = _counts(spec, found, count)
    return GpuInput(gpus, tuple(notes), counted)


def _split(part: str) -> tuple[str, int | None]:
    """("h200", 8) for "h200x8". A part that is a name as it stands has no count, however it ends ("a100x")."""
    if catalogue.known(part):
        return part, None
    for pattern in (_COUNT_THEN_NAME, _NAME_THEN_COUNT):
        if (found := pattern.fullmatch(part)) and _is_name(found["name"]):
            return found["name"].strip(), _number(found["count"], part)
    if (found := _NAME_THEN_COUNT.fullmatch(part)) and len(found["name"]) > 2:
        return found["name"], None  # an unknown name; the message is about it, not about the count
    return part, None


def _is_name(text: str) -> bool:
    try:
        catalogue.lookup(text)
    except UsageError:
        return catalogue.known(text)  # ambiguous is a name too
    return True


def _number(text: str, part: str) -> int:
    if len(text) > len(str(MOST)) or not 1 <= int(text) <= MOST:
        raise UsageError(f"--gpu {part!r}: give a number of GPUs from 1 to {MOST}")
    return int(text)


def _counts(
    spec: str, found: list[tuple[Gpu, int | None]], count: int | None
) -> tuple[tuple[tuple[Gpu, int], ...], bool]:
    if len(found) == 1 and found[0][1] is None:
        return ((found[0][0], count or 1),), count is not None
    merged: dict[Gpu, int] = {}
    for gpu, own in found:
        merged[gpu] = merged.get(gpu, 0) + (own or 1)
    total = sum(merged.values())
    if count is not None and count != total:
        raise UsageError(
            f"--gpu {spec} says {total} GPU{'s' * (total > 1)}, -n says {count}; leave one of the two away"
        )
    if total > MOST:
        raise UsageError(f"--gpu {spec}: {total} GPUs are more than {MOST}; is there a typing error?")
    return tuple(merged.items()), True


def _limited(machine: GpuInput, count: int | None) -> GpuInput:
    """`auto` with -n: the launch uses the first `count` of the machine's GPUs."""
    if count is None:
        return machine
    total = sum(n for _, n in machine.gpus)
    if count > total:
        raise UsageError(f"-n {count}, but this machine shows {total} GPU{'s' * (total != 1)}; "
                         "name the GPU to check another machine (--gpu h200x8)")  # fmt: skip
    left, used = count, []
    for gpu, n in machine.gpus:
        if left > 0:
            used.append((gpu, min(n, left)))
            left -= n
    return msgspec.structs.replace(machine, gpus=tuple(used))


def _detect(environ: Mapping[str, str] | None = None) -> GpuInput:
    from attnfit.inputs import nvml

    gpus, notes = nvml.machine_gpus(environ)
    return GpuInput(gpus, notes, driver=nvml.versions(nvml.library())[0])
