"""Reported cures: what people were told in public, or something cheaper that starts, is among the first three."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from attnfit.core import Report
from attnfit.engines.entry import entry_of
from fit_cases import DATA, configs
from planner_cases import ask, clean

CASES: list[dict[str, Any]] = json.loads((DATA / "planner.json").read_bytes())["cases"]
REBUILT: dict[str, Any] = json.loads((DATA / "foreseen.json").read_bytes())["models"]


@pytest.fixture(autouse=True)
def _nothing_at_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The shipped forms answer, whatever sources this machine keeps."""
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ATTNFIT_OFFLINE", "1")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_reported_cure_or_a_cheaper_one_is_among_the_first_three(case: dict[str, Any], tmp_path: Path) -> None:
    place = lay_out(case["model"], tmp_path / "model")
    words = [*entry_of(case["engine"].partition("==")[0]).start.split(), str(place), *case["flags"]]
    where = (case["gpu"], case["count"], case["engine"])
    report = ask(words, *where, planned=True)
    assert report.verdict == case["verdict"]
    first = [step for step in report.steps[:3] if step.argv]
    wanted = case.get("cure") or case["cheaper"]
    found = [step for step in first if any(_says(step.argv or (), cure, case, place) for cure in wanted)]
    assert found, [step.text for step in report.steps]
    for step in found:
        after = ask(step.argv or (), *where, step.env)
        assert clean(after)
        assert not case.get("cheaper") or serving(after) == "triton", case["why"]


def _says(argv: tuple[str, ...], cure: str, case: dict[str, Any], place: Path) -> bool:
    """Whether the command holds the cure, and is else the one given."""
    words = " ".join(argv).replace(str(place), "MODEL")
    return cure in words if cure else not any(flag in argv for flag in case["flags"])


def serving(report: Report) -> str:
    return ", ".join(dict.fromkeys(name for role, name in report.launch.chosen if role in ("prefill", "decode")))


def lay_out(model: str, place: Path) -> Path:
    place.mkdir()
    if model in REBUILT:
        (place / "config.json").write_text(json.dumps(REBUILT[model]["config"]), "utf-8")
        gptq(REBUILT[model]["config"], place / "model.safetensors")
        return place
    files = configs()[model]
    (place / "config.json").write_text(json.dumps(files["config"]), "utf-8")
    if files.get("hf_quant"):
        (place / "hf_quant_config.json").write_text(json.dumps(files["hf_quant"]), "utf-8")
    return place


def gptq(config: dict[str, Any], path: Path) -> None:
    """The header of a model whose linear layers GPTQ holds in 4 bits, and a hole in place of its weights."""
    wide, inner, layers = (config[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("F16", (config["vocab_size"], wide)),
        "lm_head.weight": ("F16", (config["vocab_size"], wide)),
        "model.norm.weight": ("F16", (wide,)),
    }
    for i in range(layers):
        linear = {f"self_attn.{name}_proj": (wide, wide) for name in "qkvo"}
        linear |= {"mlp.gate_proj": (wide, inner), "mlp.up_proj": (wide, inner), "mlp.down_proj": (inner, wide)}
        for name, (rows, columns) in linear.items():
            layer = f"model.layers.{i}.{name}."
            tensors[f"{layer}qweight"] = ("I32", (rows // 8, columns))
            tensors[f"{layer}qzeros"] = ("I32", (rows // 128, columns // 8))
            tensors[f"{layer}scales"] = ("F16", (rows // 128, columns))
            tensors[f"{layer}g_idx"] = ("I32", (rows,))
        for name in "qkv":
            tensors[f"model.layers.{i}.self_attn.{name}_proj.bias"] = ("F16", (wide,))
        for name in ("input", "post_attention"):
            tensors[f"model.layers.{i}.{name}_layernorm.weight"] = ("F16", (wide,))
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = at + math.prod(shape) * (4 if dtype == "I32" else 2)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (at, end)}
        at = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
