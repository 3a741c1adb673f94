"""What benchmarks/kernels.py asks: shapes, their random inputs, what each must move and compute, and what is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, ClassVar

import torch

from attnfit.kernels.indexer.cache import open_cache
from attnfit.kernels.indexer.reference import index_logits_paged_reference, index_logits_reference
from attnfit.kernels.mla.cost import Shape, flops, least
from attnfit.kernels.mla.reference import sparse_mla_reference
from attnfit.kernels.mla.rows import pack

D_V = 512
BLOCK = 64  # rows of a cache block
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
DECODE = 64  # calls of up to so many tokens are timed in a CUDA graph
# Relative L2 error against float64 that counts as right: four times what the cast of the result alone makes.
TOLERANCE = {"float16": 8e-4, "bfloat16": 7e-3, "e4m3": 1e-3}


@dataclass(frozen=True)
class SparseMla:
    """One call of sparse MLA: every index names a row, distinct within a token."""

    kind: ClassVar[str] = "sparse_mla"
    tokens: int
    heads: int
    dtype: str
    cache: str  # "native" | "fp8_ds_mla"
    d_r: int = 64
    topk: int = 2048
    cache_rows: int = 1 << 17

    @property
    def shape(self) -> Shape:
        return Shape(self.tokens, self.heads, self.topk, D_V, self.d_r, self.cache == "fp8_ds_mla")

    @property
    def least(self) -> int:
        return least(self.shape, self.cache_rows)

    @property
    def flops(self) -> int:
        return flops(self.shape)

    def inputs(self, device: torch.device) -> dict[str, Any]:
        dtype = DTYPES[self.dtype]
        q = torch.randn(self.tokens, self.heads, D_V + self.d_r, device=device).to(dtype)
        rows = torch.randn(self.cache_rows, D_V + self.d_r, device=device).to(dtype)
        if self.cache == "fp8_ds_mla":
            rows = pack(rows)
        return {"q": q, "kv": rows, "indices": spread_out(self.tokens, self.topk, self.cache_rows, device),
                "scale": (192 if self.d_r else 256) ** -0.5 / 4}  # fmt: skip

    def wrong(self, found: Any, given: dict[str, Any]) -> tuple[str, float]:
        """What is wrong with (out, lse or None) of three tokens, against float64; "" if nothing. And the error."""
        out, lse = found
        some = torch.tensor(sorted({0, self.tokens // 2, self.tokens - 1}), device=out.device)
        q, indices = given["q"][some], given["indices"][some]
        right, right_lse = sparse_mla_reference(q.double(), given["kv"], indices, given["scale"], d_v=D_V)
        error = relative(out[some], right)
        if not error <= TOLERANCE[self.dtype]:
            return f"relative L2 error {error:.1e} against float64", error
        if lse is not None:
            apart = float((lse.reshape(self.tokens, self.heads)[some].double() - right_lse.double()).abs().max())
            if not apart <= 5e-3:
                return f"LSE is off by {apart:.1e}", error
        return "", error


@dataclass(frozen=True)
class IndexLogits:
    """Index logits of `tokens` tokens over `keys` keys, e4m3 on both sides; paged: one token of each request."""

    kind: ClassVar[str] = "index_logits"
    tokens: int
    heads: int
    keys: int
    paged: bool
    dim: int = 128

    @property
    def least(self) -> int:
        sides = self.tokens * self.heads * (self.dim + 4) + self.tokens * self.keys * 4
        return sides + (self.tokens if self.paged else 1) * self.keys * (self.dim + 4)

    @property
    def flops(self) -> int:
        return 2 * self.tokens * self.heads * self.dim * self.keys

    def inputs(self, device: torch.device) -> dict[str, Any]:
        weights = torch.rand(self.tokens, self.heads, device=device)
        if not self.paged:
            zero = torch.zeros(self.tokens, dtype=torch.int32, device=device)
            return {"q": codes(self.tokens, self.heads, self.dim, device=device),
                    "k": codes(self.keys, self.dim, device=device), "weights": weights, "start": zero,
                    "k_scale": torch.rand(self.keys, device=device) + 0.5, "end": zero + self.keys}  # fmt: skip
        blocks = -(-self.keys // BLOCK)
        cache = torch.empty(self.tokens * blocks, BLOCK, self.dim + 4, dtype=torch.uint8, device=device)
        opened = open_cache(cache, self.dim)
        opened.keys.copy_(codes(*opened.keys.shape, device=device).view(torch.uint8))
        assert opened.scales is not None
        opened.scales.copy_(torch.rand(*opened.scales.shape, device=device) + 0.5)
        table = torch.randperm(self.tokens * blocks, device=device).to(torch.int32).view(self.tokens, blocks)
        lengths = torch.full((self.tokens,), self.keys, dtype=torch.int32, device=device)
        return {"q": codes(self.tokens, 1, self.heads, self.dim, device=device), "k_cache": cache, "weights": weights,
                "context_lens": lengths, "block_table": table}  # fmt: skip

    def wrong(self, found: torch.Tensor, given: dict[str, Any]) -> tuple[str, float]:
        some = torch.tensor(sorted({0, self.tokens - 1}), device=found.device)
        right = torch.empty(len(some), self.keys, dtype=torch.float32, device=found.device)
        q, weights = given["q"].view(torch.uint8)[some], given["weights"][some]
        if self.paged:
            cache, table = open_cache(given["k_cache"], self.dim), given["block_table"][some]
            index_logits_paged_reference(q, cache, weights, given["context_lens"][some].view(-1, 1), table, right)
        else:
            span = given["start"][some], given["end"][some]
            index_logits_reference(q, given["k"], weights, *span, given["k_scale"], True, right)
        error = relative(found[some, : self.keys], right)
        return ("" if error <= TOLERANCE["e4m3"] else f"relative L2 error {error:.1e} against float64"), error


@dataclass(frozen=True)
class IndexTopk:
    """The `topk` largest of each row of random logits."""

    kind: ClassVar[str] = "index_topk"
    tokens: int
    keys: int
    topk: int = 2048
    flops: ClassVar[int] = 0

    @property
    def least(self) -> int:
        return self.tokens * (self.keys + self.topk) * 4

    def inputs(self, device: torch.device) -> dict[str, Any]:
        lengths = torch.full((self.tokens,), self.keys, dtype=torch.int32, device=device)
        return {"logits": torch.randn(self.tokens, self.keys, device=device), "lengths": lengths, "topk": self.topk}

    def wrong(self, found: torch.Tensor, given: dict[str, Any]) -> tuple[str, float]:
        """The values chosen must be the largest; which of equal ones is not compared."""
        right = given["logits"].topk(self.topk, dim=1).values
        mine = given["logits"].gather(1, found.long()).sort(dim=1, descending=True).values
        return ("" if torch.equal(mine, right) else "these are not the largest logits"), 0.0


Case = SparseMla | IndexLogits | IndexTopk


def described(case: Case) -> dict[str, Any]:
    """The case as JSON takes it."""
    return {"kind": case.kind, **asdict(case)}


def cases(tokens: list[int], heads: list[int], kinds: list[str]) -> Iterator[Case]:
    """The shapes of DeepSeek-V3.2 and GLM-5 (576), of a rope-free model (512), and of their indexers."""
    if "sparse_mla" in kinds:
        for t, h, dtype in product(tokens, heads, DTYPES):
            yield SparseMla(t, h, dtype, "native")
            yield SparseMla(t, h, dtype, "fp8_ds_mla")
            yield SparseMla(t, h, dtype, "native", d_r=0)
    if "index_logits" in kinds:
        for t, h, paged in product(tokens, (32, 64), (True, False)):
            if t <= DECODE if paged else t >= DECODE:
                yield IndexLogits(t, h, 1 << 16, paged)
    if "index_topk" in kinds:
        yield from (IndexTopk(t, 1 << 16) for t in tokens)


def tiny() -> Iterator[Case]:
    """The same kinds, small enough for Triton's interpreter."""
    for dtype, cache, d_r in (("float16", "native", 64), ("bfloat16", "fp8_ds_mla", 64), ("float16", "native", 0)):
        yield SparseMla(2, 16, dtype, cache, d_r=d_r, topk=64, cache_rows=256)
    yield IndexLogits(2, 4, 128, True)
    yield IndexLogits(2, 4, 100, False)
    yield IndexTopk(2, 200, topk=16)


def spread_out(tokens: int, topk: int, rows: int, device: torch.device) -> torch.Tensor:
    """int32 [tokens, topk]: one random row of each of `topk` equal parts of the cache: distinct, ascending."""
    each = rows // topk
    first = torch.arange(topk, device=device, dtype=torch.int32) * each
    return first + torch.randint(each, (tokens, topk), device=device, dtype=torch.int32)


def codes(*shape: int, device: torch.device) -> torch.Tensor:
    """Random e4m3 values."""
    return torch.randn(*shape, device=device).to(torch.float8_e4m3fn)


def relative(found: torch.Tensor, right: torch.Tensor) -> float:
    """L2 norm of the difference over that of what is right."""
    return float((found.double() - right.double()).norm() / right.double().norm())
