"""Our indexer inside a real vLLM, on CPU tensors: graphs are split at it, its steps' metadata, and what it picks.

Run by vllm_plugin.py with the python of a venv that has vLLM, with TRITON_INTERPRET=1 or without it, and with
ATTNFIT_VLLM_INDEXER=1. One JSON line a check; `wrong` lists what is not as promised. The logits it is held against are
written here, in float64.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any

import vllm_plugin_launch as launching  # before torch: it sets the environment

ANSWERS = launching.ANSWERS

import torch  # noqa: E402
from fake_gpu import install  # noqa: E402

install((8, 0))
import vllm_plugin_steps as batches  # noqa: E402
from vllm.plugins import load_general_plugins  # noqa: E402
from vllm_plugin_steps import REQUESTS, batch_of, common_metadata  # noqa: E402

MODELS = "attnfit.engines.vllm.plugin.indexer.models"
OPERATOR = "vllm::attnfit_sparse_indexer"
HEADS, DIM, TOPK, TOKENS, LONGEST = 8, 128, 12, 256, 4096
# Another batch: neighbours that are computed together, and a prefill longer than a tile.
TOGETHER = ((2, 30), (2, 9), (2, 41), (2, 2), (75, 100), (2, 17), (2, 60))
LAYER = "model.layers.0.indexer.k_cache"


class Case:
    """As much of vllm_plugin_forward's as a batch needs."""

    dtype, kv, width, block_size, ranks, interleave, seed = "float16", "auto", 576, 16, 1, 1, 3


def split() -> Iterator[str]:
    """vLLM copies the list into its configuration before it loads a model, which is when models.py is imported."""
    from vllm.config.compilation import CompilationConfig

    if MODELS in sys.modules:
        yield "the models are imported already"
    if CompilationConfig._attention_ops.count(OPERATOR) != 1:
        yield f"{OPERATOR} stands {CompilationConfig._attention_ops.count(OPERATOR)} times among the operators"


def breaks() -> Iterator[str]:
    """An operator met while a breakable CUDA graph is captured ends the piece, and is run anew at each replay."""
    import vllm.compilation.breakable_cudagraph as theirs

    recorded = []
    capture = types.SimpleNamespace(_capturing=True, add_eager=recorded.append)
    current, weak = theirs.BreakableCUDAGraphCapture.current, getattr(theirs, "_weak_ref_capture_arg", None)
    theirs.BreakableCUDAGraphCapture.current = classmethod(lambda cls: capture)
    theirs.weak_ref_tensor = theirs._weak_ref_capture_arg = lambda value: value
    in_context(None, None)
    try:
        one = torch.zeros(1, 1, 1)
        torch.ops.vllm.attnfit_sparse_indexer(one, one[0], one[0], torch.zeros(1, 1).int(), 1, "fp32", LAYER)
    finally:
        theirs.BreakableCUDAGraphCapture.current = current
        if weak is not None:
            theirs._weak_ref_capture_arg = weak
    if len(recorded) != 1:
        yield f"{len(recorded)} breaks recorded in place of one"


def in_context(step: Any, cache: torch.Tensor | None) -> None:
    import vllm.forward_context as theirs

    layers = {LAYER: types.SimpleNamespace(kv_cache=cache)}
    theirs._forward_context = types.SimpleNamespace(
        attn_metadata=None if step is None else {LAYER: step}, no_compile_layers=layers, virtual_engine=0,
        cudagraph_runtime_mode=None,
    )  # fmt: skip


def builder() -> Any:
    from attnfit.engines.vllm.plugin.indexer.steps import IndexerStepBuilder

    config = types.SimpleNamespace(
        model_config=types.SimpleNamespace(max_model_len=LONGEST),
        scheduler_config=types.SimpleNamespace(max_num_batched_tokens=TOKENS),
    )
    return IndexerStepBuilder(None, [LAYER], config, torch.device("cpu"))


def lengths_of_batch() -> list[int]:
    """How many keys each token of the batch sees: its own and those before it; padding sees none."""
    found = [length - tokens + 1 + n for tokens, length in REQUESTS for n in range(tokens)]
    return found + [0] * (batch_of(Case, 512, 2, TOPK).padded_tokens - len(found))


def steps() -> Iterator[str]:
    ours = builder()
    batch = batch_of(Case, 512, 2, TOPK)
    first = ours.build(0, common_metadata(batch))
    if first.lengths.tolist() != lengths_of_batch():
        yield f"lengths {first.lengths.tolist()}"
    if first.width != int(batch.lengths.max()):
        yield f"{first.width} columns for a batch whose longest request has {int(batch.lengths.max())} keys"
    starts = torch.tensor([0, 2, 4, 6, 6], dtype=torch.int32)
    uniform = {"query_start_loc": starts, "query_start_loc_cpu": starts, "num_reqs": 4, "num_actual_tokens": 8,
               "max_query_len": 2, "seq_lens": torch.tensor([9, 5, 2, 0], dtype=torch.int32)}  # fmt: skip
    for how, build in (("step", lambda c: ours.build(0, c)), ("capture", ours.build_for_cudagraph_capture)):
        step = build(common_metadata(batch, **uniform))
        if step.lengths.tolist() != [8, 9, 4, 5, 1, 2, 0, 0]:
            yield f"{how}: lengths {step.lengths.tolist()}"
        if step.lengths.data_ptr() != first.lengths.data_ptr():
            yield f"{how}: lengths lie elsewhere than the last step's"
    if step.width != LONGEST:
        yield f"a graph captured for {step.width} keys, and replayed for up to {LONGEST}"
    try:
        ours.build(0, common_metadata(batch, num_actual_tokens=TOKENS + 1))
        yield "a step of more tokens than there is room for is built"
    except ValueError:
        pass


def picks() -> Iterator[str]:
    """The whole operator on mixed batches with padding, at once and in parts, into a buffer wider than the top-k."""
    for requests in (REQUESTS, TOGETHER):
        batches.REQUESTS = requests
        try:
            yield from picked(requests)
        finally:
            batches.REQUESTS = REQUESTS


def picked(requests: tuple[tuple[int, int], ...]) -> Iterator[str]:
    from attnfit.engines.vllm.plugin.indexer import op

    batch = batch_of(Case, 512, 2, TOPK)
    random = torch.Generator().manual_seed(5)
    tokens, size = batch.padded_tokens, Case.block_size
    keys = {
        (request, position): torch.randn(DIM, generator=random).half()
        for request, (_, length) in enumerate(requests) for position in range(length)
    }  # fmt: skip
    q = torch.randn(tokens, HEADS, DIM, generator=random).half()
    weights = torch.rand(tokens, HEADS, generator=random)
    cache = torch.full((batch.blocks, size, DIM), float("nan"), dtype=torch.float16)
    k = torch.zeros(tokens, DIM, dtype=torch.float16)
    slots = torch.full((tokens,), -1, dtype=torch.int64)
    token, expected = 0, []
    for request, (new, length) in enumerate(requests):
        places = [int(batch.table[request, p // size]) * size + p % size for p in range(length)]
        for position in range(length - new):  # of earlier steps
            cache.view(-1, DIM)[places[position]] = keys[request, position]
        for position in range(length - new, length):
            k[token], slots[token] = keys[request, position], places[position]
            seen = torch.stack([keys[request, p] for p in range(position + 1)]).double()
            logits = weights[token].double() @ torch.relu(q[token].double() @ seen.T)
            expected.append(set(logits.topk(min(TOPK, position + 1)).indices.tolist()))
            token += 1
    expected += [set()] * (tokens - token)
    step = builder().build(0, common_metadata(batch, slot_mapping=slots))
    in_context(step, cache)
    for most in (op.LOGITS_BYTES, 4 * step.width * 33, 4 * step.width * 4, 1):
        op.LOGITS_BYTES = most  # one tile at least is taken at a time
        buffer = torch.full((TOKENS, TOPK + 4), 77, dtype=torch.int32)
        torch.ops.vllm.attnfit_sparse_indexer(q, k, weights, buffer, TOPK, "ue8m0", LAYER)
        for row, wanted in enumerate(expected):
            got = buffer[row].tolist()
            named = [p for p in got if p >= 0]
            if set(named) != wanted or len(named) != len(wanted) or set(got) - set(named) - {-1}:
                yield f"parts of {most} bytes, token {row}: {got}, not {sorted(wanted)}"


def main() -> None:
    load_general_plugins()
    checks = [split]
    from attnfit.engines.vllm.plugin.indexer import op

    op.define()
    op.define()
    if importlib.util.find_spec("vllm.compilation.breakable_cudagraph"):
        checks.append(breaks)
    for check in (*checks, steps, picks):
        try:
            wrong = list(check())
        except Exception:
            wrong = [traceback.format_exc()[-600:]]
        ANSWERS.write(json.dumps({"check": check.__name__, "wrong": wrong}) + "\n")


main()
sys.exit(0)
