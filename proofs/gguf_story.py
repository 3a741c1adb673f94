"""A GLM-5 as GGUF, from the command to the selector: what real engines do with it, and what `attnfit check` says.

    python proofs/gguf_story.py --python VENV/bin/python [--path DIR]... [--stub DIR] [--out FILE]

VENV holds a vLLM that is not changed; --path is put in front of its own packages (vllm-gguf-plugin: `pip install
--no-deps --target DIR vllm-gguf-plugin==0.0.5 gguf==0.19.0`); --stub holds libcuda.so.1 (docs/proofs.md). The files are
those of tests/gguf_glm.py, the repository stands on a hub on this machine. Prints a line for each launch, and exits 1
where the first refusal is not the one that check foresees. About half a minute an engine, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from gguf_launches import REPO, agree, ask_check, lay_out, line  # noqa: E402
from hub_server import Hub  # noqa: E402

HALF, BF16 = ("--dtype", "float16"), ("--dtype", "bfloat16")
#: model, flags; a word of FOLDERS behind a flag is its path
LAUNCHES: list[tuple[str, tuple[str, ...]]] = [
    ("FILE", ()),
    ("FILE", HALF),
    ("FILE", ("--hf-config-path", "full")),
    ("FILE", ("--hf-config-path", "full", *HALF)),
    ("FILE", ("--hf-config-path", "full", "--tokenizer", "full", *BF16)),
    ("FILE", ("--tokenizer", "full", *BF16)),
    ("FILE", ("--hf-config-path", "no-tokenizer", *BF16)),
    ("FILE", ("--hf-config-path", "no-tokenizer", "--tokenizer", "full", *BF16)),
    ("FILE", ("--hf-config-path", "no-topk", *BF16)),
    ("FILE", ("--hf-config-path", "as-v3", *BF16)),
    ("FILE", ("--hf-config-path", "as-v3", *HALF)),
    ("FILE", ("--hf-config-path", "as-v32", *BF16)),
    ("BESIDE", BF16),
    (f"{REPO}:Q8_0", BF16),
    (f"{REPO}:Q8_0", HALF),
    (f"{REPO}-as-v3:Q8_0", (*HALF, "--tokenizer", "full")),
    (f"{REPO}-as-v3:Q8_0", (*BF16, "--tokenizer", "full")),
    (f"{REPO}-as-v32:Q8_0", (*HALF, "--tokenizer", "full")),
]


def ask_engine(python: str, paths: list[str], stub: str | None, launches: list[dict[str, Any]], home: Path) -> Any:
    env = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "PYTHONPATH": ":".join(paths)}
    if stub:
        env["LD_LIBRARY_PATH"] = stub
    text = "\n".join(json.dumps(launch) for launch in launches)
    found = subprocess.run(
        [python, str(HERE / "real_gguf.py")], input=text, env=env, stdout=subprocess.PIPE, text=True, timeout=900
    )
    return [json.loads(line) for line in found.stdout.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", required=True, help="the interpreter of a venv with vLLM")
    parser.add_argument("--path", action="append", default=[], help="a folder of packages to put in front")
    parser.add_argument("--stub", help="the folder with libcuda.so.1")
    parser.add_argument("--capability", action="append", help="default: 9.0 and 12.0")
    parser.add_argument("--out", help="a file for the engine's answers, one a line")
    asked = parser.parse_args()
    hub = Hub()
    os.environ.update(HF_ENDPOINT=hub.url, HF_HUB_DISABLE_TELEMETRY="1")
    plugin = any(Path(path, "vllm_gguf_plugin").is_dir() for path in asked.path)
    wrong = unknown = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["HF_HOME"] = str(root / "hf")  # before huggingface_hub is imported
        words = lay_out(root, hub)
        launches = [
            {"model": words.get(model, model), "flags": [words.get(flag, flag) for flag in flags], "capability": at}
            for at in asked.capability or ["9.0", "12.0"]
            for model, flags in LAUNCHES
        ]
        answers = ask_engine(asked.python, asked.path, asked.stub, launches, root / "hf-engine")
        for real in answers:
            ours = ask_check(real, real["version"], plugin)
            same, open_ = agree(real, ours), ours.ok is None
            unknown += open_
            wrong += not same and not open_
            named = " ".join([real["model"], *real["flags"]]).replace(f"{root}/", "")
            print(f"{'' if same else 'unknown ' if open_ else 'WRONG '}{real['capability']} {named}")
            for stage, said in real["stages"].items():
                print(f"    {stage}: {said if said == 'ok' else line(said['error']) + '; ' + said['where'][-1]}")
            if left := real.get("unmapped_tensors"):
                print(f"    not in the loader's map: {len(left)} tensors, {', '.join(left[:8])}")
            if not same:
                print(f"    check: {ours.ok} at {ours.stage}: {line(ours.error or ''.join(ours.unknown))}")
        text = "".join(json.dumps(real) + "\n" for real in answers).replace(f"{root}/", "")
    hub.close()
    if asked.out:
        Path(asked.out).write_text(text)
    missing = len(launches) - len(answers)
    print(f"{answers[0]['version'] if answers else '?'}: {len(answers)} launches, {wrong} wrong, {unknown} unknown"
          + (f", {missing} without an answer" if missing else ""))  # fmt: skip
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
