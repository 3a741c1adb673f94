"""Sparse MLA inputs for the numerics tests, and how far a result lies from the float64 reference.

Every cache is poisoned: rows that no index names, rows that only entries past `valid` name, memory between blocks and
between tokens of q hold NaN, so that a read of anything else shows in the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from attnfit.kernels.mla import sparse_mla
from attnfit.kernels.mla.configs import CAPABILITIES, config_of
from attnfit.kernels.mla.latent import launch_latent
from attnfit.kernels.mla.reference import sparse_mla_reference
from attnfit.kernels.mla.rows import pack, read_rows
from attnfit.kernels.mla.virtual_blocks import launch_virtual_blocks
from attnfit.kernels.mla.workspace import carve

D_V = 512
PACKED_ONLY = ("scales apart", "rotary beyond fp16")
SPLITS = 3  # of the cases that split: no power of two, and more than there are keys with topk 1
GROUP = 128  # columns judged together: the packed cache scales each 128 columns on their own
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}

PARAMETERS = {
    "dtype": ["float16", "bfloat16"],
    "heads": [8, 16, 20, 64, 128],
    "tokens": [1, 2, 3, 5],
    "topk": [1, 16, 33, 512, 2048],
    "holes": ["none", "interior", "tail", "one row", "empty token"],
    "valid": ["not given", "ragged", "some zero"],
    "cache": ["native", "native rope-free", "packed"],
    "layout": ["rows", "blocks", "spaced blocks"],
    "values": ["normal", "large", "equal logits", "one dominant key", "scales apart", "rotary beyond fp16"],
    "way": ["as chosen", "latent", "latent, split", "virtual_blocks"],
    "blocks": sorted(
        {config_of(cc, heads, packed) for cc in CAPABILITIES for heads in (8, 32, 128) for packed in (0, 1)}
    ),
}

# With many keys for every kind of value, where the cover above may have met a combination with one key only.
MANY_KEYS = [
    {"dtype": dtype, "heads": 20, "tokens": 3, "topk": 200, "holes": "interior", "valid": "ragged", "cache": cache,
     "layout": "spaced blocks", "values": values, "way": "latent, split", "blocks": PARAMETERS["blocks"][0]}
    for dtype in PARAMETERS["dtype"] for cache in PARAMETERS["cache"] for values in PARAMETERS["values"]
    if cache == "packed" or values not in PACKED_ONLY
]  # fmt: skip


def allowed(case: dict) -> bool:
    """Whether such a case exists; also of partial ones, which may only be refused if no completion mends them."""
    packed_only = case.get("values") in PACKED_ONLY
    return not (
        (packed_only and case.get("cache", "packed") != "packed")
        or (case.get("way") == "virtual_blocks" and (case.get("cache") == "packed" or packed_only))
        or (case.get("way") == "virtual_blocks" and case.get("layout", "rows") != "rows")
        or (case.get("tokens") == 1 and case.get("holes") == "empty token")  # nothing would be left to compare
        or (case.get("tokens") == 1 and case.get("valid") == "some zero")
        or (case.get("tokens", 3) < 3 and case.get("holes") == "empty token" and case.get("valid") == "some zero")
        or (case.get("heads") == 128 and case.get("tokens", 1) > 2)  # the interpreter would take minutes
        or (case.get("heads", 0) >= 64 and case.get("topk") == 2048 and case.get("tokens", 1) > 1)
        or (case.get("heads") == 64 and case.get("topk") == 512 and case.get("tokens", 1) > 2)
    )


@dataclass
class Inputs:
    q: torch.Tensor
    kv: torch.Tensor
    indices: torch.Tensor
    scale: float
    valid: torch.Tensor | None

    def reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The float64 reference without the final cast."""
        return sparse_mla_reference(self.q.double(), self.kv, self.indices, self.scale, d_v=D_V, valid=self.valid)


def make(case: dict, seed: int = 0) -> Inputs:
    """Inputs for a case, the same for the same seed."""
    chance = torch.Generator().manual_seed(seed)
    dtype, d_r = DTYPES[case["dtype"]], 0 if "rope-free" in case["cache"] else 64
    tokens, heads, topk, packed = case["tokens"], case["heads"], case["topk"], case["cache"] == "packed"
    count = topk + 45
    indices = torch.stack([torch.randperm(count, generator=chance)[:topk] for _ in range(tokens)]).to(torch.int32)
    valid = _valid(case["valid"], tokens, topk, chance)
    indices = _holes(indices, case["holes"], valid, chance)
    q, rows, scale = _values(case["values"], tokens, heads, count, d_r, dtype, indices, chance)
    kv = rows if packed else rows.to(dtype)
    if packed:
        kv = pack(rows)
        if case["values"] == "scales apart":
            _spread_scales(kv, q, chance)
            logits = q[0, 0].double() @ read_rows(kv, torch.arange(count), D_V).T
            scale = float(2 / logits.std())
    past = torch.zeros_like(indices, dtype=torch.bool) if valid is None else _past(valid, topk)
    unnamed = torch.ones(count, dtype=torch.bool)
    unnamed[indices[(indices >= 0) & ~past].long()] = False
    _poison(kv)[unnamed] = -1
    return Inputs(_strided(q, case["layout"]), _laid_out(kv, case["layout"]), indices, scale, valid)


def _holes(indices: torch.Tensor, kind: str, valid: torch.Tensor | None, chance: torch.Generator) -> torch.Tensor:
    """-1 in some places, and at least one row left to every token but the empty one."""
    tokens, topk = indices.shape
    column = torch.arange(topk)
    end = torch.full((tokens,), topk) if valid is None else valid.clamp_min(1)
    kept = column == (torch.rand(tokens, generator=chance) * end).long().unsqueeze(1)
    if kind in ("interior", "empty token"):
        indices = torch.where(kept | (torch.rand(indices.shape, generator=chance) < 0.7), indices, -1)
    if kind == "empty token":
        indices[tokens // 2] = -1
    if kind == "tail":
        indices = torch.where(column < (end.unsqueeze(1) + 1) // 2, indices, -1)
    if kind == "one row":
        indices = torch.where(kept, indices, -1)
    return indices.to(torch.int32)


def _valid(kind: str, tokens: int, topk: int, chance: torch.Generator) -> torch.Tensor | None:
    if kind == "not given":
        return None
    valid = torch.randint(1, topk + 1, (tokens,), generator=chance, dtype=torch.int32)
    if kind == "some zero":
        valid[0] = 0
    return valid


def _past(valid: torch.Tensor, topk: int) -> torch.Tensor:
    return torch.arange(topk) >= valid.unsqueeze(1)


def _values(
    kind: str,
    tokens: int,
    heads: int,
    count: int,
    d_r: int,
    dtype: torch.dtype,
    indices: torch.Tensor,
    chance: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """q in its dtype, rows in fp32, and the scale."""
    width = D_V + d_r
    q = torch.randn(tokens, heads, width, generator=chance)
    rows = torch.randn(count, width, generator=chance)
    scale = width**-0.5
    if kind == "large":  # products far beyond fp16, values close to its end; logits of a few units
        rows = (torch.rand(rows.shape, generator=chance) * 0.5 + 0.5) * 65000 * rows.sign()
        scale /= 30000
    if kind == "equal logits":  # exactly: for every other head by a zero query, for the others by equal rows
        q[:, ::2] = 0
        rows[::2] = rows[0]
    if kind == "one dominant key":  # the last one named, so that the running maximum jumps at the very end
        direction = torch.randn(width, generator=chance)
        q = direction + 0.1 * q
        for named in indices:
            last = named[named >= 0]
            if len(last):
                rows[last[-1].long()] = 4 * direction
    if kind == "rotary beyond fp16":  # a packed cache keeps it in bfloat16 whatever the model's dtype is
        rows[:, D_V:] *= 3e6
        q[..., D_V:] *= 1e-6
    return q.to(dtype), rows, scale


def _spread_scales(kv: torch.Tensor, q: torch.Tensor, chance: torch.Generator) -> None:
    """A magnitude of its own for each group of columns, which varies from row to row; q's are the opposite ones, as far
    as its dtype goes, so that each group counts in the logits."""
    half = q.dtype is torch.float16
    groups = torch.tensor([0.0, -3.0, -1.0, -9.0])  # powers of ten
    spread = torch.rand(kv.shape[0], 4, generator=chance) * -6
    top = 2.0 if half else 30.0  # float16's result must stay finite: 448 * 10**2 < 65504
    kv[:, D_V : D_V + 16] = (10.0 ** (groups + top + spread)).to(torch.float32).view(torch.uint8)
    opposite = 10.0 ** (-groups).clamp_max(4 if half else 9)
    q[..., :D_V] *= opposite.repeat_interleave(GROUP).to(q.dtype)


def name_of(case: dict) -> str:
    return "-".join("x".join(map(str, v[:2])) if isinstance(v, tuple) else str(v) for v in case.values())


def _poison(kv: torch.Tensor) -> torch.Tensor:
    """A view to set to -1: NaN in fp16, bf16, e4m3 and fp32 alike when all bits are set."""
    return kv.view(torch.uint8).view(torch.int8) if kv.element_size() == 1 else kv.view(torch.int16)


def _laid_out(kv: torch.Tensor, layout: str) -> torch.Tensor:
    """[rows, width] as it is, or in blocks of 16, contiguous or with poisoned memory between them."""
    if layout == "rows":
        return kv
    size, gap = 16, 0 if layout == "blocks" else 5
    blocks = -(-kv.shape[0] // size)
    memory = torch.zeros(blocks, size + gap, kv.shape[1], dtype=kv.dtype)
    _poison(memory)[:] = -1
    for block, part in enumerate(kv.split(size)):
        memory[block, : len(part)] = part
    return memory[:, :size]


def _strided(q: torch.Tensor, layout: str) -> torch.Tensor:
    """q inside a wider, poisoned buffer, except with the plain layout."""
    if layout == "rows":
        return q
    wide = torch.full((q.shape[0], q.shape[1] + 3, q.shape[2] + 64), float("nan"), dtype=q.dtype)
    wide[:, : q.shape[1], : q.shape[2]] = q
    return wide[:, : q.shape[1], : q.shape[2]]


class Distance(NamedTuple):
    """How far a result lies from the reference."""

    cells: int  # that were compared
    out: float  # the worst cell's relative L2 error, in cast floors
    lse: float  # the worst error, in units of fp32 rounding of the largest logit's terms


# Relative L2 error of rounding random numbers to the dtype: the least that any kernel with that output makes.
CAST_FLOOR = {torch.float16: 2.0e-4, torch.bfloat16: 1.6e-3}


def distance(inputs: Inputs, out: torch.Tensor, lse: torch.Tensor) -> Distance:
    """A cell is one token, head and group of 128 columns. Empty tokens must be exactly (0, -inf).

    A cell's floor is what the cast of the float64 reference costs there, at least the dtype's CAST_FLOOR (a cell that
    the dtype holds exactly has none); both relative to the cell's norm.
    """
    right, right_lse = inputs.reference()
    empty = right_lse.isneginf()
    assert (lse[empty] == float("-inf")).all(), "an empty token's LSE is -inf"
    assert (out[empty] == 0).all(), "an empty token's result is 0"
    cells, ours = (x.double().unflatten(-1, (-1, GROUP)) for x in (right, out))
    cast = right.to(out.dtype).double().unflatten(-1, (-1, GROUP))
    norm = cells.norm(dim=-1)
    floor = torch.maximum((cast - cells).norm(dim=-1), CAST_FLOOR[out.dtype] * norm)
    ratio = (ours - cells).norm(dim=-1) / floor
    ratio = ratio[~empty]
    terms = _largest_terms(inputs)[~empty] + right_lse[~empty].abs() + 1
    lse_error = (lse[~empty].double() - right_lse[~empty]).abs() / (terms * 2**-24)
    return Distance(ratio.numel(), _worst(ratio), _worst(lse_error))


def _worst(values: torch.Tensor) -> float:
    """The largest, NaN counted as infinitely wrong; 0 of none."""
    return float(values.nan_to_num(float("inf")).max()) if values.numel() else 0.0


def _largest_terms(inputs: Inputs) -> torch.Tensor:
    """scale * max over the keys of <|q|, |k|>, [T, H]: what fp32 rounds while it adds up a logit."""
    worst = torch.zeros(inputs.q.shape[:2], dtype=torch.float64)
    for t, named in enumerate(inputs.indices):
        named = named if inputs.valid is None else named[: int(inputs.valid[t])]
        if (named >= 0).any():
            rows = read_rows(inputs.kv, named[named >= 0], D_V).abs()
            worst[t] = (inputs.q[t].double().abs() @ rows.T).amax(-1) * abs(inputs.scale)
    return worst


def call(case: dict, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel that the case names, with its block sizes and splits, into poisoned results."""
    tokens, heads, _ = inputs.q.shape
    out = torch.full((tokens, heads, D_V), float("nan"), dtype=inputs.q.dtype)
    lse = torch.full((tokens, heads), float("nan"))
    arguments = (inputs.q, inputs.kv, inputs.indices, inputs.scale)
    if case["way"] == "as chosen":
        return sparse_mla(*arguments, d_v=D_V, valid=inputs.valid, implementation="latent", out=out, lse=lse)
    launch = launch_virtual_blocks if case["way"] == "virtual_blocks" else launch_latent
    partials = carve(None, inputs.q, heads, SPLITS, D_V) if case["way"] != "latent" else None
    launch(*arguments, out, lse, valid=inputs.valid, config=case["blocks"], partials=partials)
    return out, lse
