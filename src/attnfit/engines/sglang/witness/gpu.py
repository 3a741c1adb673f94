"""torch and nvidia-smi for the GPUs of the case. Standard library only."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from attnfit.witness import stubs
from attnfit.witness.fake_torch import torch_module
from attnfit.witness.fakes import StubModule

from .packages import Facts

GIB = 1 << 30
# Largest finite values: IEEE 754 and OCP FP8 (e4m3fn, e5m2).
_LARGEST = {
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2": 57344.0,
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
}
_OTHER_PLATFORMS = ("hpu", "npu", "musa", "mlu", "privateuseone")
PROCESSORS = 148  # sizes work buffers; no gate depends on it
# What makes a tensor: never None, whatever it is given.
_MAKES = "arange empty empty_like full full_like ones ones_like tensor zeros zeros_like"
# The driver SGLang's own images are built for; 595 and newer changes one default of gpt-oss on Blackwell (0.5.23).
DRIVER = "580.126.09"
CUDNN = {True: 91600, False: 91002}  # fact cudnn_9_15: what SGLang asks for, what torch 2.9.1 brings


class Gpus:
    """So many GPUs of one kind: compute capability, name as NVML gives it, memory of each in GiB."""

    def __init__(self, capability: tuple[int, int], name: str, memory_gib: float, count: int) -> None:
        self.capability, self.name, self.count = capability, name, count
        self.bytes = int(memory_gib * GIB)
        self.mib = int(memory_gib * 1024)
        self.cuda = ""  # version of CUDA that torch is built for

    def smi(self, command: str | Sequence[str], **options: Any) -> str:
        """What nvidia-smi prints, one line a GPU."""
        text = command if isinstance(command, str) else " ".join(str(word) for word in command)
        answers = {
            "memory.total": str(self.mib),
            "compute_cap": "{}.{}".format(*self.capability),
            "name": self.name,
            "driver_version": DRIVER,
        }
        if "nvidia-smi" in text:
            for asked, line in answers.items():
                if f"--query-gpu={asked}" in text:
                    return "".join(f"{line}\n" for _ in range(self.count))
        if text.endswith("nvcc --version"):  # the toolkit torch is built for, as where there is none
            return f"Cuda compilation tools, release {self.cuda}, V{self.cuda}.0"
        stubs.leak(f"a program was to be run: {text}")

    def run(self, command: str | Sequence[str], **options: Any) -> types.SimpleNamespace:
        return types.SimpleNamespace(returncode=0, stdout=self.smi(command), stderr="")


class Record:
    """An object with these attributes; any other is a stub: to pass it on does no harm, to decide by it leaks."""

    def __init__(self, record_name: str, /, **known: Any) -> None:
        vars(self).update(known)
        vars(self)["_record_name"] = record_name

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = stubs.Stub(f"{self._record_name}.{name}")
        vars(self)[name] = value
        return value


class Tensor(stubs.Stub):
    """A tensor that is there; its numbers are not known."""


class Device:
    """torch.device"""

    def __init__(self, kind: Any, index: int | None = None) -> None:
        text, _, number = str(getattr(kind, "type", kind)).partition(":")
        self.type = text
        self.index = int(number) if number else index

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            other = Device(other)
        return isinstance(other, Device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device(type={self.type!r})"


class Module:
    """torch.nn.Module as a base class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass

    def register_buffer(self, name: str, value: Any, **kwargs: Any) -> None:
        setattr(self, name, value)


class FloatInfo:
    """torch.finfo"""

    def __init__(self, dtype: Any) -> None:
        name = repr(dtype).removeprefix("torch.")
        if name not in _LARGEST:
            stubs.leak(f"torch.finfo({dtype!r})")
        self.max = _LARGEST[name]
        self.min = -self.max
        self.bits = 8 * dtype.itemsize


class TorchModule(StubModule):
    """torch, in which other platforms' parts are known to be missing."""

    def __getattr__(self, name: str) -> Any:
        if name in _OTHER_PLATFORMS:
            raise stubs.as_real(AttributeError(f"module 'torch' has no attribute {name!r}"))
        return super().__getattr__(name)


def modules(facts: Facts, gpus: Gpus, torch_version: str, cuda_version: str) -> dict[str, types.ModuleType]:
    """torch and the parts of it that are asked, by name."""
    torch = torch_module(facts)
    gpus.cuda = cuda_version
    torch.__class__ = TorchModule
    props = Record(
        "device_properties",
        name=gpus.name,
        major=gpus.capability[0],
        minor=gpus.capability[1],
        total_memory=gpus.bytes,
        gcnArchName="",
        warp_size=32,
        multi_processor_count=PROCESSORS,
    )
    answers = {
        "device_count": gpus.count,
        "get_device_name": gpus.name,
        "get_device_properties": props,
        "mem_get_info": (int(gpus.bytes * 0.98), gpus.bytes),  # an idle GPU; only sizes that print depend on it
        "current_device": 0,
        "is_initialized": True,
        "memory_allocated": 0,
        "memory_reserved": 0,
        "get_arch_list": ["sm_{}{}".format(*gpus.capability)],
        "is_current_stream_capturing": False,
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
    }
    for name, value in answers.items():
        setattr(torch.cuda, name, lambda *args, _value=value, **kwargs: _value)

    def cudnn_version() -> int:
        return CUDNN[bool(facts.env.get("cudnn_9_15", True))]

    parts = {
        "version": types.SimpleNamespace(cuda=cuda_version, hip=None, xpu=None, musa=None, debug=False),
        "cpu": StubModule("torch.cpu", is_available=lambda: True),
        "xpu": StubModule("torch.xpu", is_available=lambda: False, device_count=lambda: 0),
        "mps": StubModule("torch.mps", is_available=lambda: False),
        "nn": StubModule("torch.nn", Module=Module),
        "distributed": StubModule("torch.distributed", is_available=lambda: True, is_initialized=lambda: False),
        "backends": StubModule(
            "torch.backends",
            mps=types.SimpleNamespace(is_available=lambda: False, is_built=lambda: False),
            cuda=StubModule("torch.backends.cuda", is_built=lambda: True),
            cudnn=StubModule("torch.backends.cudnn", version=cudnn_version),
        ),
        "ops": StubModule("torch.ops", sglang=types.SimpleNamespace()),
    }
    vars(torch).update({name: _tensor(name) for name in _MAKES.split()})
    vars(torch).update(
        parts, __version__=torch_version, device=Device, finfo=FloatInfo, compile=_as_it_is, jit=StubModule("torch.jit")
    )
    found: dict[str, Any] = {"torch": torch, "torch.cuda": torch.cuda}
    found.update({f"torch.{name}": part for name, part in parts.items()})
    return found


def _tensor(name: str) -> Any:
    def make(*args: Any, **kwargs: Any) -> Tensor:
        if not stubs.STATE.loading:
            stubs.leak(f"torch.{name} was called")
        return Tensor(f"torch.{name}()")

    return make


def _as_it_is(*args: Any, **kwargs: Any) -> Any:
    """torch.compile, with or without arguments."""
    return args[0] if args else lambda function: function
