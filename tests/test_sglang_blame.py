"""A stand-in's failure is never the release's refusal, and the release's own failures always are.

The release is a made-up one (made_up_sglang.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import made_up_sglang as tiny
from attnfit.engines.sglang.distribution import DISTRIBUTION
from attnfit.engines.sglang.witness import Child
from attnfit.hf import config as hf
from attnfit.hf.errors import Refused
from attnfit.witness import sources

Probe = Callable[..., Any]
MODEL_CONFIG = tiny.FILES["sglang/srt/configs/model_config.py"]
POOL = """
    class Base:
        def __init__(self, size):
            raise RuntimeError("memory is taken")

    class DeepSeekV4TokenToKVPool(Base):
        def pages(self):
            return self.swa_page_size // 64

    def collect_sources_by_ratio(ratios, sources, stage):
        return {ratios[at]: at for at in sources}
    """


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Probe]:
    """One launch of an engine whose backend's constructor has this body."""
    children = []

    def answer(body: str, *argv: str, files: dict[str, str] | None = None, **changed: Any) -> Any:
        root = tiny.write(tmp_path / "engine", body, **(files or {}))
        children.append(Child(sources.find(DISTRIBUTION, str(root))))
        return children[-1].ask(tiny.case("--attention-backend", "probe", *argv, **changed))

    yield answer
    for child in children:
        child.close()


@pytest.mark.parametrize(
    "body",
    [
        "import torch\ntorch.version.no_such",  # an object of ours lacks something
        "import torch\ntorch.device('cuda').no_such",
        "import torch\ntorch.cuda.device_count.no_such",
        "import torch\ntorch.finfo()",  # a function of ours takes other arguments
        "import torch\ntorch.compile.no_such",
        "import os\nos.path.exists()",
        "runner.model.modules(1)",
        "import torch\ntorch.device('cuda') + 1",  # an object of ours cannot do it
        "import torch\nraise ValueError('no') from AttributeError('x', obj=torch.version)",
        "import torch\ntry:\n    torch.version.no_such\nexcept AttributeError:\n    raise ValueError('so it is old')",
    ],
)
def test_what_a_stand_in_cannot_do_is_unknown_and_names_it(probe: Probe, body: str) -> None:
    said = probe(body)
    assert said["ok"] is None, said
    assert "of a stand-in" in said["unknown"][0] or "torch." in said["unknown"][0]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("{}['fast']", "KeyError"),
        ("None.size", "AttributeError"),
        ("None > 1", "TypeError"),
        ("def plan(size): pass\nplan()", "TypeError"),
        ("int('x')", "ValueError"),
        ("import json\njson.loads('{')", "JSONDecodeError"),
        ("isinstance(1, 'x')", "TypeError"),
        ("import torch_npu", "ModuleNotFoundError"),
        ("from sglang.srt.utils import no_such", "ImportError"),
        ("import torch\ntorch.npu.synchronize()", "AttributeError"),
        ("import importlib.metadata\nimportlib.metadata.version('nobody')", "PackageNotFoundError"),
        (
            "try:\n    import torch_npu\nexcept ImportError as error:\n    raise RuntimeError('wants it') from error",
            "RuntimeError",
        ),
        ("open(runner.server_args.model_path + '/absent.json')", "FileNotFoundError"),
    ],
)
def test_what_the_release_itself_runs_into_is_its_refusal(probe: Probe, body: str, kind: str) -> None:
    said = probe(body)
    assert (said["ok"], said["error_type"], said["stage"]) == (False, kind, "backend-init"), said


def test_what_transformers_refuses_is_a_refusal(probe: Probe) -> None:
    said = probe("pass", config={**tiny.CONFIG, "model_type": "no_such_kind"})
    assert (said["ok"], said["error_type"]) == (False, "ValueError")
    assert "`no_such_kind`" in said["message"]


def test_calls_that_register_something_run_before_the_file_is_used(probe: Probe) -> None:
    algorithms = """
        KNOWN = {}
        def register_algorithm(name):
            KNOWN[name] = name.lower()
        register_algorithm("EAGLE")
        class SpeculativeAlgorithm:
            @staticmethod
            def from_string(name):
                return KNOWN[name] if name else None
        """
    said = probe(
        "assert runner.spec_algorithm == 'eagle'",
        "--speculative-algorithm",
        "EAGLE",
        files={"sglang/srt/speculative/spec_info.py": algorithms},
    )
    assert said["ok"] is True, said


def test_the_same_question_gets_the_same_answer_in_every_child(probe: Probe) -> None:
    body = "import random\nraise ValueError(str(random.randint(0, 10**9)))"
    assert len({probe(body)["message"] for _ in range(3)}) == 1


def test_deepseek_v4_gets_a_pool_of_the_release_s_own_class(probe: Probe) -> None:
    files = {
        "sglang/srt/configs/model_config.py": MODEL_CONFIG.replace(
            "self.dtype =", "self.compress_ratios = [0, 4, 1, 4]\n                self.dtype ="
        )
        + "\n        def is_deepseek_v4(config):\n            return True\n",
        "sglang/srt/mem_cache/deepseek_v4_memory_pool.py": POOL,
    }
    said = probe(
        """
        from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool
        pool = runner.token_to_kv_pool
        assert isinstance(pool, DeepSeekV4TokenToKVPool)
        assert pool.pages() == 4
        raise ValueError(str((pool.present_ratios, pool.request_window)))
        """,
        "--page-size",
        "256",
        files=files,
        config={**tiny.CONFIG, "kv_source_layer_ids": [2]},
    )
    assert said["message"] == "((1, 4), None)", said


OLD = hf.LayerTypes(remapped=False, allowed=("full_attention", "mamba", "sparse"), named=False)
NEW = hf.LayerTypes(allowed_mlp=("dense", "sparse"))


def _built(types: hf.LayerTypes, source: str = "transformers==5.6.0", **keys: Any) -> hf.HfConfig:
    entry = {
        "defaults": {"num_hidden_layers": 2, "layer_types": None, "mlp_layer_types": None},
        "rules": {"layer_types": {"missing": {"op": "repeat", "n": "num_hidden_layers", "v": "indexed_attention"}}},
    }
    file = hf.ClassFile(
        source=source, model_types={"one": "OneConfig"}, classes={"OneConfig": entry}, layer_types=types
    )
    return hf.build(hf.ClassTables(file, {}, hf.ClassFile()), "OneConfig", "one", keys)


def test_layer_types_are_checked_as_the_version_of_transformers_does() -> None:
    assert _built(OLD, layer_types=["mamba", "full_attention"]).attrs["layer_types"] == ["mamba", "full_attention"]
    with pytest.raises(Refused, match=r"must be in \('full_attention', 'mamba', 'sparse'\) but got \['conv', 'conv'\]"):
        _built(OLD, layer_types=["conv", "conv"])
    with pytest.raises(Refused, match=r"must be equal to the number of layer types \(1\)"):
        _built(OLD, layer_types=["mamba"])
    assert _built(NEW, layer_types=["mamba", "conv"]).attrs["layer_types"] == ["linear_attention", "conv"]
    with pytest.raises(Refused, match="`mlp_layer_types` entries"):
        _built(NEW, layer_types=["conv", "conv"], mlp_layer_types=["wide", "wide"])
    with pytest.raises(Refused, match=r"number of `layer_types` \(1\)"):
        _built(NEW, layer_types=["conv"])


def test_before_its_config_classes_checked_themselves_nothing_is_checked() -> None:
    free = hf.LayerTypes(strict=False, remapped=False)
    assert _built(free, "transformers==5.3.0", layer_types=["conv", 7]).attrs["layer_types"] == ["conv", 7]


def test_lists_that_an_older_class_makes_otherwise_are_not_made_up() -> None:
    node = _built(OLD)
    assert "layer_types" not in node.attrs
    assert "transformers==5.6.0 makes it in a way" in node.opaque["layer_types"]
    named = OLD._replace(older={"indexed_attention": "sparse"})
    assert _built(named).attrs["layer_types"] == ["sparse", "sparse"]
    absent = _built(OLD._replace(without={"OneConfig": ["layer_types"]}))
    assert "layer_types" not in absent.attrs
    assert "layer_types" not in absent.opaque


def test_what_a_kernel_package_has_compiled_is_nothing_yet(probe: Probe) -> None:
    body = """
        import tokenspeed_mla
        if ("shape", 8) in tokenspeed_mla.mla_prefill._compiled_kernels:
            raise ValueError("already there")
        """
    assert probe(body)["ok"] is True
