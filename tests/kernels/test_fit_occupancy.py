"""Occupancy against NVIDIA's own calculator, which comes with Triton as a C header."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
import triton

from attnfit.inputs.kernel_fit import limit_of
from attnfit.kernels.fit.occupancy import LIMITS, estimate

HEADER = Path(triton.__file__).parent / "backends" / "nvidia" / "include" / "cuda_occupancy.h"
COMPILER = shutil.which("cc") or shutil.which("gcc")
ASK = """
#include <stdio.h>
#include "cuda_occupancy.h"
int main(void) {
  int major, minor, threads, regs, most; long shared, optin, each;
  while (scanf("%d %d %d %d %ld %ld %ld %d", &major, &minor, &threads, &regs, &shared, &optin, &each, &most) == 8) {
    struct cudaOccDeviceProp gpu = {0};
    gpu.computeMajor = major; gpu.computeMinor = minor; gpu.warpSize = 32; gpu.numSms = 1;
    gpu.maxThreadsPerBlock = 1024; gpu.maxThreadsPerMultiprocessor = most;
    gpu.regsPerBlock = 65536; gpu.regsPerMultiprocessor = 65536;
    gpu.sharedMemPerBlock = 49152; gpu.sharedMemPerBlockOptin = optin; gpu.sharedMemPerMultiprocessor = each;
    gpu.reservedSharedMemPerBlock = major >= 8 ? 1024 : 0;
    struct cudaOccFuncAttributes kernel = {0};
    kernel.maxThreadsPerBlock = 1024; kernel.numRegs = regs;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN; kernel.maxDynamicSharedSizeBytes = optin;
    struct cudaOccDeviceState state = {0};
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    struct cudaOccResult result = {0};
    int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &gpu, &kernel, &state, threads, shared);
    printf("%d\\n", error ? -error : result.activeBlocksPerMultiprocessor);
  }
  return 0;
}
"""


@pytest.mark.skipif(COMPILER is None or not HEADER.exists(), reason="needs a C compiler and Triton's CUDA headers")
def test_blocks_are_those_of_nvidia_s_calculator(tmp_path: Path) -> None:
    assert COMPILER is not None
    (tmp_path / "ask.c").write_text(ASK)
    program = tmp_path / "ask"
    subprocess.run([COMPILER, "-w", "-I", str(HEADER.parent), "-o", program, tmp_path / "ask.c"], check=True)
    some = random.Random(0)
    questions = [
        (capability, some.choice([32, 64, 128, 160, 256, 512, 1024]), some.randint(16, 255), some.randint(0, limit))
        for capability in LIMITS
        for limit in [limit_of(capability)]
        for _ in range(2000)
    ]
    lines = "".join(
        f"{capability.replace('.', ' ')} {threads} {registers} {shared} {limit_of(capability)} "
        f"{LIMITS[capability].shared_kib * 1024} {LIMITS[capability].warps * 32}\n"
        for capability, threads, registers, shared in questions
    )
    said = subprocess.run([program], input=lines, capture_output=True, text=True, check=True).stdout.split()
    ours = [found.blocks for question in questions if (found := estimate(*question))]
    assert ours == [int(blocks) for blocks in said]
    assert len(set(ours)) > 10
