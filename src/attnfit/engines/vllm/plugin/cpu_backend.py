"""The backend on a CPU: the same one, which takes float32 too, for there it computes with the float64 reference."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from attnfit.engines.vllm.plugin import serves
from attnfit.engines.vllm.plugin.backend import TritonMLASparseBackend


class TritonMLASparseCpuBackend(TritonMLASparseBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [getattr(torch, name) for name in serves.CPU_DTYPES]

    @staticmethod
    def names() -> tuple[str, ...]:
        """What `--attention-backend` may call it."""
        return serves.NAME, serves.NAME_IF_TAKEN, serves.CUSTOM

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return True
