"""flash-linear-attention's gated delta rule, from an unpacked or installed package (`fla-core` holds it).

`cases(ask, capability)` is what the child calls. `ask`: root (the folder that holds `fla/`), dtype, state_dtype,
linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, linear_value_head_dim. The package's own entry points
are called as its layers call them for inference: chunks for a prompt of several sequences, the recurrence for a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # makes folders when it is first wanted, which is refused while the package's code runs

from attnfit.kernels.fit.loading import REAL, KernelLoader, OneAsk, adapted, told
from attnfit.kernels.fit.records import Case, Unknown
from attnfit.witness import fakes
from attnfit.witness.facts import Facts

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
CHUNK, RECURRENT = "fla.ops.gated_delta_rule.chunk", "fla.ops.gated_delta_rule.fused_recurrent"
NOTE = "the package's own Triton kernels, as with FLA_DISABLE_BACKEND_DISPATCH=1"
NEEDED = (
    "root",
    "dtype",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
)


class _Facts(Facts):
    """Nothing that is not asked for by name is installed beside it."""

    package = "fla"
    always = frozenset({*REAL, "einops", "transformers"})

    def present(self, module: str) -> bool:
        top = module.partition(".")[0]
        return bool(self.env.get(top, top in self.always))


def cases(ask: Mapping[str, Any], capability: str) -> Iterator[Case]:
    """A prompt of two sequences through the chunked kernels, a step of four through the recurrent ones."""
    missing = [name for name in NEEDED if ask.get(name) is None]
    if missing:
        raise Unknown(f"{missing[0]} is not given")
    return adapted(lambda: _cases(ask, tuple(int(n) for n in capability.split("."))))


def _cases(ask: Mapping[str, Any], capability: tuple[int, ...]) -> Iterator[Case]:
    facts = _Facts(OneAsk(), str(Path(ask["root"]) / "fla"))
    facts.env, facts.variables = ask.get("env") or {}, ask.get("variables") or {}
    facts._capability = capability
    backends = fakes.StubModule("fla.backends", dispatch=_triton_itself)
    loader = KernelLoader(ask["root"], package="fla", facts=facts, given={"fla.backends": backends})
    yield told("chunk", lambda: _chunk(loader, ask), NOTE)
    yield told("recurrent", lambda: _recurrent(loader, ask), NOTE)


def _triton_itself(entry: Any) -> Any:
    """What the package's `dispatch` does where FLA_DISABLE_BACKEND_DISPATCH=1 keeps other libraries out."""
    return entry if callable(entry) else lambda function: function


def _tensors(ask: Mapping[str, Any], tokens: int) -> dict[str, torch.Tensor]:
    dtype, heads = DTYPES[ask["dtype"]], ask["linear_num_value_heads"]
    keys = ask["linear_num_key_heads"]
    return {
        "q": torch.zeros(1, tokens, keys, ask["linear_key_head_dim"], dtype=dtype),
        "k": torch.zeros(1, tokens, keys, ask["linear_key_head_dim"], dtype=dtype),
        "v": torch.zeros(1, tokens, heads, ask["linear_value_head_dim"], dtype=dtype),
        "g": torch.zeros(1, tokens, heads, dtype=torch.float32),
        "beta": torch.zeros(1, tokens, heads, dtype=dtype),
    }


def _state(ask: Mapping[str, Any], sequences: int) -> torch.Tensor:
    shape = (sequences, ask["linear_num_value_heads"], ask["linear_key_head_dim"], ask["linear_value_head_dim"])
    return torch.zeros(shape, dtype=DTYPES[ask.get("state_dtype") or "float32"])


def _chunk(loader: KernelLoader, ask: Mapping[str, Any]) -> None:
    call = loader.import_module(CHUNK).chunk_gated_delta_rule
    with torch.inference_mode():
        call(
            **_tensors(ask, 256),
            initial_state=_state(ask, 2),
            output_final_state=True,
            cu_seqlens=torch.tensor([0, 128, 256], dtype=torch.int64),
            use_qk_l2norm_in_kernel=True,
        )


def _recurrent(loader: KernelLoader, ask: Mapping[str, Any]) -> None:
    call = loader.import_module(RECURRENT).fused_recurrent_gated_delta_rule
    with torch.inference_mode():
        call(
            **_tensors(ask, 4),
            initial_state=_state(ask, 4),
            output_final_state=True,
            cu_seqlens=torch.arange(5, dtype=torch.int64),
            use_qk_l2norm_in_kernel=True,
        )
