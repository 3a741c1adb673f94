"""One release, loaded so that its kernels can be called: the GPU is one of NVIDIA's, of the capability asked about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from attnfit.engines.sglang.witness.packages import Facts, stand_in
from attnfit.kernels.fit import asked
from attnfit.kernels.fit.asked import DTYPES
from attnfit.kernels.fit.loading import KernelLoader, OneAsk

UTILS = ("sglang.srt.utils", "sglang.srt.utils.common")
PLATFORMS = ("cpu", "hip", "npu", "xpu", "hpu", "musa", "mps", "sail")  # what it asks about, beside CUDA


class Ask(asked.Facts):
    """What is asked."""

    def dtype(self, key: str = "dtype") -> torch.dtype:
        return DTYPES[self[key]]


class Release(asked.Loaded):
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
