"""The engine a command would run is found from directory names and metadata; nothing is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnfit.inputs import environment
from attnfit.inputs.command import parse_command
from attnfit.inputs.environment import installed


def make_env(prefix: Path, version: str = "0.33.0", **packages: str) -> Path:
    site = prefix / "lib" / "python3.12" / "site-packages"
    for name, number in {"vllm": version, **packages}.items():
        info = site / f"{name}-{number}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n\n")
    (prefix / "bin").mkdir()
    (prefix / "bin" / "python").write_text("")
    (prefix / "bin" / "vllm").write_text(f"#!{prefix}/bin/python\nraise SystemExit('must never run')\n")
    for program in (prefix / "bin").iterdir():
        program.chmod(0o755)
    return prefix


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return make_env(tmp_path / "venv", "0.33.0+cu129", flashinfer_python="0.7.2.post1", torch="2.13.0")


def find(line: str, **environ: str) -> environment.Installed | None:
    return installed(parse_command(line), {"PATH": "/nowhere", **environ})


def test_by_the_path_of_the_executable(venv: Path) -> None:
    for line in (
        f"{venv}/bin/vllm serve m",
        f"{venv}/bin/python -m vllm.entrypoints.openai.api_server --model m",
        f"bash -c 'source {venv}/bin/activate && vllm serve m'",
        f"VIRTUAL_ENV={venv} vllm serve m",
        f"conda run -p {venv} vllm serve m",
    ):
        found = find(line)
        assert found is not None, line
        assert (found.engine, found.version, found.prefix) == ("vllm", "0.33.0+cu129", str(venv))
        assert found.packages["flashinfer-python"] == "0.7.2.post1"
        assert Path(found.site_packages, "vllm-0.33.0+cu129.dist-info").is_dir()


def test_by_path_lookup(venv: Path, tmp_path: Path) -> None:
    on_path = f"{tmp_path}/none{os.pathsep}{venv}/bin"
    assert find("vllm serve m", PATH=on_path) is not None
    assert find(f"PATH={venv}/bin:$PATH vllm serve m") is not None
    assert find("python -m vllm.entrypoints.openai.api_server --model m", PATH=on_path) is not None
    assert find("vllm serve m", VIRTUAL_ENV=str(venv)) is not None


def test_a_link_or_a_launcher_elsewhere_leads_there(venv: Path, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / "vllm").symlink_to(venv / "bin" / "vllm")
    assert find("vllm serve m", PATH=str(links)) is not None
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    long = scripts / "vllm"
    long.write_text(f"#!/bin/sh\n'''exec' \"{venv}/bin/python\" \"$0\" \"$@\"\n' '''\n")
    long.chmod(0o755)
    assert find("vllm serve m", PATH=str(scripts)) is not None


def test_conda_by_name(tmp_path: Path) -> None:
    make_env(tmp_path / "miniforge3" / "envs" / "serving", "0.16.0")
    found = find("conda run -n serving vllm serve m", HOME=str(tmp_path))
    assert found is not None
    assert found.version == "0.16.0"
    assert find("conda run -n other vllm serve m", HOME=str(tmp_path)) is None


def test_what_lies_elsewhere_is_not_looked_up_here(venv: Path) -> None:
    on_path = f"{venv}/bin"
    for line in (
        "docker run vllm/vllm-openai:v0.16.0 m",
        "ssh host vllm serve m",
        "uvx --from vllm==0.16.0 vllm serve m",
        f"{venv}/elsewhere/bin/vllm serve m",
    ):
        assert find(line, PATH=on_path) is None, line


def test_nothing_installed(tmp_path: Path) -> None:
    assert find("vllm serve m") is None
    (tmp_path / "lib" / "python3.12" / "site-packages" / "vllm").mkdir(parents=True)
    assert environment.read_prefix(tmp_path) is None


def test_facts_need_the_sources_of_the_engine(venv: Path) -> None:
    found = find(f"{venv}/bin/vllm serve m")
    assert found is not None
    assert environment.env_facts(found) == {}
    platforms = Path(found.site_packages, "vllm", "platforms")
    platforms.mkdir(parents=True)
    facts = environment.env_facts(found)
    assert facts["flashinfer"] is True
    assert facts["flashinfer_cubin"] is False


def test_without_a_command_whatever_engine_is_there_is_found(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    (site / "sglang-0.5.9.dist-info").mkdir(parents=True)
    found = environment.installed(None, {"PATH": "/nowhere", "VIRTUAL_ENV": str(tmp_path)})
    assert found is not None
    assert (found.engine, found.version) == ("sglang", "0.5.9")
    assert find(f"{tmp_path}/bin/vllm serve m") is None, "a command looks for its own engine"
    assert find(f"{tmp_path}/bin/python -m sglang.launch_server --model m") == found
