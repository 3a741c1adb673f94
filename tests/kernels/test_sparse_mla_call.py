"""What surrounds the kernel: the workspace it is promised, and arguments it does not take."""

from __future__ import annotations

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st

from attnfit.kernels import sparse_mla, sparse_mla_workspace
from attnfit.kernels.mla import Device
from attnfit.kernels.mla.configs import CAPABILITIES, VIRTUAL_BLOCKS, config_of
from attnfit.kernels.mla.rows import pack
from attnfit.kernels.mla.workspace import splits_of

WAYS = ["latent", "virtual_blocks"]
T, H, K, R = 3, 20, 300, 400  # split in two on the GPU that the interpreter plays


def call(**changes):
    """A call that works, but for what `changes` says."""
    chance = torch.Generator().manual_seed(0)
    arguments = {
        "q": torch.randn(T, H, 576, generator=chance).half(),
        "kv": torch.randn(R, 576, generator=chance).half(),
        "indices": torch.stack([torch.randperm(R, generator=chance)[:K] for _ in range(T)]).int(),
        "scale": 0.1,
        **changes,
    }
    return sparse_mla(**arguments)


@given(
    most=st.integers(1, 5000),
    heads=st.sampled_from([8, 16, 20, 64, 128]),
    topk=st.integers(1, 4096),
    packed=st.booleans(),
    capability=st.sampled_from(CAPABILITIES),
    num_sms=st.integers(1, 200),
    way=st.sampled_from(WAYS),
)
@settings(max_examples=60, deadline=None)
def test_the_stated_workspace_is_what_the_hungriest_call_needs_and_no_more(
    most: int, heads: int, topk: int, packed: bool, capability: tuple[int, int], num_sms: int, way: str
) -> None:
    config = VIRTUAL_BLOCKS if way == "virtual_blocks" else config_of(capability, heads, packed)
    blocks = triton.cdiv(heads, config.block_h)
    calls = ((tokens, splits_of(tokens, blocks, topk, num_sms)) for tokens in range(1, most + 1))
    needs = [tokens * splits for tokens, splits in calls if splits > 1 or way == "virtual_blocks"]
    stated = sparse_mla_workspace(
        most, heads, topk, packed=packed, device=Device(capability, num_sms), implementation=way
    )
    assert stated == max(needs, default=0) * heads * 513 * 4


@pytest.mark.parametrize("way", WAYS)
def test_a_call_runs_in_just_its_workspace_whatever_lies_there(way: str) -> None:
    size = sparse_mla_workspace(T, H, K, packed=False, device="cpu", implementation=way)
    memory = torch.full((size // 4,), float("nan"))
    out, lse = call(implementation=way, workspace=memory)
    plain, plain_lse = call(implementation=way)
    assert size > 0
    assert torch.equal(out, plain)
    assert torch.equal(lse, plain_lse)


@pytest.mark.parametrize("way", WAYS)
def test_a_workspace_that_is_too_small_is_refused_with_what_to_do(way: str) -> None:
    size = sparse_mla_workspace(T, H, K, packed=False, device="cpu", implementation=way)
    with pytest.raises(ValueError, match="reserve what sparse_mla_workspace"):
        call(implementation=way, workspace=torch.empty(size // 4 - 1))


def test_results_are_written_where_they_are_asked_for() -> None:
    memory, logs = torch.zeros(T, 2, H, 512).half(), torch.zeros(H, T)
    out, lse = call(implementation="latent", out=memory[:, 1], lse=logs.T)
    plain, plain_lse = call(implementation="latent")
    assert out.data_ptr() == memory[:, 1].data_ptr()
    assert torch.equal(memory[:, 1], plain)
    assert torch.equal(logs.T, plain_lse)
    assert torch.equal(lse, plain_lse)
    assert not memory[:, 0].any()


REFUSED = {
    "q must be \\[T, H": {"q": torch.zeros(T, 576).half()},
    "q must be float16 or bfloat16": {"q": torch.zeros(T, H, 576).double()},
    'float32 runs through implementation="reference" only': {
        "q": torch.zeros(T, H, 576), "kv": torch.zeros(R, 576), "implementation": "latent"
    },
    "do not go with q": {"kv": torch.zeros(R, 576).bfloat16()},
    "rows are 512 wide": {"kv": torch.zeros(R, 512).half()},
    "656 bytes": {"kv": torch.zeros(R, 576, dtype=torch.uint8)},
    "multiple of four bytes": {"kv": torch.zeros(R, 657, dtype=torch.uint8)[:, 1:]},
    "d_v must be 512": {"d_v": 544},
    "must be contiguous": {"kv": torch.zeros(576, R).half().T},
    "scale is a number": {"scale": torch.tensor(0.1)},
    "e4m3 codes": {"kv": torch.zeros(R, 656, dtype=torch.float8_e5m2)},
    "different devices": {"workspace": torch.empty(10, device="meta"), "implementation": "latent"},
    "contiguous and begin": {"workspace": torch.empty(9_999_999)[::2], "implementation": "latent"},
    "must be int32": {"indices": torch.zeros(T, K, dtype=torch.int64)},
    "as many": {"indices": torch.zeros(T + 1, K, dtype=torch.int32)},
    "between 1 and 4096": {"indices": torch.zeros(T, 4097, dtype=torch.int32)},
    "implementation is one of": {"implementation": "fast"},
    "native rows": {"kv": torch.zeros(20, 20, 576).half(), "implementation": "virtual_blocks"},
    "out must be": {"out": torch.zeros(T, H, 576).half()},
    "lse must be": {"lse": torch.zeros(T, H).half()},
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        call(**REFUSED[message])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("way", [*WAYS, "reference"])
def test_counts_that_do_not_lie_side_by_side_are_read_where_they_lie(way: str) -> None:
    counts = torch.tensor([5, 9, 300, 9, 17, 9], dtype=torch.int32)
    plain, plain_lse = call(implementation=way, valid=counts[::2].contiguous())
    for valid in (counts[::2], torch.tensor([5], dtype=torch.int32).expand(T)):
        out, lse = call(implementation=way, valid=valid)
        assert torch.equal(out[0], plain[0])
        assert torch.equal(lse[0], plain_lse[0])
    out, _ = call(implementation=way, valid=counts[::2])
    assert torch.equal(out, plain)


@pytest.mark.parametrize("large", [1e5, 3e6])
def test_a_bfloat16_query_keeps_its_small_values_beside_a_large_one_that_meets_nothing(large: float) -> None:
    chance = torch.Generator().manual_seed(3)
    rows = torch.randn(R, 576, generator=chance)
    rows[:, 0] = 0
    q = torch.randn(T, H, 576, generator=chance)
    q[..., 0] = large
    found, lse = call(q=q.bfloat16(), kv=pack(rows), implementation="latent")
    q[..., 0] = 0
    plain, plain_lse = call(q=q.bfloat16(), kv=pack(rows), implementation="latent")
    torch.testing.assert_close(lse, plain_lse, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(found, plain, rtol=2**-7, atol=2**-9)


@pytest.mark.parametrize("paged", [False, True])
def test_rows_beyond_two_thousand_million_elements_are_found(paged: bool) -> None:
    memory = torch.empty(4_000_000, 576, dtype=torch.float16)  # reserved, not touched: 2^31 elements are 3.7 M rows
    far = torch.tensor([[3_999_999, 3_800_000, 3_999_990]], dtype=torch.int32).expand(T, -1).contiguous()
    near = torch.arange(3, dtype=torch.int32).expand(T, -1).contiguous()
    rows = torch.randn(3, 576, generator=torch.Generator().manual_seed(5)).half()
    kv = memory.view(40_000, 100, 576)[:, :50] if paged else memory  # of each 100 rows, a block has the first 50
    if paged:
        far = (
            torch.tensor([[39_999 * 50 + 49, 38_000 * 50, 39_990 * 50 + 7]], dtype=torch.int32)
            .expand(T, -1)
            .contiguous()
        )
        kv[far[0].long() // 50, far[0].long() % 50] = rows
    else:
        kv[far[0].long()] = rows
    out, lse = call(kv=kv, indices=far, implementation="latent")
    plain, plain_lse = call(kv=rows, indices=near, implementation="latent")
    assert torch.equal(out, plain)
    assert torch.equal(lse, plain_lse)


def test_no_heads_and_no_cuda_are_no_crash() -> None:
    out, lse = call(q=torch.zeros(T, 0, 576).half(), implementation="latent")
    assert (out.shape, lse.shape) == ((T, 0, 512), (T, 0))
    with pytest.raises(ValueError, match="at least 1"):
        sparse_mla_workspace(1, 0, 2048, packed=False, device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device"):
            sparse_mla_workspace(1, 16, 2048, packed=False, device="cuda")


def test_a_gpu_without_a_configuration_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(ValueError, match=r"7\.5; there is for 8\.0, 8\.6.*12\.1"):
        sparse_mla_workspace(1, 16, 2048, packed=False, device=Device((7, 5), 40))
