"""What vLLM gets for the packages whose contents it asks before it serves. Standard library only."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from attnfit.witness import fakes, stubs
from attnfit.witness.fake_torch import torch_module
from attnfit.witness.fakes import KnownModule, Logger, StubModule

from .facts import Facts


def requests_module(facts: Facts) -> types.ModuleType:
    """requests, asked for NVIDIA's artifactory alone."""

    def get(url: Any, **kwargs: Any) -> Any:
        if "artifactory" not in url:
            stubs.leak(f"requests.get({url!r})")
        if not facts.fact("artifactory"):
            raise OSError("artifactory not reachable")
        return types.SimpleNamespace(status_code=200, ok=True)

    return StubModule("requests", get=get)


def flashinfer_modules(facts: Facts) -> list[types.ModuleType]:
    """The parts of flashinfer that engines look for by name before they use it."""

    def wrapper(name: str) -> Any:
        if name != "BatchMLAPagedAttentionWrapper":
            raise AttributeError(name)
        if facts.fact("flashinfer_sm90_nope_mla"):

            def run(self: Any, *, ckv_scale_arr: Any = None) -> None: ...
        else:

            def run(self: Any) -> None: ...  # type: ignore[misc]

        return type(name, (), {"run": run})

    mla = types.ModuleType("flashinfer.mla")
    vars(mla)["__getattr__"] = wrapper
    names = ("trtllm_batch_decode_sparse_mla_dsv4", "trtllm_batch_decode_with_kv_cache_mla")
    return [
        mla,
        KnownModule("flashinfer.decode", facts, dict.fromkeys(names, "flashinfer_sparse_mla")),
        KnownModule("flashinfer.autotuner", facts, {"autotune": "flashinfer_sparse_mla"}),
    ]


def outside(facts: Facts, import_module: Callable[..., Any], home: Callable[[str], Any]) -> dict[str, types.ModuleType]:
    """Module name -> replacement, for everything that is not vLLM's source."""
    mega = dict.fromkeys(("fused_norm_rope_attn_rope_cast_decode", "permute_q_b_proj"), "flashmla_mega")
    ops = StubModule("torch.ops", _flashmla_C=KnownModule("torch.ops._flashmla_C", facts, mega))
    torch = torch_module(facts, ops=ops)
    logger = StubModule("vllm.logger", init_logger=lambda *args, **kwargs: Logger())
    modules = [torch, torch.cuda, requests_module(facts), *flashinfer_modules(facts), logger]
    return fakes.outside(facts, import_module, home) | {module.__name__: module for module in modules}
