"""The house keeps its order: an engine is one folder, and nothing outside that folder knows its name."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import attnfit
from attnfit.engines import ENGINES, distribution_of, engine
from attnfit.engines.entry import entry_of

SRC = Path(attnfit.__file__).parent
TEXT = (".py", ".json", ".txt", ".md", ".toml")
NAMES = re.compile("|".join(ENGINES), re.IGNORECASE)
ALLOWED = {  # file pattern, what may stand in a line of it -> why
    ("hf/tables/*.json", '"how":'): "a table's provenance names the tool that wrote it",
}


def named(root: Path) -> list[str]:
    """Every line outside `engines/` that names an engine."""
    found = []
    for file in sorted(root.rglob("*")):
        place = file.relative_to(root)
        if file.suffix not in TEXT or place.parts[0] == "engines":
            continue
        allowed = [mark for pattern, mark in ALLOWED if place.match(pattern)]
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            if NAMES.search(line) and not any(mark in line for mark in allowed):
                found.append(f"{place}:{number}: {line.strip()[:80]}")
    return found


def test_no_code_outside_engines_knows_an_engine_s_name() -> None:
    assert named(SRC) == []


def test_a_name_that_slips_in_is_found(tmp_path: Path) -> None:
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "one.py").write_text(f"name = '{ENGINES[0]}'\n")
    (tmp_path / "hf" / "tables").mkdir(parents=True)
    (tmp_path / "hf" / "tables" / "x.json").write_text(f'{{"how":"by {ENGINES[0]}",\n"x":"{ENGINES[1]}"}}\n')
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "a.py").write_text(f"\nif name == '{ENGINES[0].upper()}_USE': ...\n")
    assert [line.partition(": ")[0] for line in named(tmp_path)] == ["hf/tables/x.json:2", "inputs/a.py:2"]


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_says_what_the_rest_of_the_house_asks(name: str) -> None:
    entry, distribution = entry_of(name), distribution_of(name)
    assert engine(name).name == entry.engine == name
    assert entry.distribution == distribution.name
    assert entry.start.split()[0] in {*entry.programs, "python"}
    assert all(engine(name).release(version).exact for version in entry.example_releases), "examples are true ones"
    assert distribution.holds.startswith(f"{distribution.package}/")


# What the isolated child imports: its own room, the config classes, and what an engine asks there.
CHILD = ("witness", "hf", "engines/vllm/witness", "engines/sglang/witness")
PARENT_S = (
    "client",
    "sources",
    "cache",
    "fetch",
    "index",
    "distribution",
    "sdist",
)  # beside them, on the parent's side


def foreign(file: Path) -> list[str]:
    """What a file imports, anywhere in it, that is neither the standard library nor part of the child."""
    rooms = tuple("attnfit." + room.replace("/", ".") for room in CHILD)
    found = []
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            parts = [f"{module}.{alias.name}" for alias in node.names] if module.startswith("attnfit") else []
            names = [] if node.level == 1 else [module, *parts]
        else:
            continue
        for name in names:
            room, _, leaf = name.rpartition(".")
            mine = name.startswith(rooms) and leaf not in (*PARENT_S, "engines") and room != "attnfit.engines"
            if name.partition(".")[0] not in sys.stdlib_module_names and not mine:
                found.append(f"{file.relative_to(SRC)}:{node.lineno}: {name}")
    return found


def child_files() -> list[Path]:
    files = [file for room in CHILD for file in sorted((SRC / room).glob("*.py"))]
    return [file for file in files if file.stem != "__init__" and file.stem not in PARENT_S]


def test_what_runs_in_the_child_imports_the_standard_library_and_itself() -> None:
    assert len(child_files()) > 30
    assert [line for file in child_files() for line in foreign(file)] == []


def test_a_package_that_slips_into_the_child_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.SRC", tmp_path)
    text = "import json\nfrom .a import b\ndef f():\n    import msgspec\nfrom attnfit.witness import client, stubs\n"
    (tmp_path / "one.py").write_text(text)
    assert foreign(tmp_path / "one.py") == ["one.py:5: attnfit.witness.client", "one.py:4: msgspec"]
