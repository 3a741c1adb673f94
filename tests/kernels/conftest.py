"""Kernel tests: Triton's interpreter on a CPU, one thread, bfloat16 repaired. Needs `attnfit[kernels,kernels-dev]`.

    python -m pytest tests/kernels

TRITON_INTERPRET is read when a kernel is decorated, so it is set before anything imports one. A test that compiles
for a GPU does it in a child process, without that variable.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

os.environ["TRITON_INTERPRET"] = "1"
MISSING = [name for name in ("torch", "triton", "numpy") if find_spec(name) is None]

if not MISSING:
    import torch

    from attnfit.kernels import interpreter

    torch.set_num_threads(1)
    interpreter.patch()


class NotInstalled(pytest.File):
    """One skipped test in place of a file that cannot be imported here."""

    def collect(self) -> list[pytest.Item]:
        return [Skipped.from_parent(self, name="kernels")]


class Skipped(pytest.Item):
    def runtest(self) -> None:
        pytest.skip(f"not installed: {', '.join(MISSING)} (pip install 'attnfit[kernels,kernels-dev]')")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return NotInstalled.from_parent(parent, path=module_path) if MISSING else None


def pytest_report_header() -> str | None:
    if MISSING:
        return None
    import triton

    return f"kernels: torch {torch.__version__}, Triton {triton.__version__}, interpreter with bfloat16 repaired"
