"""The launches of a GLM-5 as GGUF: their files, and whether what `check` says is what an engine did.

Shared by test_gguf_story.py, which has recorded answers, and proofs/gguf_story.py, which asks an installed engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_glm
from hub_server import Hub

REPO = "tiny/GLM-5-GGUF"
#: folders with a config.json, and what is special about it
FOLDERS: dict[str, dict[str, Any]] = {
    "full": {},
    "no-tokenizer": {},
    "no-topk": {"index_topk": None},
    "as-v3": {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]},
    "as-v32": {"model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"]},
}


def lay_out(root: Path, hub: Hub) -> dict[str, str]:
    """The files, and what each word of LAUNCHES stands for."""
    words = {}
    for name, changed in FOLDERS.items():
        folder = gguf_glm.config(root / name, **changed)
        if name != "no-tokenizer":
            gguf_glm.tokenizer(folder)
        words[name] = str(folder)
    (root / "alone").mkdir()
    words["FILE"] = str(gguf_glm.write(root / "alone" / "glm.gguf"))
    words["BESIDE"] = str(gguf_glm.write(gguf_glm.tokenizer(gguf_glm.config(root / "beside")) / "glm.gguf"))
    weights = Path(words["FILE"]).read_bytes()
    for name, suffix in (("full", ""), ("as-v3", "-as-v3"), ("as-v32", "-as-v32")):
        files: dict[str, Any] = {file.name: file.read_bytes() for file in (root / name).iterdir()}
        hub.add(REPO + suffix, {**files, "glm-Q8_0.gguf": weights})
    return words


def ask_check(launch: dict[str, Any], version: str, plugin: bool) -> Any:
    from attnfit import engines
    from attnfit.core import Capability, Gpu
    from attnfit.engines import Circumstances
    from attnfit.inputs.model import read_model

    model = read_model(launch["model"]).model()
    gpu = Gpu(name="", capability=Capability.parse(launch["capability"]))
    this = Circumstances(model, gpu, launch["flags"], env={"gguf_plugin": True} if plugin else {})
    return engines.engine("vllm").release(version).launch(this)


def agree(real: dict[str, Any], ours: Any) -> bool:
    """The first refusal is the same, or both find none. A tokenizer is the user's file: check names it in a note."""
    stages = {name: said for name, said in real["stages"].items() if name != "tokenizer" and said != "ok"}
    if not stages:
        return bool(ours.ok)
    if ours.ok is not False:
        return False
    first, said = next(iter(stages.items()))
    other = {"create_engine_config": "transformers 5 assumed", "load_weights": "transformers 4 assumed"}
    if any(other.get(first, "-") in note for note in ours.notes):
        return True  # the venv has the other transformers, which the release takes too; check says which it assumes
    where = {"model_init": ("selector", "model_init")}.get(first, (first,))
    return ours.stage in where and line(ours.error) == line(said["error"])


def line(text: str) -> str:
    """One line, without what pydantic adds of its own."""
    return " ".join(text.split(" [type=")[0].split())[:160].rstrip()
