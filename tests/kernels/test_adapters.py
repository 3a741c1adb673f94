"""Engines' own kernels, as the adapters load and launch them: a made-up engine with the real one's file names.

Its backend, its kernel and what stands between them are written here; the child is the one that `check` asks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnfit.inputs import kernel_fit
from attnfit.inputs.kernel_rows import Answer

LIMIT = 101376
ASK = {
    "kernel": "mla-decode", "dtype": "bfloat16", "kv_cache_dtype": "auto", "num_heads": 16, "kv_lora_rank": 64,
    "qk_rope_head_dim": 16, "block_size": 16, "max_model_len": 1024, "sms": 100, "device_name": "a GPU",
    "env": {"wheel": True},
}  # fmt: skip

FILES = {
    "platforms/__init__.py": "def __getattr__(name):\n    raise RuntimeError('this machine has no GPU to ask')\n",
    "platforms/interface.py": """
from typing import NamedTuple

class DeviceCapability(NamedTuple):
    major: int
    minor: int

class Platform:
    @classmethod
    def is_rocm(cls):
        return False
""",
    "platforms/cuda.py": """
from vllm.platforms.interface import Platform

class CudaPlatformBase(Platform):
    pass
""",
    "envs.py": "import os\nenvironment_variables = {'VLLM_TILE': lambda: int(os.getenv('VLLM_TILE', '32'))}\n",
    "triton_utils.py": "import triton\nimport triton.language as tl\n",
    "helpers.py": "def rounded(n):\n    return 1 << (n - 1).bit_length()\n",
    "ops.py": """
import numba
import torch

import vllm.envs as envs
from vllm.helpers import rounded
from vllm.platforms import current_platform
from vllm.triton_utils import tl, triton
from vllm.warmup import at_start

TILE = envs.VLLM_TILE
is_hip = current_platform.is_rocm()


@triton.jit
def half(x):
    return x * 0.5


@triton.jit
def copy_rows(src, out, stride, SIZE: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    cols = tl.arange(0, SIZE)
    tile = tl.load(src + rows[:, None] * stride + cols[None, :])
    acc = tl.dot(tile, tl.trans(tile))
    tl.store(out + rows[:, None] * ROWS + rows[None, :], half(acc))


def launch(cache, out):
    size = rounded(cache.shape[-1])
    rows = TILE if current_platform.get_device_capability() < (12, 0) else TILE * 2
    copy_rows[(1,)](cache, out, cache.stride(-2), SIZE=size, ROWS=rows, num_warps=4)


@at_start
def never_wanted():
    pass
""",
    "v1/attention/backends/mla/triton_mla.py": """
import torch

from vllm.config import current_config
from vllm.ops import launch
from vllm.common import CommonImpl


class TritonMLAImpl(CommonImpl):
    def forward_mqa(self, q, cache, metadata, layer):
        launch(cache, torch.empty(256, 256, dtype=torch.float32))
""",
}

BESIDE = """
import transformers

current_config = transformers.config
at_start = transformers.warm


class CommonImpl:
    pass
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Where the made-up engine's package lies."""
    for name, text in FILES.items():
        file = tmp_path / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for name in ("config.py", "common.py", "warmup.py"):
        (tmp_path / "vllm" / name).write_text(BESIDE)
    return tmp_path


def edit(engine: Path, name: str, old: str, new: str) -> None:
    file = engine / "vllm" / name
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def ask(engine: Path, on: str = "8.6", leave: tuple[str, ...] = (), **about: Any) -> Answer:
    """What the child answers; `leave` are facts that it is not given."""
    known = {name: value for name, value in ASK.items() if name not in leave}
    job = {
        "capabilities": on.split(),
        "limits": dict.fromkeys(on.split(), LIMIT),
        "module": "attnfit.engines.vllm.triton_kernels",
        "ask": {**known, "root": str(engine), **about},
    }
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(kernel_fit.CHILD)],
        input=json.dumps(job).encode(),
        capture_output=True,
        env=environment,
        timeout=500,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr.decode()[-2000:]
    return msgspec.convert(lines[-1], Answer, strict=False)


def why(answer: Answer) -> str:
    """Why nothing could be said."""
    assert answer.rows == ()
    return " ".join(failure.message for failure in answer.failures)


def test_the_engine_s_own_backend_launches_its_kernel(engine: Path) -> None:
    answer = ask(engine, on="8.6 12.0")
    assert answer.failures == ()
    small, large = answer.rows
    assert (small.kernel, small.case, small.verdict) == ("copy_rows", "decode", "fits")
    assert small.constexprs == {"SIZE": 128, "ROWS": 32}, "80 columns, rounded by its own helper"
    assert large.constexprs["ROWS"] == 64, "its own code saw the capability asked about"
    before = FILES["ops.py"].partition("@triton.jit\ndef copy_rows")[0]
    assert (small.file, small.line) == ("vllm/ops.py", before.count("\n") + 1)
    assert large.shared is not None
    assert large.shared > 0


def test_a_launch_s_variables_reach_the_engine_s_code(engine: Path) -> None:
    (row,) = ask(engine, variables={"VLLM_TILE": "16"}).rows
    assert row.constexprs["ROWS"] == 16


@pytest.mark.parametrize("scale", ["_q_scale_float", "_k_scale_float", "_v_scale_float", "_q_scale", "_v_scale"])
def test_a_backend_may_read_any_scale_of_its_layer(engine: Path, scale: str) -> None:
    backend = "v1/attention/backends/mla/triton_mla.py"
    edit(engine, backend, "        launch(", f"        assert layer.{scale} == 1.0\n        launch(")
    (row,) = ask(engine).rows
    assert row.verdict == "fits"


def test_a_kernel_that_needs_too_much_says_it_in_triton_s_words(engine: Path) -> None:
    edit(engine, "ops.py", "SIZE=size, ROWS=rows", "SIZE=1024, ROWS=128")
    (row,) = ask(engine).rows
    assert row.verdict == "does not fit"
    assert row.message.startswith("out of resource: shared memory, Required: ")
    assert f"Hardware limit: {LIMIT}" in row.message


def test_a_fact_that_nobody_gave_is_named(engine: Path) -> None:
    assert "max_model_len is not given" in why(ask(engine, leave=("max_model_len",)))


def test_what_a_stand_in_would_have_decided_is_unknown(engine: Path) -> None:
    edit(engine, "ops.py", "size = rounded", "size = 64 if numba.fast else 32\n    size = rounded")
    assert "numba.fast was used as a truth value (vllm/ops.py:" in why(ask(engine))


def test_a_release_without_the_backend_is_unknown(engine: Path) -> None:
    (engine / "vllm" / "v1" / "attention" / "backends" / "mla" / "triton_mla.py").unlink()
    assert "vllm.v1.attention.backends.mla.triton_mla" in why(ask(engine))


@pytest.mark.parametrize(
    "does",
    ["torch.save(1, '{out}')", "torch.hub.download_url_to_file('http://127.0.0.1:9/', '{out}')"],
)
def test_engine_code_neither_writes_nor_reaches_the_network(engine: Path, tmp_path: Path, does: str) -> None:
    out = tmp_path / "written"
    edit(engine, "ops.py", "    size = rounded", f"    {does.format(out=out)}\n    size = rounded")
    assert why(ask(engine))
    assert not out.exists() or out.stat().st_size == 0


def test_what_the_engine_itself_refuses_is_told_in_its_words(engine: Path) -> None:
    edit(engine, "ops.py", "    size = rounded", "    raise NotImplementedError('no FP8 yet')\n    size = rounded")
    assert "no FP8 yet" in why(ask(engine))
