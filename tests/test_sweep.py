"""Every model on every kind of GPU: an answer each, and what is unknown names what is missing."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from attnfit.batch import answers

DATA = Path(__file__).parent / "data"
CONFIGS: dict[str, Any] = json.loads(gzip.decompress((DATA / "configs.json.gz").read_bytes()))
WORKING: list[dict[str, Any]] = json.loads((DATA / "working.json").read_text())
GPUS = (
    "v100", "t4", "a100-80g", "a10", "3090", "l40s", "4090", "h100", "h200", "b200", "rtx-pro-6000", "gb10",
)  # fmt: skip
NAMES_A_GAP = ("whether ", "how ", "what ", "the ", "architecture ", "config class ")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The 55 real configs as directories, with empty files where a checkpoint brings code of its own."""
    root = tmp_path_factory.mktemp("models")
    for name, files in CONFIGS.items():
        place = root / name
        place.mkdir()
        (place / "config.json").write_text(json.dumps(files["config"]))
        if files.get("hf_quant"):
            (place / "hf_quant_config.json").write_text(json.dumps(files["hf_quant"]))
        for reference in (files["config"].get("auto_map") or {}).values():
            (place / f"{str(reference).split('.')[0]}.py").touch()
    return {name: str(root / name) for name in CONFIGS}


@pytest.mark.parametrize(("release", "most_unknown"), [("0.16.0", 0.10), ("0.23.0", 0.15), ("0.33.0", 0.02)])
def test_every_model_on_every_gpu_gets_an_answer(models: dict[str, str], release: str, most_unknown: float) -> None:
    lines = [
        json.dumps(
            {"engine": f"vllm=={release}", "model": path, "gpu": f"{gpu}x8", "flags": ["--tensor-parallel-size", "8"]}
        )
        for path in models.values()
        for gpu in GPUS
    ]
    replies = list(answers(line.encode() for line in lines))
    assert [reply["problem"] for reply in replies if "problem" in reply] == []
    for reply in replies:
        if reply["ok"] is None:
            assert reply["unknown"]
            for sentence in reply["unknown"]:
                assert sentence.startswith(NAMES_A_GAP) or "config.json" in sentence, sentence
        elif reply["ok"] is False:
            assert reply["error"]
    verdicts = Counter(reply["ok"] for reply in replies)
    assert verdicts[None] / len(replies) <= most_unknown


def test_a_launch_documented_as_working_is_never_refused(models: dict[str, str]) -> None:
    lines = [
        {"id": x["id"], "engine": f"vllm=={x['release']}", "model": models[x["model"]], "gpu": x["gpu"],
         "command": x["run"]}
        for x in WORKING
    ]  # fmt: skip
    replies = list(answers(json.dumps(line).encode() for line in lines))
    refused = [(r["id"], r.get("problem") or r["error"]) for r in replies if "problem" in r or r["ok"] is False]
    assert refused == []
    assert [r["id"] for r in replies if any(hazard["strength"] == "breaks" for hazard in r["hazards"])] == []
    assert sum(r["ok"] is None for r in replies) <= len(replies) // 4
