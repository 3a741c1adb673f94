"""Everything around SGLang's source files: what of the standard library would look at this machine, and other packages.

Standard library only.
"""

from __future__ import annotations

import functools
import json
import logging
import posixpath
import random
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from attnfit.witness import fakes, stubs
from attnfit.witness.fakes import StubModule
from attnfit.witness.stubs import as_real

from . import gpu, structs, versions
from .files import Files
from .files import modules as file_modules
from .gpu import Gpus
from .packages import Facts

# Pure modules that SGLang gets as they are, beside those every engine gets.
_REAL = """
    argparse asyncio binascii codecs colorsys concurrent concurrent.futures difflib errno fnmatch gettext html io
    ipaddress pickle secrets select shlex signal statistics tokenize unittest urllib urllib.parse zlib
"""
REAL = fakes.REAL | frozenset(_REAL.split())
# Distributions whose version is asked, beside the pinned ones: newer than any check wants.
_NEW = """
    flashinfer_python flashinfer_cubin flashinfer_jit_cache sgl_kernel sglang_kernel flash_attn_4 sgl_deep_gemm
    sgl_flash_mla nvidia_cutlass_dsl nvidia_cutlass_dsl_libs_cu13
"""
_NEW_ENOUGH = frozenset(_NEW.split())
_LEVELS = {10: "DEBUG", 20: "INFO", 30: "WARNING", 40: "ERROR", 50: "CRITICAL"}


class Log:
    """A logger; what it is told goes to `said` as [level, text, logger]."""

    level, disabled, propagate = 20, False, True

    def __init__(self, name: str, said: list[list[str]]) -> None:
        self.name, self.handlers = name, []  # type: ignore[var-annotated]
        self._said = said

    def log(self, level: int, message: Any, *args: Any, **kwargs: Any) -> None:
        if level < 20:
            return
        try:
            text = str(message) % args if args else str(message)
        except (TypeError, ValueError):
            text = str(message)
        self._said.append([_LEVELS.get(level, "INFO"), text, self.name.removeprefix("sglang.srt.")])

    def debug(self, message: Any, *args: Any, **kwargs: Any) -> None:
        """Not kept."""

    def info(self, message: Any, *args: Any, **kwargs: Any) -> None:
        self.log(20, message, *args)

    def warning(self, message: Any, *args: Any, **kwargs: Any) -> None:
        self.log(30, message, *args)

    def error(self, message: Any, *args: Any, **kwargs: Any) -> None:
        self.log(40, message, *args)

    info_once = info
    warn = warning_once = warning
    exception = critical = error

    def isEnabledFor(self, level: int) -> bool:
        return level >= 20

    def getEffectiveLevel(self) -> int:
        return 20

    def getChild(self, name: str) -> Log:
        return Log(f"{self.name}.{name}", self._said)

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Handlers, filters and levels: nothing is printed here."""

    setLevel = addHandler = removeHandler = addFilter = removeFilter = _nothing


def logging_module(said: list[list[str]]) -> StubModule:
    """logging, whose messages are kept."""
    names = (
        "DEBUG INFO WARNING WARN ERROR CRITICAL NOTSET Handler Formatter Filter StreamHandler LogRecord getLevelName"
    )
    root = Log("root", said)
    known = {name: getattr(logging, name) for name in f"{names} Logger LoggerAdapter getLevelName".split()}
    return StubModule(
        "logging",
        getLogger=lambda name=None: Log(name, said) if name else root,
        basicConfig=lambda **options: None,
        captureWarnings=lambda capture: None,
        root=root,
        info=root.info,
        warning=root.warning,
        **known,
    )


def typing_module(home: Callable[[str], Any]) -> types.ModuleType:
    """typing; get_type_hints looks a class's module up in sys.modules, where engine modules are not."""
    module = types.ModuleType("typing")
    vars(module).update({name: getattr(typing, name) for name in dir(typing) if not name.startswith("__")})

    def get_type_hints(
        target: Any, globalns: Any = None, localns: Any = None, include_extras: bool = False
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for owner in reversed(target.__mro__) if isinstance(target, type) else (target,):
            space = vars(home(owner.__module__) or sys.modules[owner.__module__])
            own = dict(vars(owner)) if isinstance(owner, type) else {}
            for name, hint in getattr(owner, "__dict__", {}).get("__annotations__", {}).items():
                while isinstance(hint, str):  # one that was quoted in the source is text twice
                    hint = eval(_hint(hint), space, own)
                found[name] = hint
        if include_extras:
            return found
        return {name: typing._strip_annotations(hint) for name, hint in found.items()}  # type: ignore[attr-defined]

    vars(module)["get_type_hints"] = get_type_hints
    return module


@functools.cache
def _hint(text: str) -> types.CodeType:
    return compile(text, "<hint>", "eval", dont_inherit=True)


class Environ(dict[str, str]):
    """os.environ: the launch's own variables, and what SGLang sets itself."""


def _os(table: Mapping[str, Any], files: Files, environ: Environ) -> None:
    """os over the case's variables and the model's files."""
    module: Any = table["os"]
    vars(module).update(
        environ=environ,
        getenv=environ.get,
        getpid=lambda: 1,
        cpu_count=lambda: 64,
        access=lambda path, mode: False,
        makedirs=lambda path, *args, **kwargs: None,
        listdir=files.listdir,
        uname=lambda: types.SimpleNamespace(sysname="Linux", machine="x86_64", nodename="host"),
    )
    vars(module.path).update(
        exists=files.exists,
        isfile=files.is_file,
        isdir=files.is_dir,
        expandvars=str,
        relpath=posixpath.relpath,
        commonpath=posixpath.commonpath,
        commonprefix=posixpath.commonprefix,
    )


def _metadata(table: Mapping[str, Any], pinned: Mapping[str, str]) -> None:
    """importlib.metadata: versions as the release pins them."""
    module: Any = table["importlib.metadata"]

    def version(name: str) -> str:
        normal = re.sub(r"[-_.]+", "_", name).lower()
        if normal in pinned:
            return pinned[normal]
        if normal in _NEW_ENOUGH:
            return "99.0.0"
        raise as_real(module.PackageNotFoundError(name))

    vars(module).update(version=version, entry_points=lambda **options: [])


def surround(
    table: dict[str, types.ModuleType],
    home: Callable[[str], Any],
    *,
    facts: Facts,
    files: Files,
    gpus: Gpus,
    variables: Mapping[str, str],
    pinned: Mapping[str, str],
    said: list[list[str]],
) -> None:
    """Put everything of this room into a loader's table of outside modules.

    pinned: distribution (normalised) -> version; said: receives what is logged.
    """
    _os(table, files, Environ(variables))
    _metadata(table, pinned)
    vars(table["platform"]).update(platform=lambda *args: "Linux", processor=lambda: "x86_64", node=lambda: "host")
    vars(table["sys"]).update(
        argv=["launch_server.py"],
        executable="/usr/bin/python3",
        stdout=sys.stderr,
        stderr=sys.stderr,
        exit=sys.exit,
        getsizeof=sys.getsizeof,
        intern=sys.intern,
        path=[],
        flags=sys.flags,
        float_info=sys.float_info,
        implementation=sys.implementation,
    )
    errors = {name: type(name, (Exception,), {}) for name in ("CalledProcessError", "TimeoutExpired")}
    hints = typing_module(home)
    table.update(
        {
            "functools": functools,  # a world lasts for one launch: its caches may remember
            "logging": logging_module(said),
            "typing": hints,
            "typing_extensions": hints,
            "random": _random(),
            "regex": re,
            "subprocess": StubModule(
                "subprocess", run=gpus.run, check_output=gpus.smi, PIPE=-1, STDOUT=-2, DEVNULL=-3, **errors
            ),
            "psutil": StubModule("psutil"),
            "orjson": StubModule("orjson", loads=_orjson, JSONDecodeError=ValueError),
            "huggingface_hub": StubModule("huggingface_hub", snapshot_download=_local, HfApi=HfApi),
            "triton": StubModule(
                "triton", __version__="3.5.0", cdiv=lambda a, b: -(-a // b), next_power_of_2=_next_power_of_2
            ),
        }
    )
    torch = pinned.get("torch", "0")
    table.update(gpu.modules(facts, gpus, torch, "12.8" if torch.startswith("2.9") else "13.0"))
    table.update(structs.modules())
    table.update(versions.modules())
    table.update(file_modules(files))


def _random() -> types.ModuleType:
    """random, the same for every launch: a seed that is drawn must not make two equal questions differ."""
    drawn = random.Random(0)
    names = ("randint", "random", "choice", "randrange", "uniform", "shuffle", "sample", "seed", "getrandbits")
    return StubModule("random", Random=random.Random, **{name: getattr(drawn, name) for name in names})


def _orjson(text: Any) -> Any:
    """orjson.loads. It has words of its own for what it refuses."""
    try:
        return json.loads(text, parse_constant=lambda name: stubs.leak(f"orjson was given {name}"))
    except ValueError:
        stubs.leak(f"what orjson says of {text!r}")


class HfApi:
    """huggingface_hub.HfApi: the hub is not asked."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def ask(repo_id: Any = "?", *args: Any, **kwargs: Any) -> Any:
            stubs.leak(f"{kwargs.get('repo_id', repo_id)} is on the hub and not at hand; name a directory instead")

        return ask


def _local(path: Any, *args: Any, **kwargs: Any) -> Any:
    """snapshot_download of a model that is here."""
    return path


def _next_power_of_2(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def no_custom_ops() -> dict[str, dict[str, Any]]:
    """SGLang's own modules in which torch operators are registered: module -> names fixed beforehand."""

    def as_it_is(*args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) and not stubs.is_stub(args[0]) else lambda function: function

    names = ("register_custom_op", "register_custom_op_from_extern", "register_split_op")
    return {
        "sglang.srt.utils.common": {"direct_register_custom_op": lambda *args, **kwargs: None},
        "sglang.srt.utils.custom_op": dict.fromkeys(names, as_it_is),
    }
