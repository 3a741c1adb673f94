"""Look-ups in `catalog.json`: by the names people type, by compute capability, by the name a driver reports.

Everything here is a pure function of that file. Reading the machine's own GPUs is `inputs/nvml.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from attnfit.core import Capability, Gpu
from attnfit.errors import UsageError, did_you_mean

_MIB_PER_GIB = 1024
# A GB is not a GiB, but for the memory printed on a box the two differ by less than anything we decide on. The
# driver's own figure (memory_mib) is used wherever the catalogue has it.


class GpuEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the catalogue. A figure that no source gave is None; `sources` names the source of each other."""

    name: str
    vendor: str = "nvidia"
    kind: str = ""  # datacenter | workstation | consumer | embedded
    cc: str | None = msgspec.field(default=None, name="capability")  # as written in the file, "12.0"
    memory_gb: float | None = None  # as sold
    memory_mib: int | None = None  # as the driver reports it
    cuda_gib: tuple[float, float] | None = None  # as CUDA reports it, where that was seen
    shared_memory: bool = False  # the CPU's programs live in the same memory
    bandwidth_gbs: float | None = None
    sms: int | None = None
    aliases: tuple[str, ...] = ()
    device_names: tuple[str, ...] = ()  # as NVML reports them
    note: str = ""
    sources: dict[str, str] = msgspec.field(default_factory=dict)  # field -> key of sources()

    @property
    def capability(self) -> Capability | None:
        """None: a GPU that exists but is not covered, so that every verdict for it is unknown."""
        return Capability.parse(self.cc) if self.cc else None

    @property
    def gpu(self) -> Gpu:
        """This entry as the noun the rest of attnfit works with."""
        memory = self.memory_mib / _MIB_PER_GIB if self.memory_mib else self.memory_gb
        return Gpu(
            name=self.name,
            vendor=self.vendor,
            capability=self.capability,
            memory_gib=round(memory, 2) if memory is not None else None,
            cuda_gib=self.cuda_gib or (None if memory is None else _cuda(memory, self)),
            bandwidth_gbs=self.bandwidth_gbs,
            smem_per_block_kib=capabilities().get(self.capability) if self.capability else None,
        )


def _cuda(memory: float, entry: GpuEntry | None) -> tuple[float, float]:
    """What `cudaMemGetInfo` calls the total of a GPU with `memory` GiB, at least and at most (docs/gpus.md).

    The driver keeps some of what it reports: 0.3 GiB of 24 (RTX 3090), 0.5 of 22.5 (A10G), 0.75 of 40 and 0.85 of 80
    (A100). As sold is more: ECC and, where the CPU shares it, the system's own part are counted in.
    """
    if entry is not None and entry.memory_mib is None:
        least, most = (0.82, 0.98) if entry.shared_memory else (0.9, 1.0)
        return round(memory * least, 2), round(memory * most, 2)
    return round(max(0.0, memory * 0.99 - 0.4), 2), round(memory, 2)


class Match(msgspec.Struct, frozen=True):
    """What a name was taken for. `note` says so where the name alone left a choice."""

    gpu: Gpu
    entry: GpuEntry | None = None  # None: a bare capability, or a device the catalogue does not know
    note: str = ""


class _Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    smem_per_block_kib: float
    source: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    checked: str
    sources: dict[str, str]
    capabilities: dict[str, _Limits]
    gpus: tuple[GpuEntry, ...]
    not_covered: tuple[GpuEntry, ...]


@cache
def _file() -> _File:
    return msgspec.json.decode(Path(__file__).with_name("catalog.json").read_bytes(), type=_File)


def catalogue() -> tuple[GpuEntry, ...]:
    """Every GPU known by name, in the order of the file; those of other vendors last, without a capability."""
    return _file().gpus + _file().not_covered


def sources() -> dict[str, str]:
    """Key of `GpuEntry.sources` -> the document it stands for."""
    return dict(_file().sources)


@cache
def capabilities() -> dict[Capability, float]:
    """Every compute capability known -> most shared memory one thread block may opt in to, in KiB (CUDA guide)."""
    return {Capability.parse(text): facts.smem_per_block_kib for text, facts in _file().capabilities.items()}


def find(name: str) -> Gpu:
    """The GPU a user means by `name`. Raises UsageError, listing near names, if there is none."""
    return lookup(name).gpu


def lookup(name: str) -> Match:
    """Like `find`, with the catalogue entry and what was assumed.

    `name` may be a catalogue name, an alias, a device name as the driver prints it, or a compute capability
    ("12.0", "sm_120", "compute_90a"). Case, spaces and punctuation do not matter.
    """
    if (capability := _capability(name)) is not None:
        return Match(by_capability(capability))
    key = _key(name)
    if entries := _named(key):
        return _choose(name, entries)
    raise UsageError(
        f"unknown GPU {name!r}{did_you_mean(name.strip().lower(), _spellings())}"
        "; `attnfit gpus` lists every name, and a compute capability such as 12.0 works too"
    )


def matching(names: str) -> tuple[GpuEntry, ...]:
    """The entries that are meant by names, aliases, compute capabilities or kinds, with commas between, in the order
    of the file. A name that fits several stands for all of them. Raises UsageError as `lookup`."""
    wanted: set[str] = set()
    for name in names.split(","):
        if not name.strip():
            raise UsageError(f"--gpu {names!r} has an empty part; write for example h200,12.0,workstation")
        capability, plain = _capability(name), name.strip().lower()
        found = tuple(e for e in catalogue() if plain in (e.kind, e.vendor))
        if capability is not None:
            found = tuple(e for e in catalogue() if e.cc == str(capability))
        found = found or _named(_key(name))
        if not found:
            near = did_you_mean(name.strip().lower(), _spellings())
            raise UsageError(
                f"no GPU of the catalogue is {name.strip()!r}{near}; give names without a number, compute "
                "capabilities, or kinds such as workstation (`attnfit gpus` lists every GPU)"
            )
        wanted.update(e.name for e in found)
    return tuple(e for e in catalogue() if e.name in wanted)


def known(name: str) -> bool:
    """Whether `lookup` takes `name` as it stands (it may still be ambiguous)."""
    return bool(_named(_key(name)))


def by_capability(capability: Capability) -> Gpu:
    """A GPU of which only the compute capability is known. Raises UsageError for one that no GPU has."""
    if capability not in capabilities():
        valid = ", ".join(str(c) for c in capabilities())
        raise UsageError(f"no GPU has compute capability {capability}; known: {valid}")
    return Gpu(
        name=f"compute capability {capability}",
        capability=capability,
        smem_per_block_kib=capabilities()[capability],
    )


def by_device_name(name: str, capability: Capability, memory_mib: float | None = None) -> Match:
    """The GPU a driver reports. Capability and memory are the driver's; the catalogue adds name and bandwidth.

    Cards that share a device name (12 and 8 GB of one model) are told apart by memory. A name that is not in the
    catalogue, or stands there with another capability, gives a GPU with only what the driver said.
    """
    entries = [e for e in _device_index().get(_key(name), ()) if e.cc == str(capability)]
    memory_gib = round(memory_mib / _MIB_PER_GIB, 2) if memory_mib else None
    if not entries:
        smem = capabilities().get(capability)
        seen = None if memory_gib is None else _cuda(memory_gib, None)
        gpu = Gpu(name=name, capability=capability, memory_gib=memory_gib, cuda_gib=seen, smem_per_block_kib=smem)
        return Match(gpu, note=f"{name!r} is not in the catalogue; only what the driver reports is known of it")
    entry = entries[0] if memory_gib is None else min(entries, key=lambda e: _distance(e, memory_gib))
    if memory_gib is None or entry.shared_memory:
        return Match(entry.gpu, entry)
    return Match(msgspec.structs.replace(entry.gpu, memory_gib=memory_gib, cuda_gib=_cuda(memory_gib, None)), entry)


def _distance(entry: GpuEntry, memory_gib: float) -> float:
    known_gib = entry.gpu.memory_gib
    return abs(known_gib - memory_gib) if known_gib is not None else float("inf")


def _choose(name: str, entries: tuple[GpuEntry, ...]) -> Match:
    first, *others = entries
    if not others:
        return Match(first.gpu, first)
    if len({e.cc for e in entries}) > 1:
        choices = ", ".join(f"{e.name} ({e.cc or 'not covered yet'})" for e in entries)
        raise UsageError(f"{name!r} is the name of GPUs with different compute capabilities; say which: {choices}")
    if len({msgspec.structs.replace(e.gpu, name="") for e in entries}) == 1:
        return Match(first.gpu, first)  # the choice changes nothing but the name
    rest = ", ".join(e.name for e in others)
    same = f"all have compute capability {first.cc}"
    return Match(first.gpu, first, f"{name!r} taken as {first.name}; the name also fits {rest} ({same})")


_CAPABILITY = re.compile(r"(?:(?:sm|compute|cc)[ _-]*)?(\d{1,2})\.(\d)[af]?|(?:sm|compute|cc)[ _-]*(\d{1,2})(\d)[af]?")


def _capability(text: str) -> Capability | None:
    found = _CAPABILITY.fullmatch(text.strip().lower())
    if found is None:
        return None
    major, minor = found.group(1, 2) if found.group(1) else found.group(3, 4)
    return Capability(int(major), int(minor))


_BRANDS = ("nvidia", "geforce", "tesla", "amd", "intel")
_PUNCTUATION = re.compile(r"[^a-z0-9]+")
_GB = re.compile(r"(\d)gi?b(?![0-9])")
_WITH_MEMORY = re.compile(r"(.*\D)(\d{1,3})g")


def _key(name: str) -> str:
    """What is compared: letters and digits, no brand in front, "80GB" as "80g"."""
    text = _PUNCTUATION.sub("", name.lower())
    for brand in _BRANDS:
        text = text.removeprefix(brand)
    return _GB.sub(r"\1g", text)


def _named(key: str) -> tuple[GpuEntry, ...]:
    """Entries with that name or alias; else with that device name; else "<name><memory>g" with that much memory."""
    if entries := _index().get(key) or _device_index().get(key):
        return entries
    if (split := _WITH_MEMORY.fullmatch(key)) is not None:
        return tuple(e for e in _index().get(split[1], ()) if e.memory_gb == int(split[2]))
    return ()


@cache
def _index() -> dict[str, tuple[GpuEntry, ...]]:
    return _group((e, (e.name, *e.aliases)) for e in catalogue())


@cache
def _device_index() -> dict[str, tuple[GpuEntry, ...]]:
    """By the driver's name. Kept apart: a modified card reports its original's name but is not what users mean."""
    return _group((e, (e.name, *e.device_names)) for e in catalogue())


def _group(named: Iterable[tuple[GpuEntry, tuple[str, ...]]]) -> dict[str, tuple[GpuEntry, ...]]:
    found: dict[str, list[GpuEntry]] = {}
    for entry, names in named:
        for key in {_key(n) for n in names}:
            found.setdefault(key, []).append(entry)
    return {key: tuple(entries) for key, entries in found.items()}


def _spellings() -> list[str]:
    """Every name worth suggesting, as a user would type it."""
    names = [e.name.lower().replace(" ", "-") for e in catalogue()]
    return [*dict.fromkeys([a for e in catalogue() for a in e.aliases] + names)]
