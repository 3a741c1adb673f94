"""SGLang's own argument resolution and backend construction, run from a release's source files in an isolated child.

Everything here but this file runs inside the child and is standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnfit.witness.client import Witness

if TYPE_CHECKING:
    from attnfit.engines.sglang.answers import Answer, Case
    from attnfit.witness.cache import Source

JOBS = "attnfit.engines.sglang.witness.jobs"
CPU_SECONDS = 3600  # of the child's whole life; each answer has the client's own limit


class Child:
    """One release in one isolated child process."""

    def __init__(self, source: Source) -> None:
        self._witness = Witness(
            source.root,
            source.version,
            source.env,
            modules=[JOBS],
            packages=["attnfit.hf"],
            cpu_seconds=CPU_SECONDS,
        )

    def ask(self, case: Case) -> Answer:
        """One launch. Raises UnknownAnswer or WitnessError."""
        asked = {**case, "others": _drafts(case["argv"])}
        answer: Answer = self._witness.call("sglang launch", case=asked)
        return answer

    def close(self) -> None:
        self._witness.close()


def _drafts(argv: list[str]) -> dict[str, Any]:
    """The config.json of a draft model that the words name and that lies here, by its path."""
    from attnfit.inputs.json_file import read_object

    found = {}
    for index, word in enumerate(argv):
        name, _, value = word.partition("=")
        if name.startswith("--speculative-draft-model"):
            path = value or (argv[index + 1] if index + 1 < len(argv) else "")
            if path and os.path.isfile(os.path.join(path, "config.json")):
                found[path.rstrip("/")] = read_object(Path(path) / "config.json")
    return found
