"""Which sparse-attention model passes on which GPU in SGLang, as `attnfit check` says: the table of docs/sglang-dsa.md.

    python proofs/sglang_dsa.py [--release 0.5.23] [--full]

A launch is `--tp 8` with the dtype given and nothing else. A cell names the kernels for prefill and decode that the
release resolves to; "?" behind it: no gate looks at whether they run on this GPU (kernel-unknown); a word in brackets:
refused, by that check. What check proposes for a refused launch is checked again, and the script fails if that does not
pass. With --full each answer's own words follow.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from attnfit import check

MODELS = {
    "GLM-5": "zai-org__GLM-5",
    "DeepSeek-V3.2": "deepseek-ai__DeepSeek-V3.2",
    "GLM-5.3-Flash": "zai-org__GLM-5.3-Flash",
}
CAPABILITIES = ("8.0", "8.9", "9.0", "10.0", "12.0")
DTYPES = ("bfloat16", "float16")
#: launches that are refused: model, capability, words. What is proposed instead is checked, too
REFUSED = (
    ("GLM-5", "12.0", "--dsa-prefill-backend flashmla_sparse --dsa-decode-backend flashmla_sparse"),
    ("GLM-5", "8.0", "--dsa-prefill-backend triton_sparse_mla"),
    ("GLM-5", "8.0", "--attention-backend trtllm_mla"),
    ("DeepSeek-V3.2", "12.0", "--dsa-prefill-backend flashinfer_sparse_mla --dsa-decode-backend flashinfer_sparse_mla"),
    ("DeepSeek-V3.2", "9.0", "--attention-backend trtllm_mla"),
    ("GLM-5.3-Flash", "12.0", "--dsa-prefill-backend flashinfer_sparse_mla"),
)
CONFIGS = Path(__file__).parent.parent / "tests" / "data" / "configs.json.gz"


def ask(model: str, capability: str, words: str, release: str, *, planned: bool = False) -> Any:
    command = f"python -m sglang.launch_server --model-path {model} --tp 8 {words}"
    return check(command, gpu=capability, count=8, engine=f"sglang=={release}", planned=planned)


def cell(report: Any) -> str:
    launch = report.launch
    if launch.ok is None:
        return "unknown"
    if not launch.ok:
        return f"[{launch.where.rpartition('/')[2] or launch.stage}]"
    chosen = dict(launch.chosen)
    kernels = dict.fromkeys(chosen[key] for key in ("sparse prefill kernel", "sparse decode kernel") if key in chosen)
    codes = {hazard.code for hazard in launch.hazards}
    return " / ".join(kernels) + (" ?" if "kernel-unknown" in codes else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--release", default="0.5.23")
    parser.add_argument("--full", action="store_true", help="each answer's own words too")
    asked = parser.parse_args()
    configs, wrong, told = json.loads(gzip.decompress(CONFIGS.read_bytes())), 0, []
    print(
        f"SGLang {asked.release}\n\n| model | dtype | {' | '.join(CAPABILITIES)} |",
        f"|---|---|{'---|' * len(CAPABILITIES)}",
        sep="\n",
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, key in MODELS.items():
            path = Path(folder, name)
            path.mkdir()
            config = configs[key]["config"]
            if "vision_config" in config:  # a reconstructed config.json; SGLang wants this key, and cannot read it else
                config["vision_config"].setdefault("swiglu_limit", 0.0)
            (path / "config.json").write_text(json.dumps(config))
            for dtype in DTYPES:
                cells = []
                for capability in CAPABILITIES:
                    report = ask(str(path), capability, f"--dtype {dtype}", asked.release)
                    cells.append(cell(report))
                    said = report.launch.error or ", ".join(f"{h.code}: {h.text}" for h in report.launch.hazards)
                    told.append(f"{name} {dtype} {capability}: {report.verdict}: {said}")
                print(f"| {name} | {dtype} | {' | '.join(cells)} |", flush=True)
        print("\n| refused | GPU | proposed instead | checked |\n|---|---|---|---|")
        for name, capability, given in REFUSED:
            report = ask(str(Path(folder, name)), capability, given, asked.release, planned=True)
            told.append(f"{name} {capability} {given}: {report.verdict}: {report.launch.error}")
            for step in [one for one in report.steps if one.argv][:1]:
                again = check(list(step.argv or ()), gpu=capability, count=8, engine=f"sglang=={asked.release}")
                wrong += again.verdict != "passes"
                codes = ", ".join(sorted({hazard.code for hazard in again.launch.hazards}))
                print(f"| {name} `{given}` | {capability} | {step.text} | {again.verdict}{': ' * bool(codes)}{codes} |")
            if not report.steps:
                print(f"| {name} `{given}` | {capability} | - ({report.verdict}) | |")
    if asked.full:
        print("", *told, sep="\n")
    print(f"\n{wrong} proposals do not pass")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
