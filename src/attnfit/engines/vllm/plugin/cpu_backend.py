"""The backend on a CPU: the same one, which takes float32 too, for there it computes with the float64 reference.

With TRITON_INTERPRET=1 the kernels themselves run, in Triton's interpreter, for 16-bit models: slower still, and meant
for proofs. Its bfloat16 is wrong, so it is repaired here (kernels/interpreter.py), and the log says so.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.logger import init_logger

from attnfit.engines.vllm.plugin import serves
from attnfit.engines.vllm.plugin.backend import TritonMLASparseBackend
from attnfit.kernels import interpreter

if interpreter.interpreting():
    interpreter.patch()
    init_logger("vllm.attnfit").warning("attnfit: kernels run in Triton's interpreter, repaired for bfloat16.")


class TritonMLASparseCpuBackend(TritonMLASparseBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [getattr(torch, name) for name in serves.CPU_DTYPES]

    @staticmethod
    def names() -> tuple[str, ...]:
        """What `--attention-backend` may call it."""
        return serves.NAME, serves.NAME_IF_TAKEN, serves.CUSTOM

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return True
