"""What docs/kernels.md shows is what the kernels do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnfit.kernels import sparse_mla_workspace
from attnfit.kernels.mla import Device

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "kernels.md"
PAGE = FILE.read_text("utf-8")


def test_the_example_prints_what_stands_below_it() -> None:
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    shown = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert code
    assert shown
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    argv = [sys.executable, "-c", code[1]]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert (done.stdout, done.returncode) == (shown[1], 0), done.stderr


def test_the_table_of_bytes_is_what_the_cost_function_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """ATTNFIT_WRITE_SNAPSHOTS=1 writes it anew."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import kernel_static

    shown = PAGE.split("<!-- benchmarks/kernels.py: begin -->")[1].split("<!-- benchmarks/kernels.py: end -->")[0]
    if os.environ.get("ATTNFIT_WRITE_SNAPSHOTS"):
        FILE.write_text(PAGE.replace(shown, f"\n\n{kernel_static.bytes_table()}\n\n"), "utf-8")
    else:
        assert shown.strip() == kernel_static.bytes_table()


def test_the_workspace_is_as_large_as_the_page_says() -> None:
    found = sparse_mla_workspace(256, 128, 2048, packed=False, device=Device((12, 0), 188))
    assert f"128 heads and a top-k of 2048 on a GPU with 188 multiprocessors: {found:,} bytes" in PAGE
