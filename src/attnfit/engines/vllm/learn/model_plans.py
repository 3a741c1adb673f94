"""Which plan of `launch/families/` each architecture of a release follows, decided by its units (`model_calls`).

An architecture gets a plan only if every class on the way to its attention layers reads as it did in the release the
plans were written from, or as a reviewed equal of it (`families/units.json`); else it is left out, and a launch of it
is unknown for that release. Usage:

    python -m attnfit.engines.vllm.learn.model_plans RELEASE SOURCE      # writes launch/families/RELEASE.json
    python -m attnfit.engines.vllm.learn.model_plans --base SOURCE       # rewrites the digests of the proven release
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from attnfit.engines.vllm.learn.model_calls import Name, Source, units

FAMILIES = Path(str(files("attnfit.engines.vllm.launch"))) / "families"
BASE = "0.33.0"


def digests(source: Source, architectures: set[str]) -> dict[str, list[str]]:
    """Unit name -> digests it has in this release."""
    out: dict[str, set[str]] = {}
    for architecture, where in source.registry().items():
        if architecture in architectures:
            for unit in units(source, where):
                out.setdefault(unit.name, set()).add(unit.digest)
    return {name: sorted(found) for name, found in sorted(out.items())}


def plans(source: Source, base: dict[str, Any], table: dict[str, Any]) -> dict[str, str]:
    """Architecture -> plan, for those whose units are all known."""
    known: dict[str, list[str]] = table["digests"]
    equal: dict[str, list[str]] = table["equal"]
    instead: dict[str, str] = table["instead"]
    default: dict[str, str] = base["architectures"]
    out = {}
    for architecture, where in sorted({**_inside(source, base), **source.registry()}.items()):
        if architecture not in default:
            continue
        found = units(source, where)
        plan = default[architecture]
        for unit in found:
            other = instead.get(f"{unit.name}:{unit.digest}")
            if other is not None:
                plan = other
            elif unit.digest not in known.get(unit.name, ()) and unit.digest not in equal.get(unit.name, ()):
                break
        else:
            names = {unit.name for unit in found}
            if found and plan in table["needs"] and not names & set(table["needs"][plan]["any"]):
                plan = table["needs"][plan]["else"]
            out[architecture] = plan
    return out


def _inside(source: Source, base: dict[str, Any]) -> dict[str, Name]:
    """Language models that this release builds inside a multimodal model of the same module and does not register."""
    registry = source.registry()
    found = {}
    for outer, (_, inner) in base["language_models"].items():
        if inner is None or inner in registry or outer not in registry:
            continue
        where = Name(registry[outer].module, inner)
        if units(source, where):
            found[inner] = where
    return found


def write(release: str, root: Path) -> int:
    """families/RELEASE.json: architectures with the proven release's plan, and those with another one."""
    base = json.loads((FAMILIES / f"{BASE}.json").read_text())
    table = json.loads((FAMILIES / "units.json").read_text())
    found = plans(Source(root), base, table)
    same = [name for name, plan in found.items() if plan == base["architectures"][name]]
    other = {name: plan for name, plan in found.items() if name not in same}
    text = json.dumps({"release": release, "plans_of": BASE, "same": same, "other": other}, indent=1)
    (FAMILIES / f"{release}.json").write_text(text + "\n")
    return len(found)


def rewrite_base(root: Path) -> int:
    """families/units.json: the digests of the proven release."""
    base = json.loads((FAMILIES / f"{BASE}.json").read_text())
    path = FAMILIES / "units.json"
    table = json.loads(path.read_text())
    table["digests"] = digests(Source(root), set(base["architectures"]))
    path.write_text(json.dumps(table, indent=1) + "\n")
    return len(table["digests"])


def main(argv: list[str]) -> int:
    if argv[0] == "--base":
        print(f"{rewrite_base(Path(argv[1]))} units")
    else:
        print(f"{argv[0]}: {write(argv[0], Path(argv[1]))} architectures")
    return 0


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
