"""What the README shows is what the program prints."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from attnfit import cli

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands(text: str) -> list[tuple[str, str]]:
    """(command, output) of every `$` line of every console block."""
    found = []
    for block in BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def test_every_command_of_the_readme_prints_what_stands_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """ATTNFIT_WRITE_SNAPSHOTS=1 writes the outputs anew."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    text = README.read_text("utf-8")
    shown = commands(text)
    assert len(shown) >= 4
    for command, output in shown:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit):
            cli.main()
        printed = capsys.readouterr().out
        if os.environ.get("ATTNFIT_WRITE_SNAPSHOTS"):
            text = text.replace(f"$ {command}\n{output}", f"$ {command}\n{printed}", 1)
        else:
            assert output == printed, command
    if os.environ.get("ATTNFIT_WRITE_SNAPSHOTS"):
        README.write_text(text, "utf-8")


def test_the_tree_names_what_is_there() -> None:
    tree = README.read_text("utf-8").split("## The house")[1].split("```")[1]
    for name in re.findall(r"^ +(\w+(?:\.py|/))", tree, flags=re.MULTILINE):
        matches = [p for p in (ROOT / "src" / "attnfit").rglob(name.rstrip("/")) if "__pycache__" not in p.parts]
        assert matches, f"{name} is in the README's tree but not in the house"
