"""Launches that pass, walked to the point where they can be measured: what the fit tests share."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attnfit.core import Capability, Model
from attnfit.engines.vllm import Release
from attnfit.engines.vllm.fit.specs import Built
from attnfit.engines.vllm.launch import Case, walk

DATA = Path(__file__).parent / "data"
RELEASE = Release("0.33.0")


@cache
def configs() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress((DATA / "configs.json.gz").read_bytes()))
    return loaded


def case(model: str, flags: Sequence[str] = (), capability: str = "9.0", **config: Any) -> Case:
    files = configs()[model]
    return Case(
        model=Model(path=model, config={**files["config"], **config}, hf_quant=files.get("hf_quant")),
        capability=Capability.parse(capability),
        argv=tuple(flags),
        release="0.33.0",
        gpus=64,
        form="auto",
        files_here=True,
        variables={},
        env={},
        select=RELEASE.select,
    )


@cache
def built(model: str, flags: tuple[str, ...] = (), capability: str = "9.0") -> Built:
    """The launch with its layers and block sizes, as the engine has it once the model is built."""
    return built_from(case(model, flags, capability))


def built_from(one: Case) -> Built:
    walked = walk(one)
    return Built(
        walked.config, walked.answer.kv_cache_dtype, walked.answer.kv_layers, walked.sizes, one.capability
    )  # fmt: skip
