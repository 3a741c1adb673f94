"""docs/vllm-plugin-releases.md says who serves sparse MLA with the plug-in and without; it is what the rules say."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from attnfit.engines.vllm.plugin import serves

PROOFS = Path(__file__).parent.parent / "proofs"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PROOFS))
    yield importlib.import_module("vllm_plugin_table")
    for name in ("vllm_plugin_table", "sparse_table"):
        sys.modules.pop(name, None)


def test_the_page_is_what_the_command_writes(table: Any) -> None:
    assert not table.stale()


def test_a_page_that_says_another_thing_is_found(table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "page.md"
    other.write_text(table.PAGE.read_text("utf-8").replace("| **T** |", "| - |", 1), "utf-8")
    monkeypatch.setattr(table, "PAGE", other)
    assert table.stale()


def test_every_release_of_the_plug_in_has_its_column(table: Any) -> None:
    head = table.table().splitlines()[0]
    assert [cell.strip() for cell in head.strip("|").split("|")][4:] == list(serves.RELEASES)


def test_writing_the_page_again_changes_nothing(table: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "page.md"
    other.write_text(table.PAGE.read_text("utf-8").replace("| **T** |", "| - |", 3), "utf-8")
    real = table.PAGE
    monkeypatch.setattr(table, "PAGE", other)
    monkeypatch.setattr(sys, "argv", ["vllm_plugin_table.py", "--write"])
    assert table.main() == 0
    assert other.read_text("utf-8") == real.read_text("utf-8")
