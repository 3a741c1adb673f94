"""Write what each vLLM release brings and which variables it reads, from its unpacked wheels.

    python proofs/vllm_surroundings.py SOURCES

SOURCES holds a directory a release, each with `vllm/` and its `*.dist-info`. Written are, beside
`engines/vllm/foreseen`: `brings.json` (the exact pins of its Requires-Dist that decide something) and `variables.json`
(every VLLM_* name that stands as a string in one of its Python files: first and last release).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

OUT = Path(__file__).parent.parent / "src/attnfit/engines/vllm/foreseen"
PINS = ("torch", "triton", "flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")
NAME = re.compile(r"""["'](VLLM_[A-Z0-9_]+)["']""")


def pins(release: Path) -> dict[str, str]:
    """Package -> version, of the requirements without a marker that name exactly one."""
    found = {}
    (metadata,) = release.glob("vllm-*.dist-info/METADATA")
    for line in metadata.read_text("utf-8").splitlines():
        if not line.startswith("Requires-Dist: "):
            continue
        wanted = Requirement(line.removeprefix("Requires-Dist: "))
        exact = [each.version for each in wanted.specifier if each.operator == "=="]
        if wanted.name in PINS and wanted.marker is None and exact:
            found[wanted.name] = exact[0]
    return found


def names(release: Path) -> set[str]:
    return {
        name
        for file in sorted((release / "vllm").rglob("*.py"))
        for name in NAME.findall(file.read_text("utf-8", "replace"))
    }


def main(sources: Path) -> None:
    releases = sorted((p for p in sources.iterdir() if (p / "vllm").is_dir()), key=lambda p: Version(p.name))
    known = [release.name for release in releases]
    read = {release.name: names(release) for release in releases}
    variables = {}
    for name in sorted(set().union(*read.values())):
        at = [release for release in known if name in read[release]]
        variables[name] = [at[0], at[-1]]
    brings = {release.name: pins(release) for release in releases}
    how = f"proofs/vllm_surroundings.py, from the wheels of vLLM {known[0]} to {known[-1]}"
    _write("brings.json", {"how": f"{how}: exact pins of Requires-Dist", "releases": brings})
    _write("variables.json", {
        "how": f"{how}: VLLM_* strings of its Python files; first and last release that has it",
        "releases": known, "variables": variables,
    })  # fmt: skip


def _write(name: str, body: dict[str, object]) -> None:
    rows = body.pop("variables" if "variables" in body else "releases")
    assert isinstance(rows, dict)
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in body.items())
    key = "variables" if name == "variables.json" else "releases"
    lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items())
    (OUT / name).write_text(f"{{\n{head} {json.dumps(key)}: {{\n{lines}\n }}\n}}\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
