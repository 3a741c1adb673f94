"""One release, loaded so that its kernels can be called: the GPU is one of NVIDIA's, of the capability asked about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from attnfit.engines.sglang.witness.packages import Facts, stand_in
from attnfit.kernels.fit.loading import KernelLoader, OneAsk
from attnfit.kernels.fit.records import Unknown

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
UTILS = ("sglang.srt.utils", "sglang.srt.utils.common")
PLATFORMS = ("cpu", "hip", "npu", "xpu", "hpu", "musa", "mps", "sail")  # what it asks about, beside CUDA


class Ask(dict[str, Any]):
    """What is asked. A fact that is needed and was not given raises Unknown naming it."""

    def __missing__(self, key: str) -> Any:
        raise Unknown(f"{key} is not given")

    def dtype(self, key: str = "dtype") -> torch.dtype:
        return DTYPES[self[key]]


class Release:
    """The modules of the release at `ask["root"]`, under the circumstances of the ask."""

    def __init__(self, ask: Mapping[str, Any]) -> None:
        self.ask = Ask(ask)
        facts = Facts(OneAsk(), self.ask["root"])
        facts.env = self.ask.get("env") or {}
        facts.variables = self.ask.get("variables") or {}
        facts._capability = tuple(self.ask["capability"])
        self.loader = KernelLoader(self.ask["root"], package="sglang", facts=facts, stand_in=stand_in)
        self.overrides = self.loader.overrides
        answers = {f"is_{name}": lambda: False for name in PLATFORMS}
        answers.update(is_cuda=lambda: True, is_cuda_alike=lambda: True)
        for name in UTILS:
            self.overrides[name] = dict(answers)

    def has(self, name: str) -> bool:
        return self.loader.has_source(name)

    def source(self, *names: str) -> Any:
        """The first of these modules that the release has. Raises ImportError."""
        for name in names:
            if self.has(name):
                return self.loader.import_module(name)
        raise ImportError(f"this release has no {names[0]}")
