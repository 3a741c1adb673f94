"""Who answers a case of benchmarks/kernels.py: attnfit's kernels, and what else this machine has installed.

A contender says which cases it serves, and prepares a call whose inputs are laid out as it wants them, outside of what
is timed. Another project's function that cannot be imported or refuses the launch is a row with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from kernel_cases import BLOCK, D_V, Case, IndexLogits, IndexTopk, SparseMla

from attnfit.kernels import index_logits, index_logits_paged, index_topk, sparse_mla, sparse_mla_workspace
from attnfit.kernels.mla import device_of
from attnfit.kernels.mla.cost import Design, cost, design_of

Call = Callable[[], Any]


@dataclass(frozen=True)
class Contender:
    """`serves(case, capability)`: "" or why not; `prepare(case, inputs)`: the call; `finish` makes its result ours."""

    name: str
    who: str
    kind: str
    serves: Callable[[Any, tuple[int, int]], str]
    prepare: Callable[[Any, dict[str, Any]], Call]
    finish: Callable[[Any, Any], Any] = lambda case, found: found
    design: Callable[[SparseMla, tuple[int, int], int], Design] | None = None

    def moved(self, case: Case, capability: tuple[int, int], sms: int) -> int | None:
        """Bytes by design; None where the design is not known to us, or there is none for that GPU."""
        if self.design is None or not isinstance(case, SparseMla):
            return None
        try:
            return cost(case.shape, self.design(case, capability, sms)).moved
        except ValueError:
            return None


def needs(**wanted: tuple[Any, ...]) -> Callable[[Any, tuple[int, int]], str]:
    """Serves cases whose fields have one of these values; `major` is the capability's."""

    def serves(case: Any, capability: tuple[int, int]) -> str:
        for name, values in wanted.items():
            found = capability[0] if name == "major" else getattr(case, name)
            if found not in values:
                return f"only for {name} {' or '.join(map(str, values))}"
        return ""

    return serves


# attnfit


def _ours(implementation: str) -> Callable[[SparseMla, dict[str, Any]], Call]:
    def prepare(case: SparseMla, given: dict[str, Any]) -> Call:
        q, packed = given["q"], case.cache == "fp8_ds_mla"
        size = sparse_mla_workspace(case.tokens, case.heads, case.topk, packed=packed, device=device_of(q), d_v=D_V)
        if implementation == "virtual_blocks":
            size = max(size, 4 * case.tokens * case.heads * (D_V + 1))  # has partial results without a split too
        workspace = torch.empty(size, dtype=torch.uint8, device=q.device)
        out = torch.empty(case.tokens, case.heads, D_V, dtype=q.dtype, device=q.device)
        lse = torch.empty(case.tokens, case.heads, dtype=torch.float32, device=q.device)
        return lambda: sparse_mla(
            **given, d_v=D_V, implementation=implementation, workspace=workspace, out=out, lse=lse
        )

    return prepare


def _our_logits(case: IndexLogits, given: dict[str, Any]) -> Call:
    rows = torch.empty(case.tokens, case.keys, dtype=torch.float32, device=given["q"].device)
    if case.paged:
        return lambda: index_logits_paged(**given, max_len=case.keys, clean=False, out=rows, implementation="triton")
    return lambda: index_logits(**given, clean=False, out=rows, implementation="triton")


def _our_topk(case: IndexTopk, given: dict[str, Any]) -> Call:
    out = torch.empty(case.tokens, case.topk, dtype=torch.int32, device=given["logits"].device)
    return lambda: index_topk(**given, out=out, implementation="triton")


# others; the calls are written against the releases named in docs/kernels.md


def _vllm_triton(case: SparseMla, given: dict[str, Any]) -> Call:
    run = import_module("vllm.v1.attention.ops.xpu_mla_sparse").triton_bf16_mla_sparse_interface
    kv, indices = given["kv"].unsqueeze(1), given["indices"].unsqueeze(1)
    return lambda: run(given["q"], kv, indices, given["scale"], d_v=D_V, block_dpe=case.d_r)


def _flashmla() -> Any:
    try:
        return import_module("flash_mla")
    except ImportError:
        return import_module("vllm.v1.attention.ops.flashmla")


def _padded(q: torch.Tensor) -> torch.Tensor:
    """Heads filled up to a multiple of 64."""
    return torch.nn.functional.pad(q, (0, 0, 0, -q.shape[1] % 64))


def _flashmla_prefill(case: SparseMla, given: dict[str, Any]) -> Call:
    run = _flashmla().flash_mla_sparse_fwd
    q, kv, indices = _padded(given["q"]), given["kv"].unsqueeze(1), given["indices"].unsqueeze(1)
    return lambda: run(q, kv, indices, given["scale"], D_V)


def _flashmla_decode(case: SparseMla, given: dict[str, Any]) -> Call:
    library = _flashmla()
    q = _padded(given["q"]).unsqueeze(1)
    cache = given["kv"].view(-1, BLOCK, 1, given["kv"].shape[-1])
    indices = given["indices"].unsqueeze(1)
    plan, _ = library.get_mla_metadata()
    return lambda: library.flash_mla_with_kvcache(
        q, cache, None, None, D_V, plan, softmax_scale=given["scale"], is_fp8_kvcache=True, indices=indices
    )


def _flashinfer(case: SparseMla, given: dict[str, Any]) -> Call:
    run = import_module("flashinfer.mla").trtllm_batch_decode_with_kv_cache_mla
    device, packed = given["q"].device, case.cache == "fp8_ds_mla"
    cache = given["kv"].view(-1, 1, BLOCK, given["kv"].shape[-1])
    lengths = torch.full((case.tokens,), case.topk, dtype=torch.int32, device=device)
    more: dict[str, Any] = {"kv_scale_format": "arbitrary_fp32"} if packed else {}
    if not case.d_r:
        more["sparse_mla_top_k_lens"] = lengths
    asked = {
        "query": given["q"].unsqueeze(1),
        "kv_cache": cache,
        "workspace_buffer": torch.zeros(394 << 20, dtype=torch.int8, device=device),
        "qk_nope_head_dim": 128 if case.d_r else 256,
        "kv_lora_rank": D_V,
        "qk_rope_head_dim": case.d_r,
        "block_tables": given["indices"].unsqueeze(1),
        "seq_lens": None if packed else lengths,
        "max_seq_len": case.topk,
        "bmm1_scale": given["scale"],
        "bmm2_scale": 1.0,
        "sparse_mla_top_k": case.topk,
    }
    return lambda: run(**asked, **more)


def _flash_attention(case: SparseMla, given: dict[str, Any]) -> Call:
    run = import_module("vllm.vllm_flash_attn.flash_attn_interface").flash_attn_varlen_func
    latent = given["kv"][:, :D_V].unsqueeze(1).unsqueeze(1)
    starts = torch.arange(case.tokens + 1, dtype=torch.int32, device=given["q"].device)
    lengths = torch.full((case.tokens,), case.topk, dtype=torch.int32, device=given["q"].device)
    asked = {
        "q": given["q"][..., D_V:].contiguous(),
        "k": given["kv"][:, D_V:].unsqueeze(1).unsqueeze(1),
        "v": latent,
        "q_v": given["q"][..., :D_V].contiguous(),
        "max_seqlen_q": 1,
        "cu_seqlens_q": starts,
        "max_seqlen_k": case.topk,
        "seqused_k": lengths,
        "block_table": given["indices"],
        "softmax_scale": given["scale"],
        "causal": True,
        "fa_version": 3,
    }
    return lambda: run(**asked)


def _deep_gemm(case: IndexLogits, given: dict[str, Any]) -> Call:
    """fp32 scales. Newer releases return the compressed logits, take (q, None), and come inside vLLM's wheel."""
    try:
        library = import_module("deep_gemm")
    except ImportError:
        library = import_module("vllm.third_party.deep_gemm")
    newer = hasattr(library, "fp8_fp4_mqa_logits")
    q = (given["q"], None) if newer else given["q"]
    if not case.paged:
        rest = (given["k"], given["k_scale"]), given["weights"], given["start"], given["end"]
        if newer:
            return lambda: library.fp8_fp4_mqa_logits(q, *rest, case.keys)
        return lambda: library.fp8_mqa_logits(q, *rest, clean_logits=False)
    run = library.fp8_fp4_paged_mqa_logits if newer else library.fp8_paged_mqa_logits
    lengths = given["context_lens"].view(-1, 1) if newer else given["context_lens"]
    sms = torch.cuda.get_device_properties(given["weights"].device).multi_processor_count
    plan = library.get_paged_mqa_logits_metadata(lengths, BLOCK, sms)
    cache = given["k_cache"].unsqueeze(2)
    rest = given["weights"], lengths, given["block_table"], plan, case.keys
    return lambda: run(q, cache, *rest, **({} if newer else {"clean_logits": False}))


def _torch_topk(case: IndexTopk, given: dict[str, Any]) -> Call:
    return lambda: given["logits"].topk(case.topk, dim=1, sorted=False)


def _result_of(place: int, lse: int | None) -> Callable[[SparseMla, Any], Any]:
    """(out, lse or None) from a tuple's places, without padded heads and the query's own dimension."""

    def finish(case: SparseMla, found: Any) -> Any:
        parts = found if isinstance(found, tuple) else (found,)
        out = parts[place].view(case.tokens, -1, D_V)[:, : case.heads]
        return out, None if lse is None else parts[lse].reshape(case.tokens, -1)[:, : case.heads]

    return finish


def _anything(case: Any, capability: tuple[int, int]) -> str:
    return ""


def _designed(implementation: str) -> Callable[[SparseMla, tuple[int, int], int], Design]:
    return lambda case, capability, sms: design_of(implementation, case.shape, capability, sms)


NATIVE, PACKED, BF16, TURNED = ("native",), ("fp8_ds_mla",), ("bfloat16",), (64,)
CONTENDERS = (
    Contender("latent", "attnfit", "sparse_mla", _anything, _ours("latent"), design=_designed("latent")),
    Contender("virtual_blocks", "attnfit (baseline)", "sparse_mla", needs(cache=NATIVE), _ours("virtual_blocks"),
              design=_designed("virtual_blocks")),
    Contender("xpu_mla_sparse", "vLLM's Triton kernel", "sparse_mla", needs(cache=NATIVE, dtype=BF16), _vllm_triton,
              _result_of(0, 2), design=lambda case, capability, sms: Design(16, value_again=True)),
    Contender("flash_mla_sparse_fwd", "FlashMLA", "sparse_mla", needs(cache=NATIVE, dtype=BF16, major=(9, 10)),
              _flashmla_prefill, _result_of(0, 2)),
    Contender("flash_mla_with_kvcache", "FlashMLA", "sparse_mla", needs(cache=PACKED, dtype=BF16, major=(9, 10)),
              _flashmla_decode, _result_of(0, 1)),
    Contender("trtllm_batch_decode_with_kv_cache_mla", "FlashInfer", "sparse_mla", needs(cache=NATIVE, major=(10,)),
              _flashinfer, _result_of(0, None)),
    Contender("trtllm_batch_decode_with_kv_cache_mla", "FlashInfer", "sparse_mla",
              needs(cache=PACKED, dtype=BF16, major=(12,)), _flashinfer, _result_of(0, None)),
    Contender("flash_attn_varlen_func", "vLLM's FlashAttention 3", "sparse_mla",
              needs(cache=NATIVE, d_r=TURNED, major=(9,)), _flash_attention, _result_of(0, None)),
    Contender("index_logits", "attnfit", "index_logits", _anything, _our_logits),
    Contender("fp8_mqa_logits", "DeepGEMM", "index_logits", needs(major=(9, 12)), _deep_gemm),
    Contender("index_topk", "attnfit", "index_topk", _anything, _our_topk),
    Contender("torch.topk", "PyTorch", "index_topk", _anything, _torch_topk, lambda case, found: found[1]),
)  # fmt: skip
