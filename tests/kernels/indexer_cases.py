"""Inputs for the indexer's tests, and how far a kernel's logits may lie from the float64 reference."""

from __future__ import annotations

import torch

from attnfit.kernels.indexer.cache import to_float64

KINDS = {"e4m3": torch.uint8, "float16": torch.float16, "bfloat16": torch.bfloat16}
ROUNDING = 2.0**-24  # half a unit in the last place of fp32, relative
# Dot products, weights and sum are fp32 in blocks of the interpreter's own summation: a few roundings of the largest
# partial sum, which the sum of magnitudes bounds.
ROUNDINGS = 8.0


def new(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def values(kind: str, *shape: int, chance: torch.Generator, size: float = 1.0) -> torch.Tensor:
    """Random values of that kind; codes are any that are numbers."""
    if kind == "e4m3":
        codes = torch.randint(0, 256, shape, generator=chance, dtype=torch.uint8)
        return torch.where((codes & 0x7F) == 0x7F, 0, codes)
    return (torch.randn(shape, generator=chance) * size).to(KINDS[kind])


def magnitude(q: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Of the numbers that are added up, for each token and key: q [T, H, D], keys [n, D] -> float64 [T, n]."""
    per_head = torch.einsum("thd,nd->thn", to_float64(q).abs(), to_float64(keys).abs())
    total = torch.einsum("th,thn->tn", weights.double().abs(), per_head)
    return total if scale is None else total * scale.double()


def meets(ours: torch.Tensor, reference: torch.Tensor, bound: torch.Tensor | float) -> None:
    """The same columns are -inf, and every other logit lies within ROUNDINGS of what `bound` says was added up."""
    assert torch.equal(torch.isneginf(ours), torch.isneginf(reference))
    seen = ~torch.isneginf(reference)
    assert torch.isfinite(reference[seen]).all()
    far = (ours.double() - reference.double()).abs()
    allowed = ROUNDINGS * ROUNDING * torch.as_tensor(bound, dtype=torch.float64).expand_as(far)
    worst = (far[seen] / allowed[seen].clamp_min(1e-300)).max() if seen.any() else 0.0
    assert worst <= 1.0, f"{worst * ROUNDINGS:.1f} roundings"
