"""How the plug-in registers in one real, installed vLLM: one forked process a case, one JSON line each.

Run by vllm_plugin.py with the python of a venv that has vLLM and a PYTHONPATH on which attnfit is found like an
installed distribution. Faked: the platform (no GPU is needed to register). `wrong` lists what is not as promised.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import torch  # noqa: E402
import vllm  # noqa: E402
import vllm.platforms as platforms  # noqa: E402
import vllm.platforms.cuda as cuda  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402

OURS = "attnfit.engines.vllm.plugin.backend.TritonMLASparseBackend"
ANOTHER = "another.plugin.Backend"
NAME, IF_TAKEN, CUSTOM = "TRITON_MLA_SPARSE", "ATTNFIT_TRITON_MLA_SPARSE", "CUSTOM"


class FakePlatform(cuda.CudaPlatformBase):
    get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(12, 0))
    get_device_name = classmethod(lambda cls, device_id=0: "fake")
    get_device_total_memory = classmethod(lambda cls, device_id=0: 80 << 30)
    device_count = classmethod(lambda cls: 1)
    is_fully_connected = classmethod(lambda cls, ids: True)


platforms._current_platform = platforms.current_platform = FakePlatform()

import vllm.engine.arg_utils as arg_utils  # noqa: E402
import vllm.plugins as plugins  # noqa: E402
import vllm.v1.attention.backend as theirs  # noqa: E402
import vllm.v1.attention.backends.registry as registry  # noqa: E402
from vllm.config import AttentionConfig  # noqa: E402

try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser

Backends = registry.AttentionBackendEnum
TAKES_NEW_NAMES = hasattr(Backends, "register")
said: list[str] = []


class Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        said.append(f"{record.levelname} {record.name}: {record.getMessage()}")


def load() -> None:
    """As a process of vLLM does it, which may be one that has done it before."""
    plugins.plugins_loaded = False
    plugins.load_general_plugins()


def path_of(name: str) -> str | None:
    member = Backends.__members__.get(name)
    if member is None or (name == CUSTOM and not member.is_overridden()):
        return None
    return member.get_path()


def parsed(name: str) -> str:
    """`--attention-backend name` through the real parser and the real AttentionConfig: the path of its class."""
    parser = arg_utils.AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    flags = parser.parse_args(["--model", "x", "--attention-backend", name])
    asked = flags.attention_backend
    return AttentionConfig(backend=asked).backend.get_path()


def reachable(*names: str) -> list[str]:
    found = []
    for name in names:
        for written in (name, name.lower()):
            try:
                path = parsed(written)
            except (Exception, SystemExit) as error:
                path = f"{type(error).__name__}: {error}"
            if path != OURS:
                found.append(f"--attention-backend {written} gives {path}")
    return found


def goes_on() -> list[str]:
    """vLLM does what it does without us."""
    wrong = [] if parsed("flashmla_sparse").endswith("FlashMLASparseBackend") else ["FLASHMLA_SPARSE is not itself"]
    wrong += [f"{name} is registered" for name in (CUSTOM, NAME, IF_TAKEN) if path_of(name) == OURS]
    return wrong


def one_sentence(*words: str) -> list[str]:
    if len(said) != 1:
        return [f"{len(said)} lines in the log: {said}"]
    text = said[0]
    wrong = [f"{text!r} lacks {word!r}" for word in words if word not in text]
    return wrong + ([f"{text!r} is more than a line"] if "\n" in text or "Traceback" in text else [])


def loads() -> list[str]:
    before = {member.name for member in Backends}
    load()
    first = {name: path_of(name) for name in (CUSTOM, NAME, IF_TAKEN)}
    load()
    wrong = [] if first == {name: path_of(name) for name in first} else ["loading again changes what is registered"]
    names = [CUSTOM, *([NAME] if TAKES_NEW_NAMES else [])]
    wrong += [f"{name} stands for {path_of(name)}" for name in names if path_of(name) != OURS]
    added = {member.name for member in Backends} - before
    wrong += [f"names added: {added}"] if added != set(names) - {CUSTOM} else []
    wrong += ["CUDA is initialised"] if torch.cuda.is_initialized() else []
    wrong += [f"said: {said}"] if said else []
    wrong += reachable(*names)
    backend = Backends[CUSTOM].get_class()
    wrong += [] if backend.get_name() == NAME else [f"its name is {backend.get_name()}"]
    return wrong


def filtered(value: str, expected: bool) -> Callable[[], list[str]]:
    def case() -> list[str]:
        os.environ["VLLM_PLUGINS"] = value
        load()
        return [] if (path_of(CUSTOM) == OURS) == expected else [f"VLLM_PLUGINS={value}: {path_of(CUSTOM)}"]

    return case


def another_release(version: str) -> Callable[[], list[str]]:
    def case() -> list[str]:
        vllm.__version__ = version
        load()
        load()
        return one_sentence("WARNING vllm.attnfit", version, vllm_release) + goes_on()

    return case


def without(module: Any, name: str, **variables: str) -> Callable[[], list[str]]:
    def case() -> list[str]:
        os.environ.update(variables)
        delattr(module, name)
        load()
        load()
        return one_sentence("WARNING vllm.attnfit", name) + [
            f"{n} is registered" for n in (CUSTOM, NAME, IF_TAKEN) if path_of(n) == OURS
        ]

    return case


def custom_is_taken() -> list[str]:
    registry.register_backend(Backends.CUSTOM, ANOTHER)
    load()
    wrong = [] if path_of(CUSTOM) == ANOTHER else ["the other plug-in's CUSTOM is gone"]
    if TAKES_NEW_NAMES:
        return wrong + reachable(NAME) + ([f"said: {said}"] if said else [])
    return wrong + one_sentence("WARNING vllm.attnfit", CUSTOM, ANOTHER) + goes_on()


def name_is_in_tree() -> list[str]:
    if TAKES_NEW_NAMES:
        Backends.register(NAME, "in.tree.Backend")
    else:
        member = object.__new__(Backends)
        member._name_, member._value_ = NAME, "in.tree.Backend"
        Backends._member_map_[NAME] = member
        Backends._member_names_.append(NAME)
    load()
    load()
    wrong = [] if path_of(NAME) == "in.tree.Backend" else [f"the in-tree {NAME} stands for {path_of(NAME)}"]
    return wrong + reachable(CUSTOM, *([IF_TAKEN] if TAKES_NEW_NAMES else [])) + ([f"said: {said}"] if said else [])


vllm_release = str(vllm.__version__).partition("+")[0]
IMPL = "SparseMLAAttentionImpl" if hasattr(theirs, "SparseMLAAttentionImpl") else "MLAAttentionImpl"
BASES = ("AttentionBackend", "AttentionMetadata", "AttentionMetadataBuilder", "AttentionCGSupport", "MultipleOf", IMPL)
CASES: dict[str, Callable[[], list[str]]] = {
    "loads, twice, without CUDA": loads,
    "VLLM_PLUGINS names others": filtered("other", False),
    "VLLM_PLUGINS is empty": filtered("", False),
    "VLLM_PLUGINS names it": filtered("other,attnfit", True),
    "another release": another_release("0.99.0"),
    "a release candidate": another_release(f"{vllm_release}rc1"),
    **{f"no {name}": without(theirs, name) for name in BASES},
    "no priorities to append to": without(cuda, "_get_backend_priorities", ATTNFIT_VLLM_AUTO="1"),
    "CUSTOM is taken": custom_is_taken,
    "the name is in-tree": name_is_in_tree,
}


def main() -> None:
    logging.getLogger("vllm").addHandler(Listener())
    for name, case in CASES.items():
        if os.fork() == 0:
            said.clear()
            try:
                wrong = case()
            except (Exception, SystemExit) as error:
                wrong = [f"{type(error).__name__}: {error}"]
            ANSWERS.write(json.dumps({"case": name, "wrong": wrong, "said": said[:1]}) + "\n")
            ANSWERS.flush()
            os._exit(0)
        os.wait()


main()
sys.exit(0)
