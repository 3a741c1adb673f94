"""torch as engine code sees it in the witness: its dtypes, and device queries answered from the question.

Standard library only.
"""

from __future__ import annotations

from typing import Any

from . import stubs
from .facts import Facts
from .fakes import StubModule


class Dtype:
    """torch.dtype: equal to itself alone, printed as torch prints it."""

    def __init__(self, name: str, size: int, floating: bool) -> None:
        self._name, self.itemsize, self.is_floating_point = name, size, floating
        self.is_complex = False

    def __repr__(self) -> str:
        return f"torch.{self._name}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        stubs.leak(f"torch.{self._name}.{name}")

    def __reduce__(self) -> str:
        return self._name

    def __copy__(self) -> Dtype:
        return self

    def __deepcopy__(self, memo: Any) -> Dtype:
        return self


Dtype.__name__ = Dtype.__qualname__ = "dtype"
Dtype.__module__ = "torch"
DTYPES = {
    name: Dtype(name, size, "float" in name)
    for name, size in {
        "float16": 2,
        "bfloat16": 2,
        "float32": 4,
        "float64": 8,
        "float8_e4m3fn": 1,
        "float8_e5m2": 1,
        "float8_e4m3fnuz": 1,
        "float8_e5m2fnuz": 1,
        "float8_e8m0fnu": 1,
        "float4_e2m1fn_x2": 1,
        "int8": 1,
        "uint8": 1,
        "int16": 2,
        "int32": 4,
        "int64": 8,
        "uint16": 2,
        "uint32": 4,
        "uint64": 8,
        "bool": 1,
    }.items()
}
ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long": "int64",
    "short": "int16",
}


def torch_module(facts: Facts, **known: Any) -> StubModule:
    """torch with its dtypes, the device queries answered from the question, what is `known`, and stubs for all else."""
    cuda = StubModule(
        "torch.cuda",
        get_device_capability=lambda *args, **kwargs: tuple(facts.capability),
        is_available=lambda: True,
    )
    dtypes = {**DTYPES, **{alias: DTYPES[name] for alias, name in ALIASES.items()}}
    return StubModule("torch", dtype=Dtype, cuda=cuda, **dtypes, **known)
