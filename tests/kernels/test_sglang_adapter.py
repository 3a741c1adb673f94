"""SGLang's releases before a kernel class: the backend's own methods, in both forms in which models have called them.

The release is made up; its file names, and what the methods are given, are the real one's.
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

ASK = {
    "kernel": "gdn", "dtype": "bfloat16", "state_dtype": "float32", "steps": ["prefill", "decode"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
PASSED = "self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs"
HELD = "self, layer, forward_batch, mixed_qkv, a, b, **kwargs"
BACKEND = """
from sglang.srt.layers.attention.fla.fused_sigmoid_gating_recurrent import fused_sigmoid_gating_delta_rule_update as run


class GDNAttnBackend:
    def forward_extend({arguments}):
        {value_dim}
        run(value_dim, 64)

    def forward_decode({arguments}):
        {value_dim}
        run(value_dim, 16)
"""
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def zero(out, SIZE: tl.constexpr, ROWS: tl.constexpr):
    tl.store(out + tl.arange(0, SIZE), tl.zeros([SIZE], tl.float32) + ROWS)


def fused_sigmoid_gating_delta_rule_update(size, rows):
    zero[(1,)](torch.empty(size, dtype=torch.float32), SIZE=size, ROWS=rows)
"""


@pytest.mark.parametrize(
    ("arguments", "value_dim"),
    [
        (PASSED, "value_dim = kwargs['value_dim'] // kwargs['attention_tp_size']"),
        (HELD, "value_dim = layer.v_dim"),
    ],
    ids=["passed, until 0.5.8", "held by the layer, 0.5.9"],
)
def test_the_backend_s_own_methods_launch_the_kernels(tmp_path: Path, arguments: str, value_dim: str) -> None:
    attention = tmp_path / "sglang" / "srt" / "layers" / "attention"
    (attention / "fla").mkdir(parents=True)
    text = BACKEND.format(arguments=arguments, value_dim=value_dim)
    (attention / "hybrid_linear_attn_backend.py").write_text(text)
    (attention / "fla" / "fused_sigmoid_gating_recurrent.py").write_text(KERNEL)
    answer = ask(tmp_path)
    assert answer.failures == ()
    found = [(row.case, row.verdict, row.constexprs) for row in answer.rows]
    assert found == [
        ("extend", "fits", {"SIZE": 128, "ROWS": 64}),
        ("decode", "fits", {"SIZE": 128, "ROWS": 16}),
    ]


def ask(root: Path) -> Answer:
    """What the child answers for an RTX 3090's capability."""
    job: dict[str, Any] = {
        "capabilities": ["8.6"],
        "limits": {"8.6": 101376},
        "module": "attnfit.engines.sglang.triton_kernels",
        "ask": {**ASK, "root": str(root)},
    }
    done = subprocess.run(
        [sys.executable, str(kernel_fit.CHILD)],
        input=json.dumps(job).encode(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=500,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr.decode()[-2000:]
    return msgspec.convert(lines[-1], Answer, strict=False)
