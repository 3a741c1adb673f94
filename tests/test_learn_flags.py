"""The flags of a release are read from its sources, with nothing of it installed; what is unclear stays unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnfit.engines.vllm.flags import load_table, parse_flags
from attnfit.engines.vllm.launch.state import Refusal, Unknown
from attnfit.engines.vllm.learn.flags import extract_flags, write_table
from attnfit.errors import InputError

ARGPARSE = """
import argparse, json, sys
import regex as re
import yaml

class FlexibleArgumentParser(argparse.ArgumentParser):
    def parse_args(self, args=None, namespace=None):
        if args and args[0] == "serve" and "--served-model-name" in args and args[1].startswith("-"):
            raise ValueError("model first")
        return super().parse_args(args, namespace)
    def load_config_file(self, path):
        if not path.endswith(("yaml", "yml")):
            raise ValueError("Config file must be of a yaml/yml type. json supplied")
        return [x for k, v in yaml.safe_load(open(path)).items() for x in ("--" + k, str(v))]

def human_readable_int(value):
    return int(value)
"""
CONFIG = """
from typing import Any, Literal
import torch
from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass
from vllm.other import Kind, Level

@dataclass
class Inner:
    size: int = Field(default=1, ge=1)
    mode: Literal["a", "b"] = "a"
    @field_validator("mode")
    @classmethod
    def looks_at_mode(cls, v):
        return v

@dataclass
class Config:
    name: str = "x"
    level: Level = "low"
    kind: Kind | None = None
    dtype: torch.dtype | str = "auto"
    inner: Inner = Field(default_factory=Inner)
    beyond: int = torch.cuda.device_count()
"""
OTHER = 'from typing import Literal\nimport torch\nLevel = Literal["low", "high"]\nKind = torch.something()\n'
ARG_UTILS = """
import argparse, dataclasses, json
from typing import Literal, get_args, get_origin
from pydantic import TypeAdapter
from vllm.config import Config

def get_kwargs(cls):
    out = {}
    for f in dataclasses.fields(cls):
        kw = {"default": f.default if f.default is not dataclasses.MISSING else f.default_factory()}
        if dataclasses.is_dataclass(f.type):
            def parse_dataclass(val, cls=f.type):
                return TypeAdapter(cls).validate_json(val)
            kw["type"] = parse_dataclass
        elif get_origin(f.type) is Literal:
            kw.update(type=str, choices=sorted(get_args(f.type)))
        else:
            kw["type"] = f.type if f.type is int else str
        out[f.name] = kw
    return out

def human_readable_int(value):
    return int(value)
"""
CLI = """
from vllm.engine import arg_utils
from vllm.config import Config

def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?", type=str)
    for name, kw in arg_utils.get_kwargs(Config).items():
        parser.add_argument("--" + name, **kw)
    parser.add_argument("--odd", type=lambda s: s[::-1])
    parser.add_argument("--even", type=lambda s: s.lower().replace("-", "_"))
    return parser
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "utils/argparse_utils.py": ARGPARSE,
        "config/__init__.py": CONFIG,
        "other.py": OTHER,
        "engine/arg_utils.py": ARG_UTILS,
        "entrypoints/openai/cli_args.py": CLI,
    }.items():
        file = tmp_path / "src" / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "src"


def test_flags_come_out_as_data(tree: Path) -> None:
    found = extract_flags(tree, "9.9.9")
    flags = {f["dest"]: f for f in found["flags"]}
    assert flags["level"]["choices"] == ["high", "low"]
    assert flags["level"]["default"] == "low"
    assert flags["inner"]["type"] == {"dataclass": "Inner"}
    assert flags["even"]["type"] == "lower_underscore"
    inner = found["classes"]["Inner"]
    assert inner["fields"]["size"] == {"type": "int", "bounds": {"ge": 1}, "default": 1}
    assert inner["checks"][0]["where"].startswith("vllm/config/__init__.py:")
    assert found["syntax"]["served_name_check"] is True


def test_what_cannot_be_derived_is_unknown_never_guessed(tree: Path) -> None:
    flags = {f["dest"]: f for f in extract_flags(tree)["flags"]}
    assert flags["kind"].get("type") is None  # its type comes from code that is not run
    assert flags["odd"].get("type") is None  # a converter nobody has read
    assert "unknown" in flags["beyond"]["default"]  # a default that needs torch
    assert flags["dtype"]["type"] == "str"  # torch.dtype | str is a string on any command line


def test_a_written_table_answers(tree: Path, tmp_path: Path) -> None:
    write_table(tree, "9.9.9", tmp_path)
    table = load_table("9.9.9", tmp_path)
    assert parse_flags(table, ["m", "--level", "high", "--even", "A-b"]).values["even"] == "a_b"
    with pytest.raises(Unknown, match="--odd"):
        parse_flags(table, ["m", "--odd", "x"])
    with pytest.raises(Unknown, match="looks_at_mode"):
        parse_flags(table, ["m", "--inner", '{"mode": "b"}'])
    with pytest.raises(Refusal):  # wrong whatever the unknown check says
        parse_flags(table, ["m", "--inner", '{"size": 0}'])


def test_a_hostile_release_reaches_nothing(tree: Path, tmp_path: Path) -> None:
    mark = tmp_path / "written"
    (tree / "vllm" / "entrypoints" / "openai" / "cli_args.py").write_text(f"open({str(mark)!r}, 'w').write('x')\n")
    with pytest.raises(InputError, match="could not be built"):
        extract_flags(tree)
    assert not mark.exists()


def test_not_a_release(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"arg_utils\.py"):
        extract_flags(tmp_path)
