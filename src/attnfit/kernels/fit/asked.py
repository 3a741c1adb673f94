"""What adapters of engines share: the facts they are asked with, and the modules of a loaded release."""

from __future__ import annotations

from typing import Any

import torch

from attnfit.kernels.fit.loading import KernelLoader
from attnfit.kernels.fit.records import Unknown

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
FP8 = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


class Facts(dict[str, Any]):
    """What is asked. A fact that is needed and was not given raises Unknown naming it."""

    def __missing__(self, key: str) -> Any:
        raise Unknown(f"{key} is not given")


class Loaded:
    """A release whose modules `loader` loads."""

    loader: KernelLoader

    def has(self, name: str) -> bool:
        """Whether the release has that module."""
        return self.loader.has_source(name)

    def source(self, *names: str) -> Any:
        """The first of these modules that the release has. Raises ImportError."""
        for name in names:
            if self.has(name):
                return self.loader.import_module(name)
        raise ImportError(f"this release has no {names[0]}")


def passed(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Stands in for a causal convolution, which gives back the same shape and layout."""
    return torch.empty_like(x)
