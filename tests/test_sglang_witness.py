"""A release's own code is walked stage by stage in the isolated child, and what it is not given is never made up.

The release here is a made-up one (made_up_sglang.py); proofs/sglang.py holds the witness against the real ones.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import made_up_sglang as tiny
from attnfit.engines.sglang.distribution import DISTRIBUTION
from attnfit.engines.sglang.witness import Child, _drafts, jobs, launch
from attnfit.engines.sglang.witness.launch import ordered
from attnfit.engines.sglang.witness.world import World
from attnfit.errors import UnknownAnswer
from attnfit.witness import sources
from attnfit.witness.jobs import State

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Launches of the plain engine: words, and what of the case is otherwise."""
    child = Child(sources.find(DISTRIBUTION, str(tiny.write(tmp_path_factory.mktemp("engine")))))
    yield lambda *argv, **changed: child.ask(tiny.case(*argv, **changed))
    child.close()


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Ask]:
    """One launch of an engine whose backend's constructor has this body."""
    children = []

    def answer(body: str, times: int = 1, **changed: str) -> Any:
        children.append(Child(sources.find(DISTRIBUTION, str(tiny.write(tmp_path / "engine", body, **changed)))))
        for _ in range(times):
            said = children[-1].ask(tiny.case("--attention-backend", "probe"))
        return said

    yield answer
    for child in children:
        child.close()


def test_a_launch_that_starts_says_what_it_ends_up_with(ask: Ask) -> None:
    said = ask()
    assert (said["ok"], said["stage"], said["unknown"]) == (True, None, [])
    assert (said["prefill"], said["decode"], said["backend_class"]) == ("fast", "fast", "Fast")
    assert (said["given"]["attention_backend"], said["resolved"]["attention_backend"]) == (None, "fast")
    assert said["resolved"]["mem_fraction_static"] == 0.9  # 80 GiB, as its own nvidia-smi would print them
    assert said["warnings"] == [["WARNING", "Nothing was asked for: fast is taken.", "server_args"]]
    traits = said["traits"]
    assert (traits["head_dim"], traits["dtype"], traits["model_type"]) == (128, "float16", "llama")


def test_the_gpu_of_the_case_is_the_one_it_sees(ask: Ask) -> None:
    assert ask(capability="8.0")["prefill"] == "slow"
    assert ask(capability="8.0", gpu_mem_gb=16.0)["resolved"]["mem_fraction_static"] == 0.5


def test_variables_of_the_command_are_the_ones_it_sees(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_PAGE", "16")
    assert ask()["resolved"]["page_size"] == 1
    assert ask(variables={"TINY_PAGE": "32"})["resolved"]["page_size"] == 32


def test_what_the_parser_refuses_ends_there(ask: Ask) -> None:
    said = ask("--attention-backend", "none")
    assert (said["ok"], said["stage"], said["where"]) == (False, "arg-parse", None)
    assert "argument --attention-backend: invalid choice: 'none'" in said["message"]
    assert "required: --model-path" in ask(argv=[])["message"]


def test_what_resolution_refuses_has_its_file_and_line(ask: Ask) -> None:
    said = ask("--page-size", "7")
    assert (said["ok"], said["stage"], said["error_type"]) == (False, "arg-resolve", "ValueError")
    line = 1 + tiny.ARGS.lstrip("\n").splitlines().index(
        next(line for line in tiny.ARGS.lstrip("\n").splitlines() if "no page of" in line)
    )
    assert said["where"] == {"file": "srt/server_args.py", "line": line, "func": "__post_init__"}
    assert said["given"]["page_size"] == 7


def test_a_set_in_a_message_is_in_order(ask: Ask) -> None:
    """Python's own order of a set changes from process to process."""
    assert ask("--page-size", "7")["message"] == "no page of 7, take one of {'one', 'thirty', 'two'}"
    assert (
        ordered("{'b', 'a'} but not {'k': 'b', 'a': 1} or {1, 0}") == "{'a', 'b'} but not {'k': 'b', 'a': 1} or {1, 0}"
    )
    assert len(ordered("x" * 100_000)) < 5_000


def test_checks_and_the_model_config_are_stages_of_their_own(ask: Ask) -> None:
    said = ask("--tp", "3")
    assert (said["stage"], said["message"]) == ("arg-check", "three do not divide")
    large = {**tiny.CONFIG, "num_attention_heads": 4}
    said = ask(config=large)
    assert (said["stage"], said["message"]) == ("model-config", "heads too large")
    assert said["resolved"]["attention_backend"] == "fast"  # what was settled before it is told


def test_a_refusal_after_the_weights_is_told_apart(ask: Ask) -> None:
    said = ask(capability="12.0")
    assert (said["ok"], said["stage"], said["message"]) == (False, "backend-init", "fast does not run here")
    assert said["where"]["file"] == "srt/layers/attention/fast.py"
    assert (said["prefill"], said.get("backend_class")) == ("fast", None)
    assert ask("--attention-backend", "slow", capability="12.0")["full_attn_backend_class"] == "Inner"


def test_a_package_stated_absent_refuses_in_the_line_that_imports_it(ask: Ask) -> None:
    said = ask(facts={"flashinfer": False})
    assert (said["ok"], said["message"]) == (False, "No module named 'flashinfer'")
    assert said["where"] == {"file": "srt/layers/attention/fast.py", "line": 1, "func": "<module>"}
    assert ask("--attention-backend", "slow", facts={"flashinfer": False})["ok"] is True


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("if runner.secret: pass", "model_runner.secret was used as a truth value"),
        ("if runner.secret is None: pass", "model_runner.secret was checked for identity"),
        ("import torch\nif torch.zeros(4).sum() > 0: pass", "torch.zeros().sum() was compared"),
        ("from flashinfer import plan\nif plan(4) == 4: pass", "flashinfer.plan() was compared"),
        ("import somewhere\nif somewhere.FLAG: pass", "somewhere.FLAG was used as a truth value"),
        ("try:\n    bool(runner.secret)\nexcept BaseException:\n    pass", "model_runner.secret"),
        (
            "try:\n    bool(runner.secret)\nexcept BaseException:\n    raise ValueError('no') from None",
            "model_runner.secret",
        ),
        ("import torch\ntorch.finfo(torch.float16).no_such", "AttributeError of a stand-in"),
    ],
)
def test_what_it_does_not_have_makes_the_answer_unknown_and_is_named(probe: Ask, body: str, named: str) -> None:
    said = probe(body)
    assert said["ok"] is None
    assert named in said["unknown"][0]
    assert "stand-in" in named or "sglang/srt/layers/attention/probe.py:" in said["unknown"][0]


def test_what_only_passes_through_decides_nothing(probe: Ask) -> None:
    said = probe(
        "import torch\nself.x = [torch.empty(4, device='cuda') for _ in range(2)]\nself.y = runner.secret.more(3)"
    )
    assert (said["ok"], said["backend_class"]) == (True, "Probe")


def test_what_a_deprecated_flag_says_is_kept_at_every_launch(ask: Ask) -> None:
    for _ in range(2):
        assert ["WARNING", "--old is deprecated on 9.", "server_args"] in ask("--old")["warnings"]
    assert ["WARNING", "--old is deprecated on 12.", "server_args"] in ask("--old", capability="12.0")["warnings"]


def test_one_launch_leaves_nothing_for_the_next(probe: Ask) -> None:
    body = """
        from sglang.srt import utils
        import os
        if getattr(utils, "SEEN", False) or os.environ.get("SEEN"):
            raise ValueError("not the first launch")
        utils.SEEN = os.environ["SEEN"] = "1"
        """
    assert probe(body, times=2)["ok"] is True


@pytest.mark.parametrize(
    "body",
    [
        "import io\nio.open(SECRET).read()",
        "import io\nio.open(NEW, 'w').write('x')",
        "import inspect\ninspect.os.mkdir(NEW)",
        "import inspect\ninspect.os.fork()",
        "import inspect\ninspect.os.system('touch ' + NEW)",
        "import asyncio\nasyncio.new_event_loop()",
        "import inspect\ninspect.importlib.import_module('socket').create_connection(('127.0.0.1', 9), 1)",
        "import io\ntry:\n    io.open(SECRET)\nexcept Exception:\n    pass",
    ],
)
def test_what_a_server_s_arguments_never_need_is_refused(probe: Ask, tmp_path: Path, body: str) -> None:
    """Reading elsewhere, writing, processes, the network; also when engine code looks away."""
    (tmp_path / "secret").write_text("x")
    names = f"SECRET, NEW = {str(tmp_path / 'secret')!r}, {str(tmp_path / 'new')!r}\n"
    said = probe(names + body)
    assert said["ok"] is None
    assert "refused in the witness" in said["unknown"][0]
    assert not (tmp_path / "new").exists()


def test_the_environment_of_this_process_is_not_the_child_s(probe: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    body = "import inspect, os\nassert 'HF_TOKEN' not in {**inspect.os.environ, **os.environ}, 'it sees variables'"
    assert probe(body)["ok"] is True


def test_worlds_of_earlier_launches_are_forgotten(tmp_path: Path) -> None:
    """A batch asks one child thousands of times, and its memory is bounded."""
    body = "from typing import List, Optional\nself.kinds = Optional[type(self)], List[type(self)]"
    state = State(str(tiny.write(tmp_path, body)), tiny.VERSION)
    for _ in range(2 * jobs.WORLDS):
        assert jobs.answer(state, tiny.case("--attention-backend", "probe"))["ok"] is True
    alive = [each for each in gc.get_objects() if type(each) is World]
    assert len(alive) <= launch._MACHINES + 1


def test_versions_are_those_the_release_pins(probe: Ask) -> None:
    body = """
        from importlib.metadata import PackageNotFoundError, version
        from packaging.version import parse
        import torch, transformers
        assert (version("torch"), torch.__version__, transformers.__version__) == ("2.9.1", "2.9.1", "4.57.1")
        assert version("sglang") == "0.0.7"
        assert parse("2.9") < parse(version("torch")) < parse("2.9.2.dev1")
        try:
            version("no_such_package")
        except PackageNotFoundError:
            return
        raise ValueError("there is no such package")
        """
    assert probe(body)["ok"] is True


@pytest.mark.parametrize("form", ["two words", "one word"])
def test_a_draft_model_s_config_is_read_from_where_the_words_say(tmp_path: Path, form: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    flag = "--speculative-draft-model-path"
    words = [flag, f"{tmp_path}/"] if form == "two words" else [f"{flag}={tmp_path}"]
    assert _drafts(["--tp", "8", *words]) == {str(tmp_path): {"model_type": "llama"}}
    assert _drafts([flag, "some/repository"]) == {}
    assert _drafts([flag]) == {}


def test_a_release_that_does_not_say_its_transformers_is_unknown(tmp_path: Path) -> None:
    for pins, said in (("", "pins no transformers"), ("transformers==3.0.0", "no table of the config classes")):
        text = tiny.METADATA.replace(
            "Requires-Dist: transformers==4.57.1", f"Requires-Dist: {pins}" if pins else "X: y"
        )
        root = tiny.write(tmp_path / (pins or "none"), **{f"sglang-{tiny.VERSION}.dist-info/METADATA": text})
        child = Child(sources.find(DISTRIBUTION, str(root)))
        answer = child.ask(tiny.case())
        child.close()
        assert answer["ok"] is None
        assert said in answer["unknown"][0]


def test_a_tree_without_the_engine_s_outline_is_unknown(tmp_path: Path) -> None:
    root = tiny.write(tmp_path)
    os.remove(root / "sglang/srt/server_args.py")
    child = Child(sources.find(DISTRIBUTION, str(root)))
    try:
        answer = child.ask(tiny.case())
    except UnknownAnswer as error:
        answer = {"ok": None, "unknown": [str(error)]}
    child.close()
    assert answer["ok"] is None
    assert "server_args" in answer["unknown"][0]


LATER = {
    "sglang/srt/server_args.py": """
        from sglang.srt.fields import Fields
        class ServerArgs(Fields):
            @classmethod
            def from_cli_args(cls, args): return cls(**vars(args))
            def resolve_once(self):
                self.resolved = {**self.raw(), "attention_backend": self.attention_backend or "slow"}
            def resolved_dict(self): return self.resolved
            def get_model_config(self):
                from sglang.srt.configs.model_config import ModelConfig
                return ModelConfig(self)
            @staticmethod
            def add_cli_args(parser):
                for field in Fields.names():
                    parser.add_argument("--" + field.replace("_", "-"), default=getattr(Fields("x"), field))
        def prepare_server_args(argv):
            import argparse
            parser = argparse.ArgumentParser()
            ServerArgs.add_cli_args(parser)
            return ServerArgs.from_cli_args(parser.parse_args(argv))
        """,
    "sglang/srt/fields.py": """
        import msgspec
        class Fields(msgspec.Struct):
            model_path: str
            attention_backend: str | None = None
            page_size: int | None = None
            kv_cache_dtype: str = "auto"
            tp_size: int = 1
            pp_size: int = 1
            dp_size: int = 1
            ep_size: int = 1
            speculative_algorithm: str | None = None
            resolved: dict = {}
            @classmethod
            def names(cls): return [f.name for f in msgspec.structs.fields(cls) if f.name != "resolved"]
            def raw(self): return {n: getattr(self, n) for n in self.names()}
        """,
    "sglang/srt/configs/hybrid_arch.py": "def mambaish_config(config): return None\n",
    "sglang/srt/runtime_context.py": """
        def publish(args, *, role):
            if args.page_size == "9":
                raise ValueError("inconsistent")
        """,
    "sglang/srt/model_executor/model_runner_components/attention_backend_setup.py": """
        from typing import NamedTuple
        from sglang.srt.layers.attention.attention_registry import BACKENDS
        class Pair(NamedTuple):
            prefill: str
            decode: str
        class Built(NamedTuple):
            attn_backend: object
        def init_cublas(): raise RuntimeError("no GPU")
        def resolve_attention_backend_strs(model_runner):
            return Pair("slow", model_runner.server_args.resolved["attention_backend"])
        def build_attention_backends(model_runner):
            init_cublas()
            return Built(BACKENDS[model_runner.decode_attention_backend_str](model_runner))
        """,
}


def test_the_outline_of_later_releases_is_walked_too(tmp_path: Path) -> None:
    child = Child(sources.find(DISTRIBUTION, str(tiny.write(tmp_path, **LATER))))
    said = child.ask(tiny.case())
    refused = child.ask(tiny.case("--page-size", "9"))
    child.close()
    assert (said["ok"], said["prefill"], said["decode"], said["backend_class"]) == (True, "slow", "slow", "Slow")
    assert (said["given"]["attention_backend"], said["resolved"]["attention_backend"]) == (None, "slow")
    assert (refused["stage"], refused["message"]) == ("publish", "inconsistent")
