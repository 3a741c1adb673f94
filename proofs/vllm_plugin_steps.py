"""The batches of vllm_plugin_forward.py, the release's own slots for them, and what must hold from step to step."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, fields
from typing import Any

import torch
import vllm_plugin_launch as launching

# (tokens of this step, length with them) of each request; the last is padding, as in a CUDA graph.
REQUESTS = ((21, 21), (1, 90), (3, 47), (5, 130), (1, 1), (0, 0))
PADDING = 3  # tokens


@dataclass
class Batch:
    block_size: int
    dtype: torch.dtype
    random: torch.Generator
    blocks: int
    table: torch.Tensor  # int32 [requests, blocks of the longest]
    starts: torch.Tensor  # int32 [requests + 1]
    lengths: torch.Tensor  # int32 [requests]
    requests_of_tokens: list[int]
    padded_tokens: int
    positions: torch.Tensor  # int32 [padded tokens, TOPK]: what the indexer found
    q: torch.Tensor  # [padded tokens, H, width]
    keys: list[tuple[int, int]]  # (request, position) of every key
    latent: torch.Tensor  # [keys, 512]
    rope: torch.Tensor  # [keys, d_r]

    def spec(self, backend: Any, case: Any) -> Any:
        """The release's own spec of a layer's cache."""
        from vllm.v1.kv_cache_interface import MLAAttentionSpec

        packed = case.kv == "fp8_ds_mla"
        offered = {"block_size": case.block_size, "num_kv_heads": 1, "head_size": case.width,
                   "dtype": torch.uint8 if packed else self.dtype,
                   "cache_dtype_str": case.kv if packed else None}  # fmt: skip
        known = {field.name for field in fields(MLAAttentionSpec)}
        return MLAAttentionSpec(**{k: v for k, v in offered.items() if k in known})


def batch_of(case: Any, d_v: int, heads: int, topk: int) -> Batch:
    random = torch.Generator().manual_seed(case.seed)
    dtype = getattr(torch, case.dtype)
    lengths = [length for _, length in REQUESTS]
    starts = [0]
    for tokens, _ in REQUESTS:
        starts.append(starts[-1] + tokens)
    of_tokens = [r for r, (tokens, _) in enumerate(REQUESTS) for _ in range(tokens)]
    padded = starts[-1] + PADDING
    # One block of the table holds block_size positions of each rank.
    needed = [-(-length // (case.block_size * case.ranks)) for length in lengths]
    order = torch.randperm(sum(needed) + 5, generator=random, dtype=torch.int32)
    table = torch.zeros(len(REQUESTS), max(needed) + 2, dtype=torch.int32)
    taken = 0
    for request, count in enumerate(needed):
        table[request, :count] = order[taken : taken + count]
        taken += count
    positions = torch.full((padded, topk), -1, dtype=torch.int32)
    for token, request in enumerate(of_tokens):
        tokens, length = REQUESTS[request]
        seen = length - tokens + token - starts[request] + 1
        named = torch.randperm(seen, generator=random)[:topk]
        columns = torch.randperm(topk, generator=random)[: len(named)]  # gaps of -1 in between
        positions[token, columns.sort().values] = named.to(torch.int32)
    positions[starts[-1]] = torch.arange(topk, dtype=torch.int32) % 3  # padding tokens keep what was there
    if case.ranks > 1:  # a token all of whose keys lie on the first rank
        kept = positions[1]
        positions[1] = torch.where((kept // case.interleave) % case.ranks == 0, kept, -1)
    keys = [(request, p) for request, length in enumerate(lengths) for p in range(length)]

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(dtype)

    return Batch(
        case.block_size, dtype, random, len(order), table, torch.tensor(starts, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32), of_tokens, padded, positions,
        values(padded, heads, case.width) * 1.5, keys, values(len(keys), d_v), values(len(keys), case.width - d_v),
    )  # fmt: skip


def common_metadata(batch: Batch, **changes: Any) -> Any:
    """The release's own CommonAttentionMetadata."""
    kind = launching.first_of(
        "vllm.v1.attention.backend:CommonAttentionMetadata",
        "vllm.v1.attention.backends.utils:CommonAttentionMetadata",
    )
    starts, lengths = batch.starts, batch.lengths
    offered: dict[str, Any] = {
        "query_start_loc": starts, "query_start_loc_cpu": starts.clone(), "seq_lens": lengths,
        "num_reqs": len(lengths), "num_actual_tokens": batch.padded_tokens,
        "max_query_len": int((starts[1:] - starts[:-1]).max()), "max_seq_len": int(lengths.max()),
        "block_table_tensor": batch.table,
        "slot_mapping": torch.full((batch.padded_tokens,), -1, dtype=torch.int64), "causal": True,
        "_seq_lens_cpu": lengths.clone(), **changes,
    }  # fmt: skip
    known = {field.name for field in fields(kind)}
    return kind(**{k: v for k, v in offered.items() if k in known})


def sharded_slots(case: Any, batch: Batch) -> tuple[list[torch.Tensor], str]:
    """The slot of every key on each rank, -1 where it lies on another, and whose answer that is.

    By the formula of the release's block table, and by that block table itself where it runs here; the two must agree.
    """
    formula = []
    request = torch.tensor([r for r, _ in batch.keys])
    position = torch.tensor([p for _, p in batch.keys])
    size, turn = case.block_size * case.ranks, case.interleave * case.ranks
    within = position % size
    place = batch.table[request, position // size].long() * case.block_size
    slot = place + within // turn * case.interleave + within % case.interleave
    for rank in range(case.ranks):
        formula.append(torch.where(within // case.interleave % case.ranks == rank, slot, -1))
    try:
        theirs = [_their_slots(case, batch, rank, request, position) for rank in range(case.ranks)]
    except Exception as error:
        print(f"the release's block table does not run here: {error!r}", file=sys.stderr)
        return formula, "formula"
    if not all(torch.equal(a, b) for a, b in zip(formula, theirs, strict=True)):
        raise AssertionError("the release's block table gives other slots than the formula")
    return theirs, "the release's block table"


def _their_slots(case: Any, batch: Batch, rank: int, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Of the release's BlockTable; from 0.30.0 on of its kernel alone, whose launcher the interpreter cannot serve."""
    import vllm.v1.worker.block_table as theirs

    keys = len(batch.keys)
    starts = torch.cumsum(torch.cat([torch.zeros(1, dtype=torch.int32), batch.lengths]), 0).to(torch.int32)
    if hasattr(theirs, "ComputeSlotMappingKernel"):
        kernel = theirs.ComputeSlotMappingKernel.kernel
        found = torch.zeros(keys, dtype=torch.int64)
        offered = {"num_tokens": keys, "max_num_tokens": keys, "query_start_loc_ptr": starts,
                   "positions_ptr": position, "block_table_ptr": batch.table,
                   "block_table_stride": batch.table.stride(0), "block_size": case.block_size,
                   "slot_mapping_ptr": found, "KV_CACHE_BLOCK_SIZE": case.block_size, "BLOCKS_PER_KV_BLOCK": 1,
                   "TOTAL_CP_WORLD_SIZE": case.ranks, "TOTAL_CP_RANK": rank,
                   "CP_KV_CACHE_INTERLEAVE_SIZE": case.interleave, "PAD_ID": -1, "BLOCK_SIZE": 1024}  # fmt: skip
        names = inspect.signature(kernel.fn).parameters
        kernel[(len(batch.lengths) + 1,)](**{name: offered[name] for name in names})
        return found
    table = launching.called(
        theirs.BlockTable,
        block_size=case.block_size,
        max_num_reqs=len(batch.lengths),
        max_num_blocks_per_req=batch.table.shape[1],
        max_num_batched_tokens=keys,
        pin_memory=False,
        device=torch.device("cpu"),
        kernel_block_size=case.block_size,
        cp_kv_cache_interleave_size=case.interleave,
    )
    table.dcp_world_size, table.dcp_rank = case.ranks, rank
    for row, blocks in enumerate(batch.table.tolist()):
        table.add_row(blocks, row)
    table.commit_block_table(len(batch.lengths))
    if "req_indices" in inspect.signature(table.compute_slot_mapping).parameters:
        table.compute_slot_mapping(request.numpy(), position.numpy())
        return torch.from_numpy(table.slot_mapping.np[:keys].copy())
    table.compute_slot_mapping(len(batch.lengths), starts, position)
    return table.slot_mapping.gpu[:keys].clone()


def more_checks(case: Any, config: Any) -> dict[str, Any]:
    """Addresses of a step's metadata, capture and drafting, and the workspace: {"wrong": [...], "checks": number}."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    backend = AttentionBackendEnum["CUSTOM"].get_class()
    config.parallel_config.cp_kv_cache_interleave_size = 1
    wrong = [*_addresses(backend, case, config), *_workspace(backend, case, config)]
    return {"wrong": wrong, "checks": 9}


def _addresses(backend: Any, case: Any, config: Any) -> list[str]:
    wrong = []
    batch = batch_of(case, 512, 2, 96)
    builder = backend.get_builder_cls()(batch.spec(backend, case), ["layer"], config, torch.device("cpu"))
    support = backend.get_builder_cls().get_cudagraph_support(config, builder.kv_cache_spec)
    if support.name != "UNIFORM_BATCH":
        wrong.append(f"CUDA graphs: {support}")
    first = builder.build(0, common_metadata(batch)).req_id_per_token
    # A later step: four requests of two tokens each, as a graph of a speculative decode has them, one of them padding.
    starts = torch.tensor([0, 2, 4, 6, 6], dtype=torch.int32)
    uniform = {"query_start_loc": starts, "query_start_loc_cpu": starts, "num_reqs": 4, "num_actual_tokens": 8,
               "max_query_len": 2, "seq_lens": torch.tensor([9, 9, 9, 0], dtype=torch.int32)}  # fmt: skip
    for build in (
        lambda common: builder.build(0, common),
        builder.build_for_cudagraph_capture,
        lambda common: builder.build_for_drafting(common, 0),
    ):
        found = build(common_metadata(batch, **uniform)).req_id_per_token
        if found.data_ptr() != first.data_ptr():
            wrong.append("the requests of a step's tokens lie elsewhere than the last step's")
        if found.tolist() != [0, 0, 1, 1, 2, 2, 3, 3]:
            wrong.append(f"requests of tokens {found.tolist()}")
    return wrong


def _workspace(backend: Any, case: Any, config: Any) -> list[str]:
    """With the release's own manager on the CPU: taken at construction, and never more of it after the lock."""
    import vllm.v1.worker.workspace as theirs
    import vllm_plugin_forward as forward
    from fake_gpu import OnCpu

    from attnfit.engines.vllm.plugin import workspace as ours

    wrong = []
    theirs._manager = None
    launching.called(theirs.init_workspace_manager, device=torch.device("cpu"), num_ubatches=2)
    manager = theirs.current_workspace_manager()
    buffer = torch.zeros(forward.TOKENS, 2048, dtype=torch.int32)
    was = torch.cuda.is_available
    torch.cuda.is_available = lambda: True
    try:
        with OnCpu():
            impl = forward.implementation(backend, case, buffer)
            needed = impl._workspace
            taken = ours.get(needed)
            theirs.dbo_current_ubatch_id = lambda: 1  # the other micro-batch
            impl.reserve_workspace()
            theirs.dbo_current_ubatch_id = lambda: 0
    finally:
        torch.cuda.is_available = was
    if needed <= 0:
        wrong.append("no workspace is reserved")
    manager.lock()
    for ubatch in (0, 1):
        theirs.dbo_current_ubatch_id = lambda ubatch=ubatch: ubatch
        again = ours.get(needed)
        if ubatch == 0 and again.data_ptr() != taken.data_ptr():
            wrong.append("the workspace has moved")
    theirs.dbo_current_ubatch_id = lambda: 0
    if forward.INTERPRETED:
        wrong += _split_calls(forward, impl, case, buffer)
    return wrong


def _split_calls(forward: Any, impl: Any, case: Any, buffer: torch.Tensor) -> list[str]:
    """Calls of few tokens over many keys, which keep partial results: none asks for more than was reserved."""
    from attnfit.kernels.mla import workspace as partials

    asked = []
    carve = partials.carve
    import attnfit.kernels.mla.api as api

    def watched(memory: Any, *rest: Any) -> Any:
        asked.append(memory is not None)
        return carve(memory, *rest)

    api.carve = watched
    cache = torch.zeros(32, 64, case.width, dtype=getattr(torch, case.dtype))
    table = torch.arange(32, dtype=torch.int32).view(1, 32)
    positions = torch.arange(2048, dtype=torch.int32)
    for tokens in (1, 2, 3):
        buffer[:tokens] = positions
        metadata = type("Step", (), {
            "req_id_per_token": torch.zeros(tokens, dtype=torch.int32), "block_table": table, "block_size": 64,
            "cp_kv_cache_interleave_size": 1,
        })  # fmt: skip
        q = torch.randn(tokens, forward.HEADS, case.width).to(cache.dtype)
        out, lse = impl.forward_mqa(q, cache, metadata, None)
        if out.any() or not torch.isfinite(lse).all():
            return ["values of an empty cache are not zero"]
    api.carve = carve
    return [] if asked and all(asked) else [f"calls that used the workspace: {asked}"]
