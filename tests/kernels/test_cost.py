"""The static figures are what the kernels load and store, counted here a second way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnfit.kernels.mla import api, sparse_mla
from attnfit.kernels.mla.cost import Design, Shape, cost, design_of, flops, head_blocks, least


def test_one_token_of_few_heads_moves_the_rows_once() -> None:
    shape = Shape(tokens=1, heads=16)
    assert cost(shape, Design(block_h=16)).rows == 2048 * 1152 == 2304 * 1024
    assert cost(Shape(1, 16, packed=True), Design(16)).rows == 2048 * 656 == 1312 * 1024


@pytest.mark.parametrize(("heads", "millions"), [(16, 71), (64, 285), (128, 570)])
def test_operations_are_those_of_both_dot_products(heads: int, millions: int) -> None:
    assert flops(Shape(1, heads)) == 2 * heads * (576 + 512) * 2048
    assert round(flops(Shape(1, heads)) / 1e6) == millions


def test_each_block_of_heads_asks_for_the_rows_again() -> None:
    one, many = Shape(1, 16), Shape(1, 130)
    assert cost(many, Design(64)).rows == 3 * cost(one, Design(16)).rows
    assert cost(many, Design(64)).indices == 3 * 2048 * 4


def test_key_and_value_loaded_apart_cost_the_latent_twice() -> None:
    once, twice = cost(Shape(1, 16), Design(16)), cost(Shape(1, 16), Design(16, value_again=True))
    assert twice.rows - once.rows == 2048 * 2 * 512


def test_splits_pay_for_partial_results_and_read_the_query_again() -> None:
    whole, split = cost(Shape(4, 16), Design(16)), cost(Shape(4, 16), Design(16, splits=8))
    assert whole.partials == 0
    assert split.partials == 2 * 4 * 16 * 8 * 513 * 4
    assert split.q == 8 * whole.q
    assert split.rows == whole.rows
    assert cost(Shape(4, 16), Design(16, partials=True)).partials == 2 * 4 * 16 * 513 * 4


@pytest.mark.parametrize("shape", [Shape(1, 16), Shape(8, 128, d_r=0), Shape(4096, 20, packed=True)])
@pytest.mark.parametrize("design", [Design(16), Design(64, splits=4), Design(16, value_again=True, table=True)])
def test_nothing_moves_less_than_the_least(shape: Shape, design: Design) -> None:
    assert cost(shape, design).moved >= least(shape)
    if shape.heads <= design.block_h and design == Design(16):
        assert cost(shape, design).moved == least(shape)


def test_tokens_that_share_rows_need_each_row_once() -> None:
    shape = Shape(tokens=64, heads=16)
    assert least(shape) - least(shape, cache_rows=1000) == (64 * 2048 - 1000) * 1152


@pytest.mark.parametrize("implementation", ["latent", "virtual_blocks"])
@pytest.mark.parametrize(("tokens", "heads"), [(1, 16), (2, 128), (40, 20)])
def test_the_design_is_what_sparse_mla_launches(
    implementation: str, tokens: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(api, f"launch_{implementation}", lambda *given, **named: seen.update(named))
    q, kv = torch.zeros(tokens, heads, 576, dtype=torch.float16), torch.zeros(4, 576, dtype=torch.float16)
    indices = torch.zeros(tokens, 512, dtype=torch.int32)
    sparse_mla(q, kv, indices, 1.0, implementation=implementation)
    design = design_of(implementation, Shape(tokens, heads, topk=512), *api.device_of(q))
    assert design.block_h == seen["config"].block_h
    assert design.splits == (seen["partials"].splits if seen["partials"] is not None else 1)
    assert (seen["partials"] is not None) == (design.splits > 1 or design.partials)
    assert head_blocks(Shape(tokens, heads), design.block_h) == -(-heads // seen["config"].block_h)
