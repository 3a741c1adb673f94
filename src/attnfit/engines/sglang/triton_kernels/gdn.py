"""Gated delta rule (Qwen3-Next, Qwen3.5), as the release's linear attention backend calls it: chunks for an extend, the
recurrent kernels for a decode step. The convolution before it is passed over: its kernels are not asked about."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo  # makes folders when it is first wanted, which is refused while an engine's code runs

from attnfit.kernels.fit.asked import passed
from attnfit.kernels.fit.loading import told
from attnfit.kernels.fit.records import Case

from .release import Release

KERNEL = "sglang.srt.layers.attention.linear.kernels.gdn_triton"  # since 0.5.10
BACKEND = "sglang.srt.layers.attention.hybrid_linear_attn_backend"  # until 0.5.9
HELD = ("layer_id", "conv_weights", "bias", "activation", "A_log", "dt_bias")  # by a layer, and passed until 0.5.8
GATES = (
    "sglang.kernels.ops.attention.linear.fused_gdn_gating",
    "sglang.kernels.ops.attention.fla.fused_gdn_gating",
    "sglang.srt.layers.attention.fla.fused_gdn_gating",
)


def cases(release: Release) -> Iterator[Case]:
    """An extend of two requests and a decode step of four, as far as they run on Triton (`steps`)."""
    layer = Layer(release) if release.has(KERNEL) else OlderLayer(release)
    steps = release.ask.get("steps") or ("prefill", "decode")
    if "prefill" in steps:
        yield told("extend", lambda: layer.extend(2, 128))
    if "decode" in steps:
        yield told("decode", lambda: layer.decode(4))


class Shapes:
    """The tensors of one linear attention layer on one rank."""

    def __init__(self, release: Release) -> None:
        ask = release.ask
        self.release, self.dtype = release, ask.dtype()
        self.keys, self.values = ask["linear_num_key_heads"], ask["linear_num_value_heads"]
        self.key_dim, self.value_dim = ask["linear_key_head_dim"], ask["linear_value_head_dim"]
        self.q_dim, self.v_dim = self.keys * self.key_dim, self.values * self.value_dim
        self.A_log = torch.zeros(self.values, dtype=torch.float32)
        self.dt_bias = torch.zeros(self.values, dtype=self.dtype)
        self.states = torch.zeros(8, self.values, self.value_dim, self.key_dim, dtype=ask.dtype("state_dtype"))

    def new(self, *shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=self.dtype)

    def mixed(self, rows: int) -> torch.Tensor:
        return self.new(rows, 2 * self.q_dim + self.v_dim)


class Layer(Shapes):
    """Since 0.5.10: one class holds what the backend calls."""

    def __init__(self, release: Release) -> None:
        super().__init__(release)
        self.kernel = release.source(KERNEL).TritonGDNKernel()

    def extend(self, requests: int, tokens: int) -> None:
        """`requests` requests of `tokens` new tokens each."""
        rows = requests * tokens
        q, k = self.new(1, rows, self.keys, self.key_dim), self.new(1, rows, self.keys, self.key_dim)
        gating = self.release.source(*GATES).fused_gdn_gating
        g, beta = gating(self.A_log, self.new(rows, self.values), self.new(rows, self.values), self.dt_bias)
        self.kernel.extend(
            q=q,
            k=k,
            v=self.new(1, rows, self.values, self.value_dim),
            g=g,
            beta=beta,
            ssm_states=self.states,
            cache_indices=torch.arange(requests, dtype=torch.int32),
            query_start_loc=torch.arange(0, rows + 1, tokens, dtype=torch.int32),
        )

    def decode(self, requests: int) -> None:
        """One token for each request."""
        given: dict[str, Any] = {
            "a": self.new(requests, self.values),
            "b": self.new(requests, self.values),
            "A_log": self.A_log,
            "dt_bias": self.dt_bias,
            "ssm_states": self.states,
            "cache_indices": torch.arange(requests, dtype=torch.int32),
        }
        mixed = self.mixed(requests)
        if getattr(self.kernel, "supports_packed_decode", False):
            sizes = {"scale": self.key_dim**-0.5, "num_v_heads": self.values, "head_v_dim": self.value_dim}
            self.kernel.packed_decode(mixed_qkv=mixed, **sizes, **given)
            return
        q, k, v = torch.split(mixed, [self.q_dim, self.q_dim, self.v_dim], dim=-1)
        self.kernel.decode(
            q=q.view(1, requests, self.keys, self.key_dim),
            k=k.view(1, requests, self.keys, self.key_dim),
            v=v.view(1, requests, self.values, self.value_dim),
            query_start_loc=torch.arange(requests + 1, dtype=torch.int32),
            **given,
        )


class OlderLayer(Shapes):
    """Until 0.5.9: the backend's own methods, on a backend without a model runner."""

    def __init__(self, release: Release) -> None:
        super().__init__(release)
        release.overrides[BACKEND] = {"causal_conv1d_fn": passed, "causal_conv1d_update": passed}
        module = release.source(BACKEND)
        self.kind = module.GDNAttnBackend
        cache = SimpleNamespace(conv=(self.new(8, 2 * self.q_dim + self.v_dim, 3),), temporal=self.states)
        self.pool = SimpleNamespace(mamba2_layer_cache=lambda layer_id: cache)
        self.layer = SimpleNamespace(
            layer_id=0,
            q_dim=self.q_dim,
            k_dim=self.q_dim,
            v_dim=self.v_dim,
            num_q_heads=self.keys,
            num_k_heads=self.keys,
            num_v_heads=self.values,
            head_q_dim=self.key_dim,
            head_k_dim=self.key_dim,
            head_v_dim=self.value_dim,
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            conv_weights=None,
            bias=None,
            activation="silu",
        )
        self.update = release.source(
            "sglang.srt.layers.attention.fla.fused_sigmoid_gating_recurrent"
        ).fused_sigmoid_gating_delta_rule_update

    def _backend(self, starts: torch.Tensor) -> Any:
        return SimpleNamespace(
            req_to_token_pool=self.pool,
            forward_metadata=SimpleNamespace(
                query_start_loc=starts,
                mamba_cache_indices=torch.arange(len(starts) - 1, dtype=torch.int32),
                retrieve_next_token=None,
                retrieve_next_sibling=None,
                retrieve_parent_token=None,
            ),
            _kernel_func=self.update,
            _track_mamba_state_extend=_nothing,
            _track_mamba_state_decode=_nothing,
        )

    def extend(self, requests: int, tokens: int) -> None:
        """`requests` requests of `tokens` new tokens each."""
        rows = requests * tokens
        batch = SimpleNamespace(
            forward_mode=SimpleNamespace(is_target_verify=lambda: False),
            extend_prefix_lens=torch.zeros(requests, dtype=torch.int32),
            extend_seq_lens_cpu=[tokens] * requests,
            mamba_track_mask=None,
        )
        backend = self._backend(torch.arange(0, rows + 1, tokens, dtype=torch.int32))
        gates = self.new(2, rows, self.values)
        self._call(self.kind.forward_extend, backend, batch, mixed_qkv=self.mixed(rows), a=gates[0], b=gates[1])

    def decode(self, requests: int) -> None:
        """One token for each request."""
        backend = self._backend(torch.arange(requests + 1, dtype=torch.int32))
        gates, batch = self.new(2, requests, self.values), SimpleNamespace(batch_size=requests)
        self._call(self.kind.forward_decode, backend, batch, mixed_qkv=self.mixed(requests), a=gates[0], b=gates[1])

    def _call(self, method: Any, backend: Any, batch: Any, **inputs: torch.Tensor) -> None:
        """As the release's model does: until 0.5.8 what the layer holds went in as arguments, and q, k, v unused."""
        if "mixed_qkv" in inspect.signature(method).parameters:
            method(backend, self.layer, batch, **inputs)
            return
        held = {
            **{name: getattr(self.layer, name) for name in HELD},
            "key_dim": self.q_dim,
            "value_dim": self.v_dim,
            "attention_tp_size": 1,  # the sizes are one rank's
            "head_k_dim": self.key_dim,
            "head_v_dim": self.value_dim,
            "seq_len": len(inputs["a"]),
        }
        method(backend, None, None, None, self.layer, batch, **held, **inputs)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Copies states for the prefix cache; no Triton kernel of attention."""
