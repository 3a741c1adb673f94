"""Whether `attnfit check` foresees what public reports describe, from their inputs alone: one by one, and the share.

    python proofs/foreseen.py            # a table
    python proofs/foreseen.py --markdown # as docs/hazards.md has it

Launches are those of tests/data/foreseen.json. Releases of SGLang that have no compact form are fetched once, as
`attnfit check` fetches them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from foreseen_cases import CASES, Foreseen, ask, models


def answers() -> list[tuple[dict[str, Any], Foreseen]]:
    with tempfile.TemporaryDirectory() as folder:
        at = models(Path(folder))
        return [(case, ask(case, at)) for case in CASES["asked"]]


def word(case: dict[str, Any], found: Foreseen) -> str:
    if found.of(case["kind"]):
        return found.verdict
    if found.verdict in ("refused", "breaks", "may break"):
        return f"{found.verdict}, for {' and '.join(found.kinds) or 'another reason'}"
    return f"not foreseen ({found.verdict})"


def main(markdown: bool) -> int:
    rows = answers()
    for case, found in rows:
        link = f"[{case['id']}]({case['url']})" if case["url"] else case["id"]
        near = case.get("near", "")
        if markdown:
            asked = f"{case['engine']} {case['release']}, {case['gpu']}"
            print(f"| {link} | {case['kind']} | {asked} | {word(case, found)} | {near} |")
        else:
            print(f"{case['id']:<34} {case['kind']:<24} {word(case, found)}")
    right = sum(found.of(case["kind"]) for case, found in rows)
    stopped = sum(found.verdict in ("refused", "breaks", "may break") for _, found in rows)
    print(f"\n{right} of {len(rows)} foreseen for what they are about ({right / len(rows):.0%}); {stopped} stopped")
    print(f"{len(CASES['left_out'])} more reports give too little, are older, or of builds that are not covered")
    return 0 if right >= 0.8 * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main("--markdown" in sys.argv))
