"""A vLLM in miniature, written to a directory: enough modules for the witness to ask it one question.

Our own text, not vLLM's; only the module and function names are those the witness looks for.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

FILES = {
    "vllm/__init__.py": "",
    "vllm/envs.py": """
        import os
        environment_variables = {"VLLM_BATCH_INVARIANT": lambda: bool(int(os.getenv("VLLM_BATCH_INVARIANT", "0")))}
        """,
    "vllm/logger.py": "raise RuntimeError('the logger must never be loaded')",
    "vllm/config/__init__.py": """
        from vllm.config.vllm import VllmConfig, get_current_vllm_config
        """,
    "vllm/config/vllm.py": """
        import pydantic
        _current_vllm_config = None
        if pydantic.VERSION < "3":
            class VllmConfig: ...
        def get_current_vllm_config():
            return _current_vllm_config
        """,
    "vllm/config/attention.py": """
        class AttentionConfig:
            use_trtllm: bool = False
            computed: int = len("abc")
        """,
    "vllm/platforms/__init__.py": "",
    "vllm/platforms/interface.py": """
        from typing import NamedTuple
        class DeviceCapability(NamedTuple):
            major: int
            minor: int
        class Platform:
            device_name = "cuda"
        """,
    "vllm/platforms/cuda.py": """
        import torch
        from vllm.v1.attention.backends.registry import AttentionBackendEnum
        from .interface import Platform
        torch.backends.cuda.enable_cudnn_sdp(False)
        class CudaPlatformBase(Platform):
            @classmethod
            def get_valid_backends(cls, device_capability, attn_selector_config):
                valid, refused = [], {}
                for rank, backend in enumerate([AttentionBackendEnum.FAST, AttentionBackendEnum.SLOW]):
                    try:
                        reasons = backend.get_class().validate_configuration(
                            device_capability=device_capability, **attn_selector_config._asdict())
                    except ImportError as error:
                        reasons = [f"{type(error).__name__}: {error}"]
                    if reasons:
                        refused[backend] = (rank, reasons)
                    else:
                        valid.append((backend, rank))
                return valid, refused
            @classmethod
            def get_attn_backend_cls(cls, selected_backend, attn_selector_config):
                valid, refused = cls.get_valid_backends(cls.get_device_capability(), attn_selector_config)
                if not valid:
                    raise ValueError(f"nothing for {attn_selector_config.dtype}")
                return valid[0][0].get_path()
        """,
    "vllm/v1/attention/selector.py": """
        from typing import NamedTuple
        import torch
        class AttentionSelectorConfig(NamedTuple):
            head_size: int
            dtype: torch.dtype
            kv_cache_dtype: str
            block_size: int | None
            use_mla: bool = False
        """,
    "vllm/v1/attention/backend.py": """
        import torch
        from functools import cache
        class AttentionBackend:
            supported_dtypes = [torch.float16, torch.bfloat16]
            @classmethod
            def validate_configuration(cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, device_capability):
                reasons = []
                if dtype not in cls.supported_dtypes:
                    reasons.append("dtype not supported")
                if not cls.supports(head_size, device_capability):
                    reasons.append("not supported here")
                return reasons
            @classmethod
            def supports(cls, head_size, device_capability):
                return True
        """,
    "vllm/v1/attention/backends/registry.py": """
        import enum, importlib
        class AttentionBackendEnum(enum.Enum):
            FAST = "vllm.v1.attention.backends.fast.Fast"
            SLOW = "vllm.v1.attention.backends.slow.Slow"
            ROCM_ONE = "vllm.nowhere.Nothing"
            def get_path(self):
                return self.value
            def get_class(self):
                module, _, name = self.value.rpartition(".")
                return getattr(importlib.import_module(module), name)
        """,
    "vllm/v1/attention/backends/fast.py": """
        from vllm.v1.attention.backend import AttentionBackend
        class Fast(AttentionBackend):
            @classmethod
            def supports(cls, head_size, device_capability):
                return device_capability.major >= 9
        """,
    "vllm/v1/attention/backends/slow.py": """
        from vllm.v1.attention.backend import AttentionBackend
        class Slow(AttentionBackend):
            pass
        """,
}
QUESTION = {"capability": "9.0", "head_size": 128, "dtype": "bfloat16", "hf": {"index_topk": 2048}}


def write(root: Path, **changed: str) -> Path:
    """Write the engine under `root`; `fast="..."` replaces the body of Fast.supports, `fast_top` adds module lines."""
    files = {name: textwrap.dedent(text) for name, text in FILES.items()}
    if "fast" in changed:
        body = textwrap.indent(textwrap.dedent(changed["fast"]), " " * 8)
        files["vllm/v1/attention/backends/fast.py"] = (
            changed.get("fast_top", "")
            + "\nfrom vllm.v1.attention.backend import AttentionBackend\nclass Fast(AttentionBackend):\n"
            + "    @classmethod\n    def supports(cls, head_size, device_capability):\n"
            + body
        )
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root
