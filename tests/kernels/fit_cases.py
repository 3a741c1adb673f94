"""Made-up kernels whose needs are known, for tests of the fit machine. Imported in its child process only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from attnfit.kernels.fit import Case, Unknown

print("a module that prints when it is imported")
os.write(1, b"and one that writes to the file descriptor\n")


@triton.jit
def matmul_kernel(A, B, C, k, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    """C = A @ B.T; keeps (num_stages - 1) tiles of A and of B in shared memory on 8.x and 12.x."""
    m = tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_M), tl.float32)
    for start in range(0, k, BLOCK_K):
        a = tl.load(A + m[:, None] * k + column[None, :] + start)
        b = tl.load(B + m[:, None] * k + column[None, :] + start)
        acc = tl.dot(a, tl.trans(b), acc)
    tl.store(C + m[:, None] * BLOCK_M + m[None, :], acc)


def keep_large(configs: list[Any], named: dict[str, Any], **kwargs: Any) -> list[Any]:
    return [config for config in configs if config.kwargs["BLOCK_M"] > 32]


CONFIGS = [triton.Config({"BLOCK_M": m, "BLOCK_K": k}, num_warps=4, num_stages=s) for m, k, s in
           ((32, 32, 2), (64, 64, 2), (128, 128, 2), (128, 128, 3))]  # fmt: skip
tuned_kernel = triton.autotune(CONFIGS, key=["k"], prune_configs_by={"early_config_prune": keep_large})(matmul_kernel)
all_large = triton.autotune(CONFIGS[3:] * 2, key=["k"])(matmul_kernel)
clusters = triton.autotune([triton.Config({"BLOCK_M": 64, "BLOCK_K": 64}, num_ctas=n) for n in (1, 2)], key=["k"])(
    matmul_kernel
)


@triton.heuristics({"BLOCK_M": lambda given: 64 if given["k"] > 1000 else 32, "BLOCK_K": lambda given: 32})
@triton.jit
def heuristic_kernel(A, B, C, k, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    m = tl.arange(0, BLOCK_M)
    tl.store(C + m, tl.load(A + m).to(tl.float32) + tl.load(B + m).to(tl.float32) + k + BLOCK_K)


@triton.jit
def copy_kernel(A, C, stride, N: tl.constexpr):
    n = tl.arange(0, N)
    tl.store(C + n, tl.load(A + n * stride).to(tl.float32))


@triton.jit
def e4m3_kernel(A, C, N: tl.constexpr):
    n = tl.arange(0, N)
    tl.store(C + n, tl.load(A + n).to(tl.float8e4nv).to(tl.float32))


@triton.jit
def asserting_kernel(C, N: tl.constexpr):
    tl.static_assert(N > 4, "N is too small")
    tl.store(C + tl.arange(0, N), 0.0)


class Kill:
    """Ends the process that compiles, as a fault of the compiler would. A class, which Triton does not look into."""

    def __new__(cls, number: int) -> int:  # type: ignore[misc]
        os.kill(os.getpid(), signal.Signals(number))
        return 0


class Sleep:
    def __new__(cls, seconds: float) -> int:  # type: ignore[misc]
        time.sleep(seconds)
        return 0


@triton.constexpr_function
def kill(number):
    return Kill(number)


@triton.constexpr_function
def sleep(seconds):
    return Sleep(seconds)


@triton.jit
def deadly_kernel(C, NUMBER: tl.constexpr):
    tl.store(C, kill(NUMBER))


@triton.jit
def python_function_kernel(C):
    tl.store(C, time.time())


@triton.jit
def slow_kernel(C, SECONDS: tl.constexpr):
    tl.store(C, sleep(SECONDS))


def new(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def matmul(m: int, k: int, stages: int) -> None:
    a = new(torch.float16, m, 4096)
    matmul_kernel[(1,)](a, a, new(torch.float32, m, m), 4096, BLOCK_M=m, BLOCK_K=k, num_warps=4, num_stages=stages)


def tuned(kernel: Any, k: int = 4096) -> None:
    a = new(torch.float16, 128, k)
    kernel[lambda meta: (meta["BLOCK_M"], 2)](a, a, new(torch.float32, 128, 128), k)


def copy(offset: int, stride: int, device: str = "meta") -> None:
    a = torch.empty(4096 + offset, dtype=torch.float16, device=device)
    copy_kernel[(7, 3)](a[offset:], torch.empty(4096, device=device), stride, N=1024)


def heuristic() -> None:
    a = new(torch.float16, 64)
    heuristic_kernel[(1,)](a, a, new(torch.float32, 64), 4096)


def by_capability() -> None:
    """As host code chooses: by what torch says of the GPU."""
    size = 64 if torch.cuda.get_device_capability()[0] >= 9 else 32
    matmul(size, 32, 2)


def one(kernel: Any, *arguments: Any, **constexprs: Any) -> Callable[[], Any]:
    return lambda: kernel[(1,)](*arguments, **constexprs)


def lacks() -> None:
    raise Unknown("the model has no head size")


def breaks() -> None:
    raise TypeError("a fault of the adapter")


def ask_sms() -> None:
    copy_kernel[(torch.cuda.get_device_properties(0).multi_processor_count,)](
        new(torch.float16, 64), new(torch.float32, 64), 1, N=64
    )


def cases(ask: dict[str, Any], capability: str) -> Iterator[Case]:
    fp32 = new(torch.float32, 64)
    every = {
        "matmul": lambda: matmul(*ask["matmul"]),
        "tuned": lambda: tuned(tuned_kernel),
        "all large": lambda: tuned(all_large),
        "clusters": lambda: tuned(clusters),
        "heuristic": heuristic,
        "aligned": lambda: copy(8, 1),
        "misaligned": lambda: copy(1, 1),
        "strided": lambda: copy(0, 3),
        "on the CPU": lambda: (copy(8, 1, "cpu"), copy(1, 1, "cpu"), copy(0, 3, "cpu")),
        "twice": lambda: (copy(8, 1), copy(16, 1)),
        "e4m3": one(e4m3_kernel, fp32, fp32, N=64),
        "asserting": one(asserting_kernel, fp32, N=2),
        "deadly": one(deadly_kernel, fp32, NUMBER=int(signal.SIGSEGV)),
        "killed": one(deadly_kernel, fp32, NUMBER=int(signal.SIGKILL)),
        "slow": one(slow_kernel, fp32, SECONDS=60),
        "python function": one(python_function_kernel, fp32),
        "by capability": by_capability,
        "lacks": lacks,
        "breaks": breaks,
        "nothing": lambda: None,
        "multiprocessors": ask_sms,
    }
    for name in ask["cases"]:
        yield Case(name, every[name])
