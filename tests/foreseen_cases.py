"""The public reports that give enough to be asked, as launches; `proofs/foreseen.py` prints what becomes of each."""

from __future__ import annotations

import gzip
import json
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from attnfit.api import check
from attnfit.core import Report
from attnfit.errors import AttnfitError
from attnfit.hazards import catalogue, matches

DATA = Path(__file__).parent / "data"
CASES: dict[str, Any] = json.loads((DATA / "foreseen.json").read_text("utf-8"))


WEIGHTS: dict[str, Any] = {
    case["model"]: json.loads(gzip.decompress((DATA / "checkpoints.json.gz").read_bytes()))[case["model"]]
    for case in CASES["asked"]
    if case.get("weights")
}


class Foreseen(NamedTuple):
    verdict: str  # "refused", "breaks", "may break", "passes", "unknown", or what went wrong
    kinds: tuple[str, ...]  # what it is said to be about
    text: str

    def of(self, wanted: str) -> bool:
        """Whether the launch is stopped, or may be, for what the report is about."""
        return self.verdict in ("refused", "breaks", "may break") and wanted in self.kinds


def models(root: Path) -> dict[str, str]:
    """Every model that a case names, laid out below `root`: name -> directory."""
    known: dict[str, Any] = json.loads(gzip.decompress((DATA / "configs.json.gz").read_bytes()))
    rebuilt = json.loads((DATA / "cases.json").read_text("utf-8"))["models"] | CASES["models"]
    found = {}
    for name in {case["model"] for case in CASES["asked"]}:
        files = rebuilt.get(name) or known[name]
        if "like" in files:
            base = rebuilt.get(files["like"]) or known[files["like"]]
            files = {"config": base["config"] | files["config"], "hf_quant": files.get("hf_quant")}
        place = root / name
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(files["config"]))
        if files.get("hf_quant"):
            (place / "hf_quant_config.json").write_text(json.dumps(files["hf_quant"]))
        if name in WEIGHTS:
            _weights(place / "model.safetensors", WEIGHTS[name])
        for reference in (files["config"].get("auto_map") or {}).values():
            (place / f"{str(reference).split('.')[0]}.py").touch()
        found[name] = str(place)
    return found


def _weights(file: Path, rows: list[Any]) -> None:
    """A file that says of itself what an FP8 checkpoint of these tensors would, and holds nothing."""
    header: dict[str, Any] = {}
    end = 0
    for pattern, _, shape, layers, each in rows:
        fp8 = len(shape) >= 2 and "embed" not in pattern and "lm_head" not in pattern
        for i in layers or [0]:
            for e in range(each):
                start, end = end, end + prod(shape) * (1 if fp8 else 2)
                name = pattern.format(i=i, e=e)
                header[name] = {"dtype": "F8_E4M3" if fp8 else "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.truncate(8 + len(text) + end)  # no byte of it is on the disk


def ask(case: dict[str, Any], at: dict[str, str]) -> Foreseen:
    """The answer of `check` for one case. Its own words are put to the catalogue to see which kind they are."""
    command = case["run"].replace(" m", f" {at[case['model']]}", 1)
    engine = f"{case['engine']}=={case['release']}"
    try:
        report = check(command, gpu=case["gpu"], engine=engine, env=case.get("env"), planned=False)
    except AttnfitError as error:
        return Foreseen(f"not answered: {error}", (), "")
    return _read(report)


def _read(report: Report) -> Foreseen:
    launch = report.launch
    said = [launch.error or "", launch.detail]
    kinds = [hazard.kind for hazard in launch.hazards if hazard.strength]
    if launch.fit is not None and launch.fit.verdict in ("breaks", "may break"):
        memory = "gpu-memory" if "the weights alone" in launch.fit.why else "kv-memory"
        kinds.append("mamba-cache" if launch.fit.sequences else memory)
    for line in filter(None, said):
        kinds += [hit.record.kind for hit in matches(" ".join(line.split()), catalogue())[:1]]
    if launch.error and len(report.gpus) > 1:
        kinds.append("mixed-gpus")
    verdict = "may break" if report.may_break else report.verdict
    words = launch.error or next((h.text for h in launch.hazards if h.strength), launch.fit.why if launch.fit else "")
    return Foreseen(verdict, tuple(dict.fromkeys(kinds)), words.splitlines()[0] if words else "")
