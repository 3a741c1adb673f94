"""Models on disk, and what a cell of `where` or `which` must share with `attnfit check`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import attnfit
from attnfit.core import Report
from attnfit.engines import engine
from attnfit.fleet.cell import Cell
from attnfit.fleet.where import Fleet, sensible
from attnfit.fleet.where import where as walk
from attnfit.gpus import GpuEntry, catalogue
from attnfit.subject import Subject, Where, read
from fit_cases import configs
from test_fit_weights import checkpoint

ENGINE = "vllm"


def write(folder: Path, model: str) -> Path:
    """The model as a directory without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    files = configs()[model]
    (folder / "config.json").write_text(json.dumps(files["config"]), "utf-8")
    if files.get("hf_quant"):
        (folder / "hf_quant_config.json").write_text(json.dumps(files["hf_quant"]), "utf-8")
    return folder


def subject(folder: Path) -> Subject:
    return read(engine(ENGINE), None, str(folder))


def asked(this: Subject, release: str, gpus: Sequence[GpuEntry]) -> Fleet:
    where = Where(engine(ENGINE).release(release))
    return walk(this, where, [(entry.gpu, sensible(this, entry.shared_memory)) for entry in gpus])


def check(folder: Path, gpu: str, count: int, release: str) -> Report:
    return attnfit.check(model=str(folder), gpu=gpu, count=count, engine=f"{ENGINE}=={release}", far=False)


def differences(found: Cell, report: Report) -> list[str]:
    """Where a cell says something else than `check`; empty if nowhere."""
    launch, fit = report.launch, report.launch.fit
    step = next((each for each in report.steps if each.argv and not each.breaks), None)
    passes = report.verdict == "passes"
    answer = "as is" if passes else "unknown" if report.verdict == "unknown" else "with a change" if step else "no"
    pairs: dict[str, tuple[object, object]] = {
        "verdict": (found.verdict, report.verdict),
        "answer": (found.answer, answer),
        "exact": (found.exact, report.exact),
        "asked": (found.asked, report.command),
    }
    if passes:
        names = {name for layer in launch.layers if (name := layer.selection.chosen)}
        too_small = fit is not None and fit.supposed
        pairs["serves"] = (set(found.serves.split(", ")) - {""}, names)
        pairs["memory"] = (found.memory, "" if fit is None else "too small" if too_small else fit.verdict)
        pairs["doubts"] = (set(found.doubts), {hazard.code for hazard in launch.hazards if hazard.may_break})
    if answer == "with a change" and step is not None:
        pairs["command"] = (found.command, step.argv)
        pairs["change"] = (step.text.startswith(found.change), True)
        pairs["installs"] = (found.installs, step.installs)
    return [f"{name}: {ours!r}, check says {theirs!r}" for name, (ours, theirs) in pairs.items() if ours != theirs]


def sample(random: Random, folder: Path, releases: Sequence[str], gpus: int, cells: int) -> list[str]:
    """`where` on `gpus` GPUs of a model and release chosen at random; `cells` of its answers are asked again."""
    model, release = random.choice(sorted(configs())), random.choice(list(releases))
    place = write(folder / model, model)
    fleet = asked(subject(place), release, random.sample(catalogue(), gpus))
    every = [(row.gpu.name, each) for row in fleet.rows for each in row.cells]
    wrong = []
    for gpu, found in random.sample(every, min(cells, len(every))):
        bad = differences(found, check(place, gpu, found.count, release))
        wrong += [f"{model} in {release} on {found.count} x {gpu}: {each}" for each in bad]
    return wrong


def whole(folder: Path, model: str) -> Path:
    """The model with its weights: a file whose header is true, and which holds nothing."""
    place, header, end = write(folder, model), {}, 0
    for name, (dtype, shape, size) in checkpoint(model).items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with (place / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return place
