"""Gated delta rule (Qwen3-Next, Qwen3.5), as the release's linear attention layer calls it: chunks for a prefill, the
recurrent kernels for a decode step. The convolution before it is passed over: its kernels are not asked about."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo  # makes folders when it is first wanted, which is refused while an engine's code runs

from attnfit.kernels.fit.asked import DTYPES, passed
from attnfit.kernels.fit.loading import told
from attnfit.kernels.fit.records import Case
from attnfit.witness import stubs

from .release import Release

LAYERS = (  # newest first: module, class
    ("vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn", "QwenGatedDeltaNetAttention"),
    ("vllm.model_executor.layers.mamba.gdn_linear_attn", "GatedDeltaNetAttention"),
    ("vllm.model_executor.models.qwen3_next", "Qwen3NextGatedDeltaNet"),
)
UNRESOLVED = "whether this release prefills with these kernels here, or with another library's, was not resolved"
NAME = "model.layers.0.linear_attn"


def cases(release: Release) -> Iterator[Case]:
    """A decode step of four requests; where Triton prefills, a prefill of two, and both in one batch."""
    layer = Layer(release)
    yield told("decode", lambda: layer.step(decode=4))
    backend, note = layer.prefill_backend()
    if backend == "triton":
        yield told("prefill", lambda: layer.step(prefill=2), note)
        yield told("decode and prefill together", lambda: layer.step(decode=2, prefill=2), note)


class Layer:
    """One linear attention layer of the release, without its projections and weights."""

    def __init__(self, release: Release) -> None:
        ask = self.ask = release.ask
        self.context = SimpleNamespace(attn_metadata=None, virtual_engine=0)
        overrides = {"causal_conv1d_fn": passed, "causal_conv1d_update": passed, "rearrange": _heads_apart}
        for name, _ in LAYERS:
            release.overrides[name] = {**overrides, "get_forward_context": lambda: self.context}
        self.module, kind = self._kind(release)
        self.metadata = release.source("vllm.v1.attention.backends.gdn_attn").GDNAttentionMetadata
        layer = self.layer = torch.nn.Module.__new__(kind)
        torch.nn.Module.__init__(layer)
        keys, values = ask["linear_num_key_heads"], ask["linear_num_value_heads"]
        key_dim, value_dim, width = (
            ask["linear_key_head_dim"],
            ask["linear_value_head_dim"],
            ask["linear_conv_kernel_dim"],
        )
        channels = 2 * keys * key_dim + values * value_dim
        self.channels, self.values, self.value_dim = channels, values, value_dim
        state_dtype = DTYPES[ask["state_dtype"]]
        vars(layer).update(
            prefix=NAME,
            tp_size=1,  # the head counts asked about are one rank's
            num_k_heads=keys,
            num_v_heads=values,
            head_k_dim=key_dim,
            head_v_dim=value_dim,
            key_dim=keys * key_dim,
            value_dim=values * value_dim,
            activation="silu",
            conv1d=SimpleNamespace(weight=torch.empty(channels, 1, width, dtype=ask.dtype), bias=None),
            A_log=torch.zeros(values, dtype=torch.float32),
            dt_bias=torch.zeros(values, dtype=ask.dtype),
            gdn_prefill_backend="triton",
            enable_packed_recurrent_decode=self._packed(release),
            kv_cache=(
                torch.empty(8, width - 1, channels, dtype=ask.dtype),
                torch.zeros(8, values, value_dim, key_dim, dtype=state_dtype),
            ),
        )
        if not self._takes_caches_directly():
            layer.kv_cache = (layer.kv_cache,)
        if hasattr(self.module, "ChunkGatedDeltaRule"):
            rule = self.module.ChunkGatedDeltaRule.forward_native
            vars(layer)["chunk_gated_delta_rule"] = lambda *args, **kwargs: rule(None, *args, **kwargs)

    @staticmethod
    def _kind(release: Release) -> tuple[Any, Any]:
        for name, kind in LAYERS:
            if release.has(name) and hasattr(module := release.source(name), kind):
                return module, getattr(module, kind)
        raise ImportError("this release has no gated delta rule layer")

    def prefill_backend(self) -> tuple[str, str]:
        """What the release resolves, and a note where it cannot be asked; then its Triton kernels are tried."""
        resolve = getattr(self.module, "_resolve_gdn_prefill_backend", None)
        if resolve is None:
            return "triton", "" if self.module.__name__ == LAYERS[-1][0] else UNRESOLVED
        ask = self.ask
        dims = {name: ask[name] for name in ("linear_key_head_dim", "linear_value_head_dim")}
        model = SimpleNamespace(hf_text_config=SimpleNamespace(**dims), dtype=ask.dtype)
        wanted = {"gdn_prefill_backend": ask.get("gdn_prefill_backend") or "auto"}
        try:
            return str(resolve(SimpleNamespace(additional_config=wanted, model_config=model))[1]), ""
        except stubs.StubLeak:
            return "triton", UNRESOLVED

    def _packed(self, release: Release) -> bool:
        try:
            return bool(release.source("vllm.envs").VLLM_ENABLE_FLA_PACKED_RECURRENT_DECODE)
        except AttributeError:
            return False

    def _takes_caches_directly(self) -> bool:
        """Until 0.17 the layer picked its cache by the engine's number."""
        code = (
            self.module.Qwen3NextGatedDeltaNet._forward_core.__code__ if self.module.__name__ == LAYERS[2][0] else None
        )
        return code is None or "virtual_engine" not in code.co_names

    def step(self, *, decode: int = 0, prefill: int = 0, tokens: int = 128) -> None:
        """A batch of `decode` requests with one token each, then `prefill` requests of `tokens`."""
        ask, requests, rows = self.ask, decode + prefill, decode + prefill * tokens
        starts = torch.tensor(
            [*range(decode + 1), *(decode + tokens * (n + 1) for n in range(prefill))], dtype=torch.int32
        )
        has_state = torch.ones(requests, dtype=torch.bool)
        states = torch.arange(requests, dtype=torch.int32)
        known = {
            "num_prefills": prefill,
            "num_prefill_tokens": prefill * tokens,
            "num_decodes": decode,
            "num_decode_tokens": decode,
            "num_spec_decodes": 0,
            "num_spec_decode_tokens": 0,
            "num_actual_tokens": rows,
            "has_initial_state": has_state if prefill else None,
            "non_spec_query_start_loc": starts,
            "non_spec_state_indices_tensor": states,
            "prefill_query_start_loc": starts[decode:] - decode,
            "prefill_state_indices": states[decode:],
            "prefill_has_initial_state": has_state[decode:],
        }
        fields = {field.name for field in dataclasses.fields(self.metadata)}
        self.context.attn_metadata = {NAME: self.metadata(**{k: v for k, v in known.items() if k in fields})}
        gates = torch.zeros(2, rows, self.values, dtype=ask.dtype)
        out = torch.zeros(rows, self.values, self.value_dim, dtype=ask.dtype)
        with torch.inference_mode():
            self.layer._forward_core(torch.zeros(rows, self.channels, dtype=ask.dtype), gates[0], gates[1], out)


def _heads_apart(x: torch.Tensor, pattern: str, *, d: int) -> torch.Tensor:
    """The one thing that the layer asks of einops."""
    if pattern != "l (h d) -> 1 l h d":
        stubs.leak(f"einops.rearrange({pattern!r})")
    return x.view(1, x.shape[0], -1, d)
