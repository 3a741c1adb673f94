"""One release, loaded so that its attention backends can be called: the platform answers for the GPU asked about."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from attnfit.engines.vllm.witness.facts import Facts
from attnfit.kernels.fit import asked
from attnfit.kernels.fit.asked import DTYPES, FP8
from attnfit.kernels.fit.loading import KernelLoader, OneAsk
from attnfit.witness import fakes, stubs


class Ask(asked.Facts):
    """What is asked."""

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self["dtype"]]

    @property
    def cache_dtype(self) -> str:
        """The name of the cache's dtype as the backends know it."""
        return str(self.get("kv_cache_dtype") or "auto")

    @property
    def cache_torch_dtype(self) -> torch.dtype:
        """The dtype of the cache's elements as a backend sees them."""
        name = self.cache_dtype
        return self.dtype if name == "auto" else FP8[name] if name in FP8 else DTYPES[name]


def scales() -> SimpleNamespace:
    """What a backend reads of an attention layer: its scales, as they are without calibration. Releases until 0.21
    compare one of the floats before they launch; the kernels are compiled for tensors of any value."""
    tensors = {f"_{of}_scale": torch.ones(()) for of in "qkv"}
    return SimpleNamespace(**tensors, **{f"{name}_float": 1.0 for name in tensors})


class Release(asked.Loaded):
    """The modules of the release at `ask["root"]`, under the circumstances of the ask."""

    def __init__(self, ask: Mapping[str, Any]) -> None:
        self.ask = Ask(ask)
        facts = Facts(OneAsk(), f"{self.ask['root']}/vllm")
        facts.env = self.ask.get("env") or {}
        facts.variables = self.ask.get("variables") or {}
        facts._capability = tuple(self.ask["capability"])
        logger = fakes.StubModule("vllm.logger", init_logger=lambda *args, **kwargs: fakes.Logger())
        self.loader = KernelLoader(self.ask["root"], package="vllm", facts=facts, given={"vllm.logger": logger})
        self.overrides = self.loader.overrides
        self.overrides["vllm.triton_utils.importing"] = {"HAS_TRITON": True}
        self.overrides["vllm.platforms"] = {"__getattr__": self._platform_attribute}
        self.overrides["vllm.envs"] = {"__getattr__": self._variable}
        self._platform: Any = None

    def _platform_attribute(self, name: str) -> Any:
        if name != "current_platform":
            raise AttributeError(name)
        if self._platform is None:
            self._platform = self._make_platform()
        return self._platform

    def _make_platform(self) -> Any:
        """The release's own CUDA platform; what it would ask the driver is answered from the ask, or unknown."""
        ask = self.ask
        capability = self.source("vllm.platforms.interface").DeviceCapability
        base = self.source("vllm.platforms.cuda").CudaPlatformBase

        def told(name: str, key: str) -> Any:
            def answer(cls: Any, *args: Any, **kwargs: Any) -> Any:
                if ask.get(key) is None:
                    stubs.leak(f"current_platform.{name}(): {key} is not given")
                return ask[key]

            return classmethod(answer)

        space = {
            "get_device_capability": classmethod(lambda cls, device_id=0: capability(*ask["capability"])),
            "is_pin_memory_available": classmethod(lambda cls: False),  # of host copies; no kernel's business
            "num_compute_units": told("num_compute_units", "sms"),
            "get_device_name": told("get_device_name", "device_name"),
            "get_cuda_runtime_major": told("get_cuda_runtime_major", "cuda_major"),
            "get_device_total_memory": told("get_device_total_memory", "memory_bytes"),
        }
        return type("AskedPlatform", (base,), space)()

    def _variable(self, name: str) -> Any:
        """vllm.envs.NAME as the release makes it of the stated environment variables."""
        table = self.source("vllm.envs").demand("environment_variables")
        if name not in table:
            raise AttributeError(f"module 'vllm.envs' has no attribute {name!r}")
        return table[name]()
