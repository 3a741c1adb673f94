"""The judge of the rule books: a real, installed vLLM answers selector questions, without a GPU.

Run it with the python of a venv that has vLLM, questions as JSON lines on stdin, answers as JSON lines on stdout:

    LD_LIBRARY_PATH=STUB venv/bin/python proofs/real_selector.py < questions.jsonl > answers.jsonl

STUB holds a libcuda.so.1 without a driver behind it (proofs/libcuda_stub.c). What is faked: the platform object
(capability, name, memory), torch's device queries, tensors made on "cuda", and the current engine config. Every
verdict and every text is the engine's own. Tried with 0.16.0, 0.20.2, 0.23.0, 0.28.0 and 0.33.0.

A question has the fields of the engine's AttentionSelectorConfig, and capability, num_heads, num_kv_heads, hf
(attributes of hf_text_config; null: no model config) and backend (asked for by name).
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import json
import os
import sys
import types
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"
ANSWERS = os.dup(1)
os.dup2(2, 1)  # whatever the engine prints while it loads must not stand among the answers

import torch  # noqa: E402

NOT_CUDA = ("ROCM", "XPU", "CPU", "AMX", "TORCH_SDPA", "CUSTOM", "NO_ATT", "IPEX", "HPU")
capability_now = (9, 0)


def fake_torch() -> None:
    """Device queries without a driver; a tensor on "cuda" becomes one element on the CPU."""

    def properties(_device: Any = 0) -> types.SimpleNamespace:
        major, minor = capability_now
        return types.SimpleNamespace(
            multi_processor_count=132, total_memory=80 << 30, major=major, minor=minor, name="fake",
            is_integrated=False, warp_size=32, L2_cache_size=50 << 20, max_threads_per_multi_processor=2048,
            shared_memory_per_block_optin=227 << 10,
        )  # fmt: skip

    torch.cuda.get_device_properties = properties
    torch.cuda.get_device_capability = lambda *_, **__: capability_now
    torch.cuda.get_device_name = lambda *_, **__: "fake"
    torch.cuda.is_available = lambda: False
    torch.cuda.current_device = lambda: 0

    def on_cpu(make: Any) -> Any:
        def made(*args: Any, **kwargs: Any) -> Any:
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"], args = "cpu", (1,)
            return make(*args, **kwargs)

        return made

    for name in ("empty", "zeros", "ones", "tensor"):
        setattr(torch, name, on_cpu(getattr(torch, name)))


fake_torch()

import vllm.platforms as platforms  # noqa: E402
import vllm.platforms.cuda as cuda  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402


class FakePlatform(cuda.CudaPlatformBase):
    """The engine's CUDA platform with a pretended GPU."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> Any:
        return DeviceCapability(*capability_now)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "fake"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 80 << 30

    @classmethod
    def device_count(cls) -> int:
        return 1

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return 132

    @classmethod
    def is_fully_connected(cls, device_ids: list[int]) -> bool:
        return False


platforms._current_platform = platforms.current_platform = FakePlatform()

# Only now: modules keep the platform that they find when they are imported.
import vllm.config.vllm as vllm_config_module  # noqa: E402
import vllm.utils.flashinfer as flashinfer_utils  # noqa: E402
from vllm.config import ParallelConfig  # noqa: E402

if hasattr(flashinfer_utils, "has_nvidia_artifactory"):
    flashinfer_utils.has_nvidia_artifactory = lambda: True


def first_of(*paths: str) -> Any:
    """The first of "module:attribute" that this release has; names moved between releases."""
    for path in paths:
        module, _, attribute = path.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            continue
    return None


Backends = first_of(
    "vllm.v1.attention.backends.registry:AttentionBackendEnum", "vllm.attention.backends.registry:AttentionBackendEnum"
)
SelectorConfig = first_of(
    "vllm.v1.attention.selector:AttentionSelectorConfig", "vllm.attention.selector:AttentionSelectorConfig"
)
AttentionConfig = first_of("vllm.config:AttentionConfig")
PARALLEL = ParallelConfig()
ATTENTION = AttentionConfig() if AttentionConfig else types.SimpleNamespace(backend=None, use_trtllm_attention=None)


def load_backends() -> dict[str, Any]:
    loaded: dict[str, Any] = {}
    for member in Backends:
        if not any(word in member.name for word in NOT_CUDA):
            try:
                loaded[member.name] = member.get_class()
            except Exception as error:
                loaded[member.name] = f"{type(error).__name__}: {error}"
    return loaded


LOADED = load_backends()
NAME_OF = {}
for _member in Backends:
    try:
        NAME_OF.setdefault(_member.get_path(), _member.name)
    except Exception:
        continue


def engine_config(q: dict[str, Any]) -> types.SimpleNamespace:
    """As much of VllmConfig as the predicates of any release read."""
    model = None
    if q.get("hf") is not None:
        hf = types.SimpleNamespace(**q["hf"])
        heads, kv_heads = q.get("num_heads") or 16, q.get("num_kv_heads") or 8
        model = types.SimpleNamespace(
            hf_text_config=hf, hf_config=hf, dtype=getattr(torch, q["dtype"]), model="x", max_model_len=8192,
            get_head_size=lambda: q["head_size"], get_num_attention_heads=lambda _=None: heads,
            get_num_kv_heads=lambda _=None: kv_heads, is_diffusion=False, rswa_window=None, is_hybrid=False,
            is_mm_prefix_lm=bool(q.get("use_mm_prefix")), use_mla=bool(q.get("use_mla")),
        )  # fmt: skip
    block_size = q.get("block_size")
    return types.SimpleNamespace(
        model_config=model, parallel_config=PARALLEL, attention_config=ATTENTION,
        cache_config=types.SimpleNamespace(
            cache_dtype=q.get("kv_cache_dtype") or "auto", block_size=block_size,
            user_specified_block_size=block_size is not None,
        ),
        speculative_config=None, kv_transfer_config=None, quant_config=None, device_config=None, lora_config=None,
        scheduler_config=types.SimpleNamespace(max_num_seqs=128, max_num_batched_tokens=8192),
        compilation_config=types.SimpleNamespace(static_forward_context={}),
    )  # fmt: skip


seen: dict[str, Any] = {}
_valid_backends = FakePlatform.get_valid_backends.__func__


def _spied(cls: Any, *args: Any, **kwargs: Any) -> Any:
    seen["valid_backends"] = _valid_backends(cls, *args, **kwargs)
    return seen["valid_backends"]


_spied.__wrapped__ = _valid_backends  # type: ignore[attr-defined]  # keeps the release's signature visible
FakePlatform.get_valid_backends = classmethod(_spied)


def answer(q: dict[str, Any]) -> dict[str, Any]:
    """What this release does with one question: chosen, valid, refused, every backend's texts, and what it raises."""
    vllm_config_module._current_vllm_config = engine_config(q)
    capability = DeviceCapability(*capability_now)
    fields = {
        "head_size": q["head_size"],
        "dtype": getattr(torch, q["dtype"]),
        "kv_cache_dtype": q.get("kv_cache_dtype", "auto"),
        "block_size": q.get("block_size"),
    }
    config = SelectorConfig(**fields, **{f: q[f] for f in SelectorConfig._fields if f in q and f not in fields})

    def heads(function: Any) -> dict[str, Any]:
        return {"num_heads": q.get("num_heads")} if "num_heads" in inspect.signature(function).parameters else {}

    seen.clear()
    out: dict[str, Any] = {"chosen": None}
    try:
        path = FakePlatform.get_attn_backend_cls(
            Backends[q["backend"]] if q.get("backend") else None,
            attn_selector_config=config,
            **heads(FakePlatform.get_attn_backend_cls),
        )
        out["chosen"] = NAME_OF.get(path, path)
    except Exception as error:
        out["engine_message"] = f"{type(error).__name__}: {error}"
    try:
        if "valid_backends" not in seen:
            FakePlatform.get_valid_backends(
                device_capability=capability, attn_selector_config=config, **heads(FakePlatform.get_valid_backends)
            )
        valid, refused = seen["valid_backends"]
        out["valid"] = [(item.backend if hasattr(item, "backend") else item[0]).name for item in valid]
        out["refused"] = {b.name: list(item[1] if isinstance(item, tuple) else item) for b, item in refused.items()}
    except Exception as error:  # a predicate raises; then the engine has no lists
        out["raises"] = f"{type(error).__name__}: {error}"
    out["every_backend"] = {}
    for name, backend in LOADED.items():
        if hasattr(backend, "validate_configuration"):
            try:
                texts = backend.validate_configuration(device_capability=capability, **config._asdict())
                out["every_backend"][name] = texts
            except Exception as error:
                out.setdefault("backends_that_raise", {})[name] = f"{type(error).__name__}: {error}"
    return out


def capability_of(q: dict[str, Any]) -> tuple[int, int]:
    major, minor = q["capability"].split(".")
    return int(major), int(minor)


def answer_all(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One child process per capability: the engine remembers verdicts, and they must not outlive a capability."""
    global capability_now
    answers: list[dict[str, Any]] = [{} for _ in questions]
    for capability in sorted({capability_of(q) for q in questions}):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            capability_now = capability
            for found in gc.get_objects():
                if type(found) is functools._lru_cache_wrapper and str(found.__module__).startswith("vllm"):
                    found.cache_clear()
            with os.fdopen(writer, "w") as out:
                for index, q in enumerate(questions):
                    if capability_of(q) == capability:
                        try:
                            got = answer(q)
                        except Exception as error:
                            got = {"oracle_error": f"{type(error).__name__}: {error}"}
                        out.write(json.dumps([index, got]) + "\n")
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as lines:
            for line in lines:
                index, got = json.loads(line)
                answers[index] = got
        os.wait()
    return answers


def main() -> None:
    questions = [json.loads(line) for line in sys.stdin if line.strip()]
    with os.fdopen(ANSWERS, "w") as out:
        for q, got in zip(questions, answer_all(questions), strict=True):
            out.write(json.dumps({"config": q, **got}) + "\n")


if __name__ == "__main__":  # vllm_plugin_choice.py asks the same judge twice
    main()
