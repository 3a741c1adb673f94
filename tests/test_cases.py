"""Public incident reports: attnfit says what the engine said there (docs/cases.md lists them all)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from attnfit.batch import answers

DATA = Path(__file__).parent / "data"
REPORTS: dict[str, Any] = json.loads((DATA / "cases.json").read_text())


@pytest.fixture(scope="session")
def model_at(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model's directory, laid out from the real or reconstructed config."""
    known: dict[str, Any] = json.loads(gzip.decompress((DATA / "configs.json.gz").read_bytes()))
    root = tmp_path_factory.mktemp("models")

    def at(name: str) -> str:
        place = root / name
        if not place.exists():
            place.mkdir()
            files = REPORTS["models"].get(name) or known[name]
            (place / "config.json").write_text(json.dumps(files["config"]))
            if files.get("hf_quant"):
                (place / "hf_quant_config.json").write_text(json.dumps(files["hf_quant"]))
        return str(place)

    return at


def _name(report: dict[str, Any]) -> str:
    return f"{report['id']}-{report['release']}"


@pytest.mark.parametrize("report", REPORTS["cases"], ids=_name)
def test_the_launch_ends_as_reported(report: dict[str, Any], model_at: Any) -> None:
    item = {
        "engine": f"vllm=={report['release']}",
        "model": model_at(report["model"]),
        "gpu": report["gpu"],
        "command": report["run"],
    }
    (reply,) = answers([json.dumps(item).encode()])
    assert (reply.get("problem"), reply["ok"], reply["stage"]) == (None, report["ok"], report["stage"])
    said = reply["error"] or ""
    if "error" in report:
        assert said == report["error"]
    for part in report.get("error_parts", ()):
        assert part in said
    layers = reply["selector_configs"]
    if "chosen" in report:
        assert sorted({layer["chosen"] for layer in layers}) == report["chosen"]
    if "auto_layers" in report:  # layers that keep an unquantised cache, and pass
        passing = [x["count"] for x in layers if x["config"]["kv_cache_dtype"] == "auto" and x["chosen"]]
        assert sum(passing) == report["auto_layers"]


@pytest.mark.parametrize("report", REPORTS["questions"], ids=_name)
def test_each_backend_refuses_for_the_reported_reason(report: dict[str, Any]) -> None:
    item = {"engine": f"vllm=={report['release']}", "question": report["question"]}
    (reply,) = answers([json.dumps(item).encode()])
    assert reply["chosen"] == report["chosen"]
    for backend, reason in report["refused"].items():
        assert any(reason in text for text in reply["every_backend"][backend])
