"""Our implementation on CPU tensors inside a real vLLM: its own configuration, base classes, block tables and metadata.

Run by vllm_plugin.py with the python of a venv that has vLLM, with TRITON_INTERPRET=1 or without it (then the float64
path of our kernels runs). A batch is a prefill, decodes of one and of three tokens, a padding request and padding
tokens. Latents go through `do_kv_cache_update` into blocks that lie further apart than they are long, whose gaps hold
NaN; what comes out is compared with attention in float64 that is written here. Under decode context parallelism each
rank has a cache of its own, and the release's own function puts the ranks' answers together.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from typing import Any, NamedTuple

import vllm_plugin_launch as launching  # before torch: it sets the environment

ANSWERS = launching.ANSWERS

import torch  # noqa: E402
from fake_gpu import install  # noqa: E402

install((9, 0))  # where every release's own indexer has kernels, so that nothing refuses for want of one

from vllm_plugin_steps import Batch, batch_of, common_metadata, sharded_slots  # noqa: E402

from attnfit.kernels import interpreter  # noqa: E402

INTERPRETED = interpreter.interpreting()
HEADS, D_V, TOKENS, TOPK = 5, 512, 256, 96
# The worst relative error of a token's head of 512 columns, and of an LSE. The cast alone makes 2e-4 in float16.
OUT = {"float16": 1e-3, "bfloat16": 8e-3} if INTERPRETED else {"float16": 4e-4, "bfloat16": 3.2e-3}
LSE = 1e-4


class Case(NamedTuple):
    dtype: str
    kv: str
    width: int
    block_size: int
    ranks: int = 1
    interleave: int = 1
    joined: bool = False  # the query as one tensor
    shared: bool = False  # a layer without an indexer, that has the buffer alone
    seed: int = 0


class Indexer:
    """As much of vLLM's indexer as an implementation is given."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.topk_indices_buffer = buffer


def configuration(dtype: str, model: str) -> Any:
    flags = ["--dtype", dtype, "--attention-backend", "CUSTOM", "--max-model-len", "4096",
             "--max-num-batched-tokens", str(TOKENS), "--max-num-seqs", "8", "--enforce-eager"]  # fmt: skip
    return launching.configure({"model": model, "flags": flags}, {})


def implementation(backend: Any, case: Case, buffer: torch.Tensor) -> Any:
    """Constructed as MLAAttention does it."""
    rope = case.width - D_V
    return backend.get_impl_cls()(
        num_heads=HEADS, head_size=case.width, scale=case.width**-0.5, num_kv_heads=1, alibi_slopes=None,
        sliding_window=None, kv_cache_dtype=case.kv, logits_soft_cap=None, attn_type="decoder",
        kv_sharing_target_layer_name=None, q_lora_rank=1536, kv_lora_rank=D_V, qk_nope_head_dim=128,
        qk_rope_head_dim=rope, qk_head_dim=128 + rope, v_head_dim=128, kv_b_proj=None,
        indexer=None if case.shared else Indexer(buffer),
        **({"topk_indices_buffer": buffer} if case.shared else {}),
    )  # fmt: skip


def cache_of(case: Case, blocks: int) -> torch.Tensor:
    """[blocks, block_size, width], with a gap after each block that is no multiple of a row; NaN everywhere."""
    packed = case.kv == "fp8_ds_mla"
    width = 656 if packed else case.width
    stride = case.block_size * width + 176
    if packed:
        memory = torch.full((blocks * stride,), 0xFF, dtype=torch.uint8)
    else:
        memory = torch.full((blocks * stride,), math.nan, dtype=getattr(torch, case.dtype))
    return memory.as_strided((blocks, case.block_size, width), (stride, width, 1))


def row_values(case: Case, cache: torch.Tensor, block: int, offset: int) -> torch.Tensor:
    """float64 [width]: what a row of the cache says, by the definition of its layout."""
    row = cache[block, offset]
    if case.kv != "fp8_ds_mla":
        return row.double()
    codes = row[:D_V].clone().view(torch.float8_e4m3fn).double()
    scales = row[D_V : D_V + 16].clone().view(torch.float32).double().repeat_interleave(128)
    return torch.cat([codes * scales, row[D_V + 16 :].clone().view(torch.bfloat16).double()])


def write(impl: Any, case: Case, batch: Batch, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """All keys of the batch, in a random order, some steps of them, with tokens in between that have no slot."""
    order = torch.randperm(len(slots), generator=batch.random)
    for part in order.split(37):
        latent, rope, slot = batch.latent[part], batch.rope[part], slots[part]
        padded = torch.cat([slot, torch.tensor([-1, -1])])
        impl.do_kv_cache_update(
            torch.cat([latent, torch.full_like(latent[:2], 7.0)]),
            torch.cat([rope, torch.full_like(rope[:2], 7.0)]).unsqueeze(1),
            cache, padded, case.kv, torch.ones(()),
        )  # fmt: skip


def attended(q: torch.Tensor, rows: list[torch.Tensor], scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """One token in float64: q [H, width], the rows it sees -> out [H, 512], lse [H]."""
    if not rows:
        return torch.zeros(q.shape[0], D_V, dtype=torch.float64), torch.full((q.shape[0],), -math.inf).double()
    keys = torch.stack(rows)
    logits = q.double() @ keys.T * scale
    return torch.softmax(logits, -1) @ keys[:, :D_V], torch.logsumexp(logits, -1)


def differ(out: torch.Tensor, lse: torch.Tensor, real: torch.Tensor, real_lse: torch.Tensor) -> tuple[float, float]:
    """Worst relative error of a head's output, worst error of an LSE; both infinite where one side is not a number."""
    empty = real_lse == -math.inf
    if not torch.equal(empty, lse == -math.inf) or not torch.isfinite(out).all() or out[empty].any():
        return math.inf, math.inf
    size = real.norm(dim=-1)
    apart = (out.double() - real).norm(dim=-1)[~empty] / size[~empty]
    lses = (lse.double() - real_lse)[~empty].abs()
    return float(apart.max()) if apart.numel() else 0.0, float(lses.max()) if lses.numel() else 0.0


def ask(case: Case, config: Any) -> dict[str, Any]:
    """One batch through builder, writer and forward, over all ranks; figures and what is wrong."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    backend = AttentionBackendEnum["CUSTOM"].get_class()
    config.parallel_config.cp_kv_cache_interleave_size = case.interleave
    batch = batch_of(case, D_V, HEADS, TOPK)
    common = common_metadata(batch)
    builder = backend.get_builder_cls()(batch.spec(backend, case), ["layer"], config, torch.device("cpu"))
    metadata = builder.build(0, common)
    wrong = []
    expected = batch.requests_of_tokens
    if metadata.req_id_per_token[: len(expected)].tolist() != expected:
        wrong.append(f"requests of tokens: {metadata.req_id_per_token.tolist()}")
    if metadata.num_decode_tokens != batch.padded_tokens or metadata.prefill is not None:
        wrong.append("not all tokens are MQA tokens")
    buffer = torch.full((TOKENS, TOPK + 32), -1, dtype=torch.int32)
    buffer[: batch.padded_tokens, :TOPK] = batch.positions
    tokens, scale = len(expected), case.width**-0.5
    full, outs, lses, worst = [], [], [], [0.0, 0.0]
    slots, their_own = sharded_slots(case, batch)
    every_key: dict[tuple[int, int], torch.Tensor] = {}
    written = 0
    for rank in range(case.ranks):
        stale = torch.full_like(buffer, 3)
        impl = implementation(backend, case, buffer if case.shared else stale)
        if not case.shared:
            impl._indexer.topk_indices_buffer = buffer  # as for a draft model, after construction
        impl.dcp_world_size, impl.dcp_rank = case.ranks, rank
        cache = cache_of(case, batch.blocks)
        write(impl, case, batch, cache, slots[rank])
        q: Any = batch.q if case.joined else (batch.q[..., :D_V], batch.q[..., D_V:])
        out, lse = impl.forward_mqa(q, cache, metadata, None)
        values = {}
        for key, slot in zip(batch.keys, slots[rank].tolist(), strict=True):
            if slot >= 0:
                values[key] = row_values(case, cache, *divmod(slot, case.block_size))
                written += 1
        every_key.update(values)
        for token, request in enumerate(expected):
            named = [p for p in batch.positions[token].tolist() if p >= 0]
            real = attended(batch.q[token], [values[request, p] for p in named if (request, p) in values], scale)
            found = differ(out[token], lse[token], *real)
            worst = [max(pair) for pair in zip(worst, found, strict=True)]
        outs.append(out[:tokens])
        lses.append(lse[:tokens])
        if out.dtype != getattr(torch, case.dtype) or lse.dtype != torch.float32:
            wrong.append(f"out is {out.dtype}, lse {lse.dtype}")
    if written != len(batch.keys) or len(every_key) != len(batch.keys):
        wrong.append(f"{written} keys written, {len(every_key)} of {len(batch.keys)} of them once")
    wrong += stored_wrong(case, batch, every_key)
    for token, request in enumerate(expected):
        named = [p for p in batch.positions[token].tolist() if p >= 0]
        full.append(attended(batch.q[token], [every_key[request, p] for p in named], scale))
    merged_by = "one rank"
    if case.ranks > 1:
        merged, merged_lse, merged_by = merge(outs, lses)
        whole = torch.stack([f[0] for f in full]), torch.stack([f[1] for f in full])
        worst = [max(pair) for pair in zip(worst, differ(merged, merged_lse, *whole), strict=True)]
    if worst[0] > OUT[case.dtype] or worst[1] > LSE:
        wrong.append(f"off by {worst}")
    return {"out": worst[0], "lse": worst[1], "wrong": wrong, "merged_by": merged_by, "slots": their_own}


def stored_wrong(case: Case, batch: Batch, stored: dict[tuple[int, int], torch.Tensor]) -> list[str]:
    """What the cache holds against what was to be written: exactly, or packed within half a step of its codes."""
    for index, key in enumerate(batch.keys):
        latent, rope = batch.latent[index].double(), batch.rope[index].double()
        found = stored[key]
        if case.kv != "fp8_ds_mla":
            if not torch.equal(found, torch.cat([latent, rope])):
                return [f"key {key} is not what was written"]
            continue
        peak = latent.view(4, 128).abs().amax(1).repeat_interleave(128)
        near = (found[:D_V] - latent).abs() <= torch.maximum(latent.abs() / 16, peak / 448 / 512 * 1.01)
        if not near.all() or not torch.equal(found[D_V:], rope.to(torch.bfloat16).double()):
            return [f"key {key} is further away than its codes are apart"]
    return []


def merge(outs: list[torch.Tensor], lses: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, str]:
    """The ranks' answers put together, by the release's own kernel where the interpreter runs it."""
    together = torch.logsumexp(torch.stack(lses).double(), 0)
    if INTERPRETED:
        kernel = launching.first_of(
            "vllm.v1.attention.ops.dcp:CorrectAttnCPOutKernel",
            "vllm.v1.attention.ops.common:_correct_attn_cp_out_kernel",
        )
        kernel = getattr(kernel, "kernel", kernel)
        merged = torch.zeros_like(outs[0], dtype=torch.float32)
        gathered, found = torch.stack(lses), torch.empty_like(lses[0])
        for rank, out in enumerate(outs):
            corrected = out.float()
            grid = (*out.shape[:2], 1)
            strides = (*corrected.stride(), *gathered.stride())
            constants = {"HEAD_DIM": out.shape[2], "N_ROUNDED": len(lses), "IS_BASE_E": True}
            kernel[grid](corrected, corrected, gathered, found, *strides, rank, **constants)
            merged += corrected
        return merged, found, "the release's own kernel"
    weights = torch.exp(torch.stack(lses).double() - together).nan_to_num(0.0)
    return (torch.stack(outs).double() * weights.unsqueeze(-1)).sum(0), together.float(), "the formula"


def main() -> None:
    items = [json.loads(line) for line in sys.stdin if line.strip()]
    if INTERPRETED:
        interpreter.patch()
    from vllm.config.vllm import set_current_vllm_config
    from vllm_plugin_steps import more_checks

    for dtype in sorted({item["dtype"] for item in items}):
        if os.fork() == 0:
            torch.set_num_threads(1)
            config = configuration(dtype, items[0]["model"])
            with set_current_vllm_config(config):
                for item in items:
                    if item["dtype"] != dtype:
                        continue
                    case = Case(**{k: v for k, v in item.items() if k in Case._fields})
                    run = more_checks if item.get("steps") else ask
                    try:
                        row = run(case, config)
                    except Exception as error:
                        frames = traceback.extract_tb(error.__traceback__)[-4:]
                        where = [f"{f.filename.split('site-packages/')[-1]}:{f.lineno} {f.name}" for f in frames]
                        row = {"wrong": [f"{type(error).__name__}: {error} at {where}"]}
                    ANSWERS.write(json.dumps({**item, **row}) + "\n")
            ANSWERS.flush()
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main()
