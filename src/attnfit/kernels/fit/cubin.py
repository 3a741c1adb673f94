"""What can be read from a compiled kernel: registers, stack, spills, and which instructions it is made of.

Read with the tools that come in Triton's wheel (cuobjdump, nvdisasm). Counts are of instructions in the program text,
not of instructions executed: a loop's body counts once.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from attnfit.kernels.fit.driver import parse

BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_RESERVED = 1024  # bytes within SHARED of cuobjdump that cubins for 9.0 and newer set aside for the system
_RESERVING = 9  # major capability; seen on 7.0 to 12.1 with Triton 3.8 and 3.9, in kernels that use shared memory


@dataclass(frozen=True)
class Resources:
    """Registers and stack bytes of a thread; static shared memory of a block, without what the system keeps."""

    registers: int
    stack: int
    static_shared: int


def resources(path: Path, capability: str) -> Resources:
    """Of the one kernel in that cubin, compiled for "12.0". Raises RuntimeError if cuobjdump does not say."""
    said = _run("cuobjdump", "--dump-resource-usage", str(path))
    found = dict(re.findall(r"\b(REG|STACK|SHARED):(\d+)", said))
    if len(found) < 3:
        raise RuntimeError(f"cuobjdump did not say what the kernel uses: {said.strip()[:200]!r}")
    shared = int(found["SHARED"])
    if parse(capability)[0] >= _RESERVING and shared >= _RESERVED:
        shared -= _RESERVED
    return Resources(int(found["REG"]), int(found["STACK"]), shared)


_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def spills(log: str) -> tuple[int, int] | None:
    """Bytes stored and loaded by spilling, as `ptxas -v` prints them; None if that log is not there."""
    found = _SPILLS.findall(log)
    return (sum(int(s) for _, s, _ in found), sum(int(loads) for _, _, loads in found)) if found else None


_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.[A-Za-z0-9_]+)*)", re.MULTILINE
)
_TENSOR_CORE = re.compile(r"^[A-Z]*MMA$")
_GLOBAL_LOADS = (
    "LDG",
    "LDGSTS",
    "UTMALDG",
    "UBLKCP",
)  # plain, asynchronous (cp.async), tensor memory accelerator, bulk
_LOCAL = ("LDL", "STL")


def mix(path: Path) -> dict[str, Any]:
    """The instruction mix of a cubin: {"total", "tensor": {opcode: n}, "global_loads": {...}, "local": {...}}.

    Tensor-core opcodes: HMMA (mma.sync on 16-bit values), HGMMA (Hopper's warp groups), UTCHMMA (tcgen05 of 10.x and
    11.0), QMMA/QGMMA/UTCQMMA (8-bit floats), IMMA (integers), DMMA (fp64); FFMA and the like are not tensor cores.
    """
    return count(_run("nvdisasm", "-c", "-ndf", str(path)))  # without data-flow analysis, which takes as long again


def count(text: str) -> dict[str, Any]:
    """`mix` of a disassembly."""
    opcodes: Counter[str] = Counter()
    shapes: Counter[str] = Counter()
    for base, rest in _INSTRUCTION.findall(text):
        opcodes[base] += 1
        if _TENSOR_CORE.match(base):
            shapes[base + rest] += 1
    return {
        "total": sum(opcodes.values()),
        "tensor": dict(sorted(shapes.items())),
        "global_loads": {name: opcodes[name] for name in _GLOBAL_LOADS if name in opcodes},
        "local": {name: opcodes[name] for name in _LOCAL if name in opcodes},
    }


def _run(tool: str, *arguments: str) -> str:
    done = subprocess.run([str(BIN / tool), *arguments], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{tool} failed ({done.returncode}): {done.stderr.strip()[-200:]}")
    return done.stdout


def written(cubin: bytes, folder: str | None = None) -> Path:
    """The cubin as a file, which the tools want."""
    with tempfile.NamedTemporaryFile(suffix=".cubin", dir=folder, delete=False) as file:
        file.write(cubin)
    return Path(file.name)
