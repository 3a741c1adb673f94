"""What `learn.quant_tables` reads from a release's source: text only, nothing is imported or run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnfit.engines.vllm.learn.classes import ClassTree
from attnfit.engines.vllm.learn.quant_tables import main, quant_facts

FOLDER = "vllm/model_executor/layers/quantization"
SOURCE = {
    f"{FOLDER}/__init__.py": """
from typing import Literal
QuantizationMethods = Literal["few", "online"]
DEPRECATED_QUANTIZATION_METHODS = ["few"]
def get_quantization_config(quantization):
    from .few import FewConfig
    from .online.base import OnlineConfig
    method_to_config: dict[str, type] = {"few": FewConfig, "online": OnlineConfig}
    return method_to_config[quantization]
""",
    f"{FOLDER}/few.py": """
raise SystemExit("imported")
class FewConfig(QuantizationConfig):
    TYPE_MAP = {(4, True): scalar_types.uint4b8}
    SUPPORTED_BITS = {4, 8}
    @classmethod
    def get_min_capability(cls): return 75
    @classmethod
    def get_supported_act_dtypes(cls): return [torch.half, torch.bfloat16]
    @staticmethod
    def get_config_filenames(): return ["few.json"]
    @classmethod
    def from_config(cls, config):
        lm_head = cls.get_from_keys_or(config, ["lm_head"], False)
        if config.get("old"):
            return cls(cls.get_from_keys(config, ["ancient"]))
        group = cls.get_from_keys(config, ["q_group_size", "group_size"])
        return cls(group, bits=cls.get_from_keys(config, ["bits"]))
""",
    f"{FOLDER}/online/base.py": "class OnlineConfig:\n    pass\n",
    f"{FOLDER}/modelopt.py": 'LINEAR = {"FP8": 1, "NVFP4": 2}\nQUANT_ALGOS = [*LINEAR, "MIXED_PRECISION"]\n',
    "vllm/config/model.py": """
def _parse_quant_hf_config(quant_cfg):
    quant_algo = quant_cfg["quant_algo"]
    if quant_algo in {"FP8", "FP8_PB_WO"}:
        quant_cfg["quant_method"] = "modelopt"
    elif quant_algo == "NVFP4":
        quant_cfg["quant_method"] = "modelopt_fp4"
    else:
        raise ValueError(f"Unknown ModelOpt quant algo: {quant_algo}")
""",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in SOURCE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_methods_class_says_what_it_needs_of_gpu_and_checkpoint(tree: Path) -> None:
    facts = quant_facts(tree, ClassTree(tree))
    assert facts["quantization"] == ["few", "online"]
    assert facts["deprecated_quantization"] == ["few"]
    few: dict[str, Any] = facts["quant_classes"]["few"]
    assert few["at"] == f"{FOLDER.replace('/', '.')}.few:FewConfig"
    assert (few["min_capability"], few["dtypes"], few["files"]) == (75, ["float16", "bfloat16"], ["few.json"])
    # in the order in which it asks; keys with a default, or behind a condition, are not needed
    assert few["keys"] == [["q_group_size", "group_size"], ["bits"]]
    assert few["values"]["TYPE_MAP"] == [(4, True)]
    assert sorted(few["values"]["SUPPORTED_BITS"]) == [4, 8]
    assert "min_capability" not in facts["quant_classes"]["online"]


def test_modelopts_algorithms_are_read_through_the_table_they_unpack(tree: Path) -> None:
    facts = quant_facts(tree, ClassTree(tree))
    assert facts["modelopt_algos"] == ["FP8", "NVFP4", "MIXED_PRECISION"]
    assert facts["modelopt_producer_algos"] == {"FP8": "modelopt", "FP8_PB_WO": "modelopt", "NVFP4": "modelopt_fp4"}


def test_an_existing_table_keeps_what_it_has_besides(tree: Path, tmp_path: Path) -> None:
    table = tmp_path / "release.json"
    table.write_text(json.dumps({"release": "0.1.0", "architectures": {"A": {}}, "quantization": ["gone"]}))
    assert main([str(tree), str(table)]) == 0
    told = json.loads(table.read_text())
    assert (told["release"], told["architectures"], told["quantization"]) == ("0.1.0", {"A": {}}, ["few", "online"])
