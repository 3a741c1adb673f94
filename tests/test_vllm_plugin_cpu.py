"""The platform plug-in answers for the CPU build alone, and only if asked; vLLM then keeps its own platform."""

from __future__ import annotations

import ast
import logging
import sys
import tomllib
import types
from importlib import import_module
from pathlib import Path

import pytest

from attnfit.engines.vllm import plugin
from attnfit.engines.vllm.plugin import cpu, serves, settings

HOME = Path(__file__).resolve().parent.parent
BUILD = "vllm.platforms.cpu.CpuPlatform"


@pytest.fixture(autouse=True)
def asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.CPU, "1")
    monkeypatch.setattr(plugin, "_said", False)


def installed(monkeypatch: pytest.MonkeyPatch, release: str, build: str | None) -> None:
    """A vLLM as far as the plug-in looks before vLLM has a platform."""
    engine, platforms = types.ModuleType("vllm"), types.ModuleType("vllm.platforms")
    engine.__version__ = release  # type: ignore[attr-defined]
    platforms.cpu_platform_plugin = lambda: build  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", engine)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)


@pytest.mark.parametrize("release", serves.CPU_RELEASES)
@pytest.mark.parametrize("mark", ["", "+cpu"])
def test_on_the_build_for_cpus_it_names_our_platform(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, release: str, mark: str
) -> None:
    installed(monkeypatch, release + mark, BUILD)
    assert cpu.platform() == cpu.PATH
    assert caplog.records == []


def test_the_class_that_it_names_exists() -> None:
    module, _, name = cpu.PATH.rpartition(".")
    tree = ast.parse((HOME / "src" / Path(*module.split("."))).with_suffix(".py").read_text("utf-8"))
    assert name in [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def test_unasked_it_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(settings.CPU)
    monkeypatch.setitem(sys.modules, "vllm", None)  # an import would raise
    assert cpu.platform() is None


def test_a_build_for_gpus_keeps_its_platform_in_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed(monkeypatch, serves.CPU_RELEASES[0], None)
    assert cpu.platform() is None
    assert caplog.records == []


def test_an_unknown_release_keeps_its_platform_and_the_log_says_why_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed(monkeypatch, "0.99.0", BUILD)
    with caplog.at_level(logging.WARNING):
        assert [cpu.platform(), cpu.platform()] == [None, None]
    (record,) = caplog.records
    assert record.getMessage() == (
        "attnfit's CPU platform is not loaded: it knows vLLM " + ", ".join(serves.CPU_RELEASES) + ", and this is 0.99.0"
    )


def test_the_entry_points_lead_to_what_is_there() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]
    points = {name: value for name, value in project["entry-points"].items() if name.startswith("vllm.")}
    assert set(points) == {"vllm.general_plugins", "vllm.platform_plugins"}
    for value in [value for group in points.values() for value in group.values()]:
        module, _, function = value.partition(":")
        assert callable(getattr(import_module(module), function)), value
