"""Random launches over the real configs of tests/data: capabilities 7.5 to 12.1, parallel sizes, flags that matter."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).resolve().parent.parent / "tests" / "data" / "configs.json.gz"
CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")
KV = (
    "auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "nvfp4", "turboquant_4bit_nc",
    "turboquant_k8v4", "int8_per_token_head", "fp8_per_token_head", "fp8_inc", "int4_per_token_head", "octave_k3v4",
    "nvfp4_ds_mla",
)  # fmt: skip
BACKENDS = (
    "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TRITON_MLA", "FLASHMLA", "FLASH_ATTN_MLA",
    "FLASHINFER_MLA", "CUTLASS_MLA", "FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120",
    "FLASHINFER_MLA_SPARSE_SM90", "FLASH_ATTN_MLA_SPARSE", "TURBOQUANT", "TOKENSPEED_MLA", "flash_attn", "auto",
    "TRITON_FLASH_ATTN",
)  # fmt: skip
TENSOR_PARALLEL = ((), ("--tensor-parallel-size", "2"), ("-tp", "4"), ("--tensor-parallel-size=8",), ("-tp", "3"))

# name -> values, or () for a switch. A launch takes none to three of them.
FLAGS: dict[str, tuple[str, ...]] = {
    "--kv-cache-dtype": KV,
    "--attention-backend": BACKENDS,
    "--block-size": ("8", "16", "32", "48", "64", "128", "256"),
    "--dtype": ("float16", "bfloat16", "half", "auto", "float32"),
    "--max-model-len": ("2048", "32768", "131072", "1000000"),
    "--speculative-config": (
        *(f'{{"method": "mtp", "num_speculative_tokens": {n}}}' for n in (1, 2, 3)),
        '{"method": "ngram", "num_speculative_tokens": 2}',
    ),
    "--decode-context-parallel-size": ("2", "4", "8"),
    "--prefill-context-parallel-size": ("2",),
    "--pipeline-parallel-size": ("2", "4"),
    "--data-parallel-size": ("2", "8"),
    "--enable-expert-parallel": (),
    "--quantization": ("fp8", "modelopt", "modelopt_fp4", "awq", "gptq", "compressed-tensors", "mxfp4"),
    "--kv-transfer-config": ('{"kv_connector": "NixlConnector", "kv_role": "kv_both"}',),
    "--enforce-eager": (),
    "--max-num-seqs": ("1", "64", "1024"),
    "--no-enable-prefix-caching": (),
    "--mamba-cache-mode": ("all", "align", "none"),
    "--hf-overrides": ('{"num_hidden_layers": 8}', '{"index_topk": 1024}'),
    "--disable-sliding-window": (),
    "--attention-config": ('{"backend": "TRITON_ATTN"}', '{"flash_attn_version": 2}', '{"use_non_causal": true}'),
    "--moe-backend": ("triton", "flashinfer_cutlass", "marlin", "deep_gemm"),
    "--enable-lora": (),
    "--max-num-batched-tokens": ("512", "8192", "16384"),
    "--enable-prefix-caching": (),
    "--no-enable-chunked-prefill": (),
    "--trust-remote-code": (),
    "--language-model-only": (),
    "--limit-mm-per-prompt": ('{"image": 0}',),
    "--gpu-memory-utilization": ("0.5", "0.95"),
    "--mamba-ssm-cache-dtype": ("float32", "auto", "float16"),
    "-cc": ('{"cudagraph_mode": "FULL"}',),
    "--async-scheduling": (),
    "--swap-space": ("4",),
    "--served-model-name": ("m",),
    "--kv-cache-dtype-skip-layers": ("sliding_window", "0,1"),
    "--gdn-prefill-backend": ("triton", "flashinfer"),
    "--runner": ("pooling", "generate"),
    "--no-such-flag": (),
}


def models(folder: Path) -> list[Path]:
    """Lays the configs out as model directories under `folder`."""
    made = []
    for name, files in json.loads(gzip.decompress(CONFIGS.read_bytes())).items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        for key, file in (("config", "config.json"), ("hf_quant", "hf_quant_config.json")):
            if files.get(key) is not None:
                (place / file).write_text(json.dumps(files[key]), "utf-8")
        made.append(place)
    return made


def launches(places: list[Path], count: int, seed: int) -> Iterator[dict[str, Any]]:
    """`count` launches, as proofs/real_launch.py and `attnfit check --batch` read them."""
    pick = random.Random(seed)
    choose: Callable[[tuple[Any, ...]], Any] = pick.choice
    for _ in range(count):
        flags = list(choose(TENSOR_PARALLEL))
        for name in pick.sample(list(FLAGS), pick.choices((0, 1, 2, 3), (15, 45, 28, 12))[0]):
            flags += [name, choose(FLAGS[name])] if FLAGS[name] else [name]
        yield {"model": str(pick.choice(places)), "capability": choose(CAPABILITIES), "flags": flags}
