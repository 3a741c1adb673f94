"""The witness answers with the engine's own code, and never with a value it does not have."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import tiny_engine
from attnfit.engines.vllm.witness.facts import default_env, requirements
from attnfit.engines.vllm.witness.release import Release, WitnessAnswer
from attnfit.witness import chunks, file_text, stubs
from tiny_engine import QUESTION

CONFIG = "from vllm.config import get_current_vllm_config\nconfig = get_current_vllm_config()\n"


def ask(
    root: Path, env: dict[str, Any] | None = None, variables: dict[str, Any] | None = None, **changed: str
) -> WitnessAnswer:
    tiny_engine.write(root, **changed)
    release = Release(root, "0.0.1", {"wheel": True, **(env or {})})
    return release.ask(QUESTION, variables=variables)


def test_it_chooses_as_the_engine_does(tmp_path: Path) -> None:
    answer = ask(tmp_path)
    assert (answer.chosen, answer.valid, answer.unknown) == ("FAST", ["FAST", "SLOW"], "")


def test_the_engine_s_own_error_comes_out(tmp_path: Path) -> None:
    release = Release(tiny_engine.write(tmp_path), "0.0.1", {})
    answer = release.ask({**QUESTION, "dtype": "float32"})
    assert answer.error == "ValueError: nothing for torch.float32"
    assert answer.refused == {"FAST": ["dtype not supported"], "SLOW": ["dtype not supported"]}


def test_one_release_answers_for_every_capability(tmp_path: Path) -> None:
    """Nothing of one question is left for the next, not even what was worked out while loading."""
    tiny_engine.write(
        tmp_path,
        fast_top="import torch\nfrom functools import cache\nMAJOR = torch.cuda.get_device_capability()[0]\n"
        "@cache\ndef hopper(): return MAJOR >= 9\n",
        fast="return hopper()",
    )
    release = Release(tmp_path, "0.0.1", {})
    chosen = [release.ask({**QUESTION, "capability": c}).chosen for c in ("9.0", "8.0", "12.0", "8.9")]
    assert chosen == ["FAST", "SLOW", "FAST", "SLOW"]


def test_backends_of_other_platforms_are_not_asked(tmp_path: Path) -> None:
    assert list(ask(tmp_path).every) == ["FAST", "SLOW"]


@pytest.mark.parametrize(
    "body",
    [
        "return torch.cuda.device_count() > 1",
        "return torch.version.cuda",
        "return torch.version.cuda is None",
        "return torch.version.cuda is not None and True",
        "return torch.version.cuda == '12.9'",
        "return head_size in torch.SIZES",
        "return torch.version.cuda in ('12.9',)",
        "return {'12.9': True}.get(torch.version.cuda, True)",
        "return isinstance(torch.version.cuda, str) or True",
        "return hasattr(torch, 'some_op') or True",
        "return callable(torch.some_op) or True",
        "return type(torch.version.cuda) is str or True",
        "return bool([x for x in torch.SIZES])",
        "return head_size + torch.EXTRA > 1",
        "return f'{torch.version.cuda}' == '12.9' or True",
        "return len(torch.SIZES) >= 0",
        "match torch.version.cuda:\n    case None: return False\n    case _: return True",
        "try:\n    return torch.version.cuda > 12\nexcept Exception:\n    return True",
        "return isinstance(head_size, torch.Tensor) or True",
        "import psutil\nreturn psutil.virtual_memory().total > 0",
        "import os\nreturn os.cpu_count() > 0",
        "import os\nreturn os.path.exists('/dev/nvidia0') or True",
        "import shutil\nreturn shutil.which('gcc') is None or True",
        "import importlib.util\nreturn importlib.util.find_spec('some_package') is None or True",
        CONFIG + "return config.model_config.nothing is None",
        CONFIG + "return config.attention_config.computed == 3",
        "from vllm.config import VllmConfig\nreturn VllmConfig is not None",
        "return open('/etc/hostname').read() != ''",
    ],
)
def test_a_value_it_does_not_have_makes_the_answer_unknown(tmp_path: Path, body: str) -> None:
    """Whatever way engine code looks at a stand-in, the answer is unknown and names the engine's file and line."""
    answer = ask(tmp_path, fast_top="import torch\n", fast=body)
    assert answer.unknown, "a stand-in decided the answer"
    assert "FAST" in answer.unknown_backends
    assert re.search(r"vllm/\S+\.py:\d+", answer.unknown)
    assert answer.every["SLOW"] == []


def test_a_stand_in_that_decided_while_loading_is_found_too(tmp_path: Path) -> None:
    top = "import torch\nif torch.cuda.device_count() > 1:\n    MANY = True\nelse:\n    MANY = False\n"
    answer = ask(tmp_path, fast_top=top, fast="return not MANY")
    assert "torch.cuda.device_count()" in answer.unknown


def test_source_that_cannot_be_parsed_is_unknown(tmp_path: Path) -> None:
    """Newer syntax than the Python running here must not look like a refusal."""
    assert "cannot be read" in ask(tmp_path / "a", fast="return True", fast_top="x = = 1\n").unknown
    assert "could not be loaded" in ask(tmp_path / "b", fast="return X", fast_top="X = {}['absent']\n").unknown


@pytest.mark.parametrize("look", ["Layer.fast", "Layer._fast", "Layer().fast", "getattr(Layer(), 'fast', True)"])
def test_what_an_unknown_base_class_may_define_is_unknown(tmp_path: Path, look: str) -> None:
    top = "from torch import nn\nclass Layer(nn.Module):\n    def __init__(self): pass\n"
    assert ask(tmp_path, fast_top=top, fast=f"return bool({look})").unknown


def test_stand_ins_that_decide_nothing_do_no_harm(tmp_path: Path) -> None:
    top = (
        "import torch, triton\nfrom torch import nn\n"
        "@triton.jit\ndef kernel(x: torch.Tensor): ...\n"
        "class Layer(nn.Module):\n    @torch.compile\n    def forward(self): ...\n"
        "WARM = torch.zeros(1) + 1\n"
    )
    assert ask(tmp_path, fast_top=top, fast="Layer\nWARM\nreturn True").unknown == ""


def test_variables_and_configs_come_from_the_question(tmp_path: Path) -> None:
    body = "import vllm.envs as envs\nreturn not envs.VLLM_BATCH_INVARIANT"
    assert ask(tmp_path / "a", fast=body).chosen == "FAST"
    assert ask(tmp_path / "b", fast=body, variables={"VLLM_BATCH_INVARIANT": "1"}).chosen == "SLOW"
    assert ask(tmp_path / "c", fast=body, variables={"VLLM_BATCH_INVARIANT": True}).chosen == "SLOW"
    sees_model = "config.model_config.hf_text_config.index_topk == 2048"
    body = f"{CONFIG}return {sees_model} and config.attention_config.use_trtllm is False"
    assert ask(tmp_path / "d", fast=body).chosen == "FAST"


def test_a_package_that_is_stated_absent_refuses_as_in_the_engine(tmp_path: Path) -> None:
    answer = ask(tmp_path, {"flashinfer": False}, fast_top="from flashinfer import x\n", fast="return True")
    assert answer.refused == {"FAST": ["ModuleNotFoundError: No module named 'flashinfer'"]}
    assert answer.chosen == "SLOW"


def test_a_guarded_import_follows_the_stated_fact(tmp_path: Path) -> None:
    top = "try:\n    import vllm._flashmla_C\n    HAS = True\nexcept ImportError:\n    HAS = False\n"
    assert ask(tmp_path / "a", {"flashmla": True}, fast_top=top, fast="return HAS").chosen == "FAST"
    assert ask(tmp_path / "b", {"flashmla": False}, fast_top=top, fast="return HAS").chosen == "SLOW"


def test_facts_can_change_from_question_to_question(tmp_path: Path) -> None:
    top = "import importlib.util\nHAS = importlib.util.find_spec('flashinfer') is not None\n"
    release = Release(tiny_engine.write(tmp_path, fast_top=top, fast="return HAS"), "0", {"flashinfer": True})
    assert release.ask(QUESTION).chosen == "FAST"
    assert release.ask(QUESTION, env={"flashinfer": False}).chosen == "SLOW"
    assert release.ask(QUESTION).chosen == "FAST"
    assert "env.flashinfer" in release.ask(QUESTION).read


def test_what_only_a_checkout_lacks_is_unknown_not_absent(tmp_path: Path) -> None:
    """A file the build would add must not pass for one the wheel does not have."""
    body = "try:\n    from vllm.vllm_flash_attn import x\n    return True\nexcept ImportError:\n    return False"
    assert ask(tmp_path / "a", {"wheel": False}, fast=body).unknown
    assert ask(tmp_path / "b", {"wheel": True}, fast=body).chosen == "SLOW"


def test_single_predicates_can_be_asked_in_context(tmp_path: Path) -> None:
    release = Release(tiny_engine.write(tmp_path), "0.0.1", {})
    with release.context(QUESTION):
        assert release.validate("FAST", QUESTION) == []
        assert release.backend("SLOW").supports(64, None) is True


def test_a_transform_sees_every_statement_first(tmp_path: Path) -> None:
    seen = []

    def transform(statement: ast.stmt, file: str) -> ast.stmt:
        seen.append(file)
        return statement

    Release(tiny_engine.write(tmp_path), "0.0.1", {}, transform).ask(QUESTION)
    assert "vllm/v1/attention/backends/fast.py" in seen
    assert "vllm/logger.py" not in seen


TRICKY = '''#!/usr/bin/env python
"""Doc with def fake(): and 'quotes'"""
from a import (
b,
)
x = """
class NotOne: pass
"""
@decorated(
    "a",
)
def f(a=r"\\d", b='it\\'s'):  # it's a comment
    """d"""
    return {
"key": 1,
}
async def g(): pass
try:
    import c
except ImportError:
    c = None
else:
    pass
y = [1,
2]; z = 3
long = 1 + \\
2
class K: pass
if x:
    pass
elif y:
    pass
'''


def test_files_are_cut_into_the_statements_the_parser_sees() -> None:
    whole = ast.parse(TRICKY).body
    cut = [statement for chunk in chunks.split(TRICKY) for statement in file_text.parse(chunk)]
    assert [ast.dump(s, include_attributes=True) for s in cut] == [ast.dump(s, include_attributes=True) for s in whole]
    assert [chunk.name for chunk in chunks.split(TRICKY) if chunk.name] == ["f", "g", "K"]


def test_facts_of_a_wheel() -> None:
    metadata = (
        "Name: vllm\nVersion: 0.99.0\nRequires-Dist: torch==3\nRequires-Dist: flashinfer-python==0.6.14.post1\n"
        'Requires-Dist: tokenspeed-mla==1; platform_system == "Linux"\nRequires-Dist: b12x; extra == "b12x"\n'
        'Requires-Dist: deep_gemm; platform_machine == "aarch64"\n\nRequires-Dist: aiter\n'
    )
    names = ["vllm/_flashmla_C.abi3.so", "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "vllm/_C.abi3.so"]
    env = default_env("0.99.0", metadata, names)
    stated = {name: env[name] for name in ("flashinfer", "tokenspeed_mla", "b12x", "deep_gemm", "aiter", "vllm._C")}
    assert [name for name, present in stated.items() if present] == ["flashinfer", "tokenspeed_mla", "vllm._C"]
    assert (env["fa2"], env["fa3"], env["fa4"], env["flashmla"]) == (True, False, False, True)
    assert (env["flashinfer_sparse_mla"], env["flashinfer_sm90_nope_mla"]) == (True, False)
    assert requirements(metadata) == {"torch", "flashinfer-python", "tokenspeed-mla"}
    assert "fa3" not in default_env("0.99.0", metadata, names, whole=False)


def test_a_leak_is_not_an_exception() -> None:
    """`except Exception` in engine code must not swallow it."""
    assert not issubclass(stubs.StubLeak, Exception)
