"""An engine in miniature that can be learned: two backends, a priority list, the two refusals.

Our own text; only the names are those that the explorer and the witness look for.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

FILES = {
    "vllm/__init__.py": "",
    "vllm/envs.py": "environment_variables = {'VLLM_BATCH_INVARIANT': lambda: False}\n",
    "vllm/config/__init__.py": "from vllm.config.vllm import get_current_vllm_config\n",
    "vllm/config/cache.py": "from typing import Literal\nCacheDType = Literal['auto', 'fp8']\n",
    "vllm/config/vllm.py": """
        _current_vllm_config = None
        def get_current_vllm_config():
            return _current_vllm_config
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
        from vllm.v1.attention.backends.registry import AttentionBackendEnum
        from .interface import Platform
        def order(capability):
            both = [AttentionBackendEnum.FAST, AttentionBackendEnum.SLOW]
            return both if capability.major >= 9 else both[::-1]
        class CudaPlatformBase(Platform):
            @classmethod
            def get_valid_backends(cls, device_capability, attn_selector_config):
                valid, refused = [], {}
                for rank, backend in enumerate(order(device_capability)):
                    try:
                        reasons = backend.get_class().validate_configuration(
                            device_capability=device_capability, **attn_selector_config._asdict())
                    except ImportError:
                        reasons = ["ImportError"]
                    if reasons:
                        refused[backend] = reasons
                    else:
                        valid.append((backend, rank))
                return valid, refused
            @classmethod
            def get_attn_backend_cls(cls, selected_backend, attn_selector_config):
                capability = cls.get_device_capability()
                attn_selector_config = attn_selector_config._replace(block_size=None)
                if selected_backend is not None:
                    try:
                        reasons = selected_backend.get_class().validate_configuration(
                            device_capability=capability, **attn_selector_config._asdict())
                    except ImportError:
                        reasons = ["ImportError"]
                    if reasons:
                        raise ValueError(f"{selected_backend} cannot: {reasons}")
                    return selected_backend.get_path()
                valid, refused = cls.get_valid_backends(capability, attn_selector_config)
                if not valid:
                    shown = "{" + ", ".join(f"{b.name}: [{', '.join(r)}]" for b, r in refused.items()) + "}"
                    raise ValueError(f"nothing for {attn_selector_config!r}: {shown}")
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
        class AttentionBackend:
            supported_dtypes = [torch.float16, torch.bfloat16]
            @classmethod
            def supports_dtype(cls, dtype):
                return dtype in cls.supported_dtypes
            @classmethod
            def supports_head_size(cls, head_size):
                return True
            @classmethod
            def supports_block_size(cls, block_size):
                return block_size is None or block_size % 16 == 0
            @classmethod
            def supports_combination(cls, head_size, use_mla, device_capability):
                return None
            @classmethod
            def validate_configuration(cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, device_capability):
                reasons = []
                if not cls.supports_head_size(head_size):
                    reasons.append("head_size not supported")
                if not cls.supports_dtype(dtype):
                    reasons.append("dtype not supported")
                if not cls.supports_block_size(block_size):
                    reasons.append("block_size not supported")
                why = cls.supports_combination(head_size, use_mla, device_capability)
                if why is not None:
                    reasons.append(why)
                return reasons
        """,
    "vllm/v1/attention/backends/registry.py": """
        import enum, importlib
        class AttentionBackendEnum(enum.Enum):
            FAST = "vllm.v1.attention.backends.fast.Fast"
            SLOW = "vllm.v1.attention.backends.slow.Slow"
            def get_path(self):
                return self.value
            def get_class(self):
                module, _, name = self.value.rpartition(".")
                return getattr(importlib.import_module(module), name)
        """,
    "vllm/v1/attention/backends/slow.py": """
        from vllm.v1.attention.backend import AttentionBackend
        class Slow(AttentionBackend):
            @classmethod
            def supports_head_size(cls, head_size):
                return head_size in (64, 128) or head_size > 512
        """,
}
FAST = """
    from vllm.v1.attention.backend import AttentionBackend
    from vllm.config import get_current_vllm_config
    import torch
    class Fast(AttentionBackend):
        @classmethod
        def supports_combination(cls, head_size, use_mla, device_capability):
"""
COMBINATION = """
            if device_capability.major < 9:
                return f"needs 9.0, not {device_capability}"
            config = get_current_vllm_config().model_config
            if use_mla and config is not None:
                rank = getattr(config.hf_text_config, "kv_lora_rank", None)
                if rank not in (256, 512):
                    return f"kv_lora_rank 256 or 512, got {rank}"
            return None
"""


def write(root: Path, combination: str = COMBINATION) -> Path:
    """Write the engine under `root`; `combination` is the body of FAST's supports_combination."""
    body = textwrap.indent(textwrap.dedent(combination).strip("\n"), " " * 8)
    files = {**FILES, "vllm/v1/attention/backends/fast.py": textwrap.dedent(FAST) + body + "\n"}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text) if name != "vllm/v1/attention/backends/fast.py" else text, "utf-8")
    return root
