"""Which packages are there for SGLang, and what stands for those whose contents are kernels.

Whether a backend's package is installed is decided outside the witness (needs.py), with the line that imports it. Here
a kernel package that is not named absent is there with every name asked of it, and nothing more is known of it: to
call it, or to compare what it gives, leaks. Standard library only.
"""

from __future__ import annotations

import importlib.machinery
import types
from typing import Any

from attnfit.witness.facts import Facts as Base
from attnfit.witness.fakes import StubModule
from attnfit.witness.stubs import STATE, Existing, Stub, leak, path_of

# What other platforms bring; none of it is beside an NVIDIA GPU.
_ELSEWHERE = """
    torch_npu sgl_kernel_npu habana_frameworks torch_musa torch_mlu mlx intel_extension_for_pytorch modelscope wave_lang
"""
ELSEWHERE = frozenset(_ELSEWHERE.split())
_KERNELS = """
    flashinfer sgl_kernel deep_gemm sgl_deep_gemm flash_mla sgl_flash_mla flash_attn flash_attn_interface flash_kda fla
    cutlass quack tilelang tvm tvm_ffi deep_ep humming triton_kernels cuda nvshmem mooncake nixl helion hpc aiter
    causal_conv1d mamba_ssm ptx_kda nvidia_kda tokenspeed_mla
"""
KERNELS = frozenset(_KERNELS.split())
# Facts that decide what SGLang resolves by default; the others only whether a kernel can run (needs.py).
DECIDING = ("flashinfer", "sgl_kernel")
# On no package index: not there unless the case says so. SGLang's own code then refuses.
UNUSUAL = frozenset({"hpc"})
# What is known of a package's contents: names of modules that hold what was compiled, which is nothing yet.
EMPTY = {"tokenspeed_mla.mla_prefill": ("_compiled_kernels",)}
# flashinfer up to 0.1.6 only: SGLang looks for it and goes on without.
GONE = frozenset({"_grouped_size_compiled_for_decode_kernels"})


class Facts(Base):
    """Presence of packages."""

    package = "sglang"

    def note(self, facet: str) -> None:
        """Nothing is remembered from one launch to the next, so nothing depends on what was read."""

    def present(self, module: str) -> bool:
        top = module.partition(".")[0]
        if top in ELSEWHERE or top == self.package:  # an own module that is not among the source files
            return False
        if top in UNUSUAL:
            return bool(self.env.get(top, False))
        return bool(self.env.get(top, True)) if top in DECIDING else True

    def spec(self, name: str) -> Any:
        """importlib.util.find_spec; a kernel package that is there is there with all its modules"""
        if name.partition(".")[0] in KERNELS:
            return importlib.machinery.ModuleSpec(name, None) if self.present(name) else None
        return super().spec(name)

    def which(self, program: str) -> str | None:
        name = program.rpartition("/")[2]
        if name not in ("nvidia-smi", "nvcc", "ninja"):
            leak(f"shutil.which({program!r})")
        return f"/usr/bin/{name}"


class Kernel(Existing):
    """Something in a kernel package that is installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        child = Kernel(f"{path_of(self)}.{name}")
        object.__setattr__(self, name, child)
        return child

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not STATE.loading:
            leak(f"{path_of(self)} was called")
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType | type):
            return args[0]  # used as a decorator
        return Stub(f"{path_of(self)}()")

    def __hash__(self) -> int:
        return id(self)


class KernelModule(StubModule):
    """A module of a kernel package."""

    def __getattr__(self, name: str) -> Any:
        if name in GONE or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        value = stand_in(path) if path in EMPTY else Kernel(path)
        setattr(self, name, value)
        return value


def stand_in(name: str) -> StubModule:
    """The module for a package that is there and not among the source files."""
    known: dict[str, Any] = {leaf: {} for leaf in EMPTY.get(name, ())}
    return KernelModule(name, **known) if name.partition(".")[0] in KERNELS else StubModule(name)
