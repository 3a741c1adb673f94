"""Which plan each architecture of a release follows: `families/*.json`."""

from __future__ import annotations

from functools import cache
from pathlib import Path  # importlib.resources would cost a tenth of a check
from typing import Any

import msgspec

from attnfit.engines.vllm.launch.state import Unknown

PROVEN_ON = "0.33.0"


class Families(msgspec.Struct, frozen=True):
    """`families/*.json`; see its read_me."""

    proven_on: str
    plans: dict[str, dict[str, Any]]
    architectures: dict[str, str]
    language_models: dict[str, tuple[str, str | None]]
    text_architectures: dict[str, str]
    drafts_of: dict[str, str]  # target architecture -> architecture of its MTP draft


class Followed(msgspec.Struct, frozen=True):
    """`families/RELEASE.json`: which architectures of another release follow a plan (learn.model_plans)."""

    same: frozenset[str]
    other: dict[str, str]


@cache
def families(release: str) -> Families:
    """The plans as they hold for a release. Raises Unknown for one that was not compared."""
    folder = Path(__file__).with_name("families")
    base = msgspec.json.decode((folder / f"{PROVEN_ON}.json").read_bytes(), type=Families)
    if release == PROVEN_ON:
        return base
    found = folder / f"{release}.json"
    if not found.is_file():
        raise Unknown(f"how the model classes of vLLM {release} build their attention layers")
    followed = msgspec.json.decode(found.read_bytes(), type=Followed)
    kept = {name: plan for name, plan in base.architectures.items() if name in followed.same or name in INNER}
    return msgspec.structs.replace(base, architectures=kept | followed.other)


#: names of language models that only live inside a multimodal model; no registry lists them
INNER = frozenset(
    {
        "AriaText", "ClipText", "Cosmos3EdgeText", "Dots3NoteText", "InternS1ProMoe", "ModernBertText", "SiglipText",
        "UltraBertText",
    }
)  # fmt: skip
