"""One engine release, answering selector questions with its own predicates. Standard library only."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from attnfit.witness import guard, stubs
from attnfit.witness.fake_torch import DTYPES
from attnfit.witness.lazy import Situation
from attnfit.witness.loader import Loader

from .answer import WitnessAnswer
from .facts import Facts
from .fakes import outside
from .setting import View, capability, literal_defaults, vllm_config

KNOWN = Path(__file__).with_name("known")  # our own account of what vLLM asks other packages
NOT_CUDA = ("ROCM", "XPU", "CPU", "AMX", "TORCH_SDPA", "CUSTOM", "NO_ATT", "IPEX", "HPU", "PALLAS")
REGISTRIES = ("vllm.v1.attention.backends.registry", "vllm.attention.backends.registry")
SELECTORS = ("vllm.v1.attention.selector", "vllm.attention.selector")


class Release:
    """Backends and selection of one release. `version` is what the caller says it is."""

    def __init__(
        self,
        root: str | Path,
        version: str,
        env: Mapping[str, Any],
        transform: guard.Transform | None = None,
        helpers: Mapping[str, Any] | None = None,
    ) -> None:
        self.version = version
        self.env: Mapping[str, Any] = env
        self.facts = Facts(Situation(), str(Path(root) / "vllm"))
        self.facts.env = env
        self.loader = Loader(
            root,
            package="vllm",
            facts=self.facts,
            outside=outside,
            known=KNOWN,
            transform=transform,
            helpers=helpers,
        )
        self._config: Any = None
        self._spied: Any = None
        self._fix_modules()
        self.enum: Any = self._first(REGISTRIES, "AttentionBackendEnum")
        self.selector_config: Any = self._first(SELECTORS, "AttentionSelectorConfig", None)
        self._defaults = {
            "attention_config": self._source_defaults("vllm.config.attention", "AttentionConfig"),
            "parallel_config": self._source_defaults("vllm.config.parallel", "ParallelConfig"),
        }
        self._classes: dict[str, Any] = {}

    # -- set-up -------------------------------------------------------------------------------------------------

    def _fix_modules(self) -> None:
        """Names that stand for the running process: the platform, the current config, the parsed variables."""
        if not self.loader.has_source("vllm.platforms"):
            raise ImportError(f"{self.loader.root} holds no vllm/platforms")
        self.loader.overrides["vllm.platforms"] = {"__getattr__": self._platform_attribute}
        self.loader.overrides["vllm.envs"] = {"__getattr__": self._variable}
        for name in ("vllm.config.vllm", "vllm.config"):
            if self.loader.has_source(name):
                module = self.loader.source(name)
                if module.defines("get_current_vllm_config"):
                    self._config_module = module
                    break
        self._platform: Any = None
        self.variables: Mapping[str, Any] = {}

    def _platform_attribute(self, name: str) -> Any:
        if name == "current_platform":
            return self.platform
        raise AttributeError(name)

    @property
    def platform(self) -> Any:
        """The CUDA platform of the release, its device queries answered from the question."""
        if self._platform is None:
            self._platform = self._make_platform()
        return self._platform

    def _make_platform(self) -> Any:
        facts = self.facts
        capability_type = self.loader.source("vllm.platforms.interface").DeviceCapability
        base = self.loader.source("vllm.platforms.cuda").CudaPlatformBase
        spied = base.get_valid_backends.__func__
        release = self

        def get_device_capability(cls: Any, device_id: int = 0) -> Any:
            return capability_type(*facts.capability)

        def get_valid_backends(cls: Any, *args: Any, **kwargs: Any) -> Any:
            release._spied = spied(cls, *args, **kwargs)
            return release._spied

        def unknown(name: str) -> Any:
            return classmethod(lambda cls, *args, **kwargs: stubs.leak(f"current_platform.{name}()"))

        space = {
            "get_device_capability": classmethod(get_device_capability),
            "get_valid_backends": classmethod(get_valid_backends),
            **{
                name: unknown(name)
                for name in (
                    "get_device_name",
                    "get_device_total_memory",
                    "device_count",
                    "num_compute_units",
                    "is_fully_connected",
                )
            },
        }
        self._spy = spied
        return type("WitnessPlatform", (base,), space)()

    def _variable(self, name: str) -> Any:
        """vllm.envs.NAME: a stated value, else what the release makes of the stated environment."""
        self.facts.note(f"envs.{name}")
        if name in self.variables:
            return self.variables[name]
        table = self.loader.source("vllm.envs").demand("environment_variables")
        if name not in table:
            raise AttributeError(f"module 'vllm.envs' has no attribute {name!r}")
        return table[name]()

    def _first(self, modules: tuple[str, ...], name: str, *default: Any) -> Any:
        for module in modules:
            if self.loader.has_source(module) and self.loader.source(module).defines(name):
                return getattr(self.loader.source(module), name)
        if default:
            return default[0]
        raise ImportError(f"this release has no {name}; supported are 0.12.0 and newer")

    def _source_defaults(self, module: str, name: str) -> dict[str, Any]:
        found = self.loader.has_source(module)
        return literal_defaults(self.loader.source(module).statements(name)) if found else {}

    # -- backends -----------------------------------------------------------------------------------------------

    @cached_property
    def names(self) -> list[str]:
        """Every CUDA backend name of the release, in its own order."""
        return [m.name for m in self.enum if not any(word in m.name for word in NOT_CUDA)]

    def backend(self, name: str) -> Any:
        """The class of a backend. Raises ImportError as the engine would, StubLeak if it cannot be loaded."""
        return self.enum[name].get_class()

    @property
    def backends(self) -> dict[str, Any]:
        """name -> class, for those that load in the current context."""
        found = {}
        for name in self.names:
            try:
                found[name] = self.backend(name)
            except (Exception, stubs.StubLeak):
                continue
        return found

    # -- questions ----------------------------------------------------------------------------------------------

    @contextmanager
    def context(
        self,
        question: Mapping[str, Any],
        env: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Iterator[Release]:
        """Install a question's circumstances: capability, current config, environment facts, VLLM_* values.

        All values may be tracked objects. `question["hf"]` may be a mapping, any object with attributes, or None (no
        model config).
        """
        facts = self.facts
        self._install(question, self.env if env is None else env, variables or {})
        facts.situation.reads = set()
        del stubs.STATE.leaks[:]
        self._spied = None
        try:
            yield self
        finally:
            self._config = None
            facts._capability = None
            facts.situation.changed("capability")

    def _install(self, question: Mapping[str, Any], env: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
        facts, changed = self.facts, self.facts.situation.changed
        facts._capability = capability(question["capability"])
        changed("capability")
        if env is not facts.env:
            for name in {*facts.env, *env}:
                changed(f"env.{name}")
            facts.env = env
        for name in {*self.variables, *variables}:
            changed(f"envs.{name}")
            changed(f"variable.{name}")
        self.variables = {k: v for k, v in variables.items() if not isinstance(v, str)}
        facts.variables = {k: v for k, v in variables.items() if isinstance(v, str)}
        self._config = self._vllm_config(question)
        vars(self._config_module)["_current_vllm_config"] = self._config
        for facet in [name for name in facts.situation.versions if name.startswith("config.")]:
            changed(facet)

    def _vllm_config(self, question: Mapping[str, Any]) -> View:
        return vllm_config(question, self._defaults, self.dtype(question["dtype"]), self.facts)

    def dtype(self, name: Any) -> Any:
        """ "float16" -> the torch.float16 engine code sees."""
        return DTYPES[name] if isinstance(name, str) and name in DTYPES else name

    def selector_fields(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The question as keyword arguments of validate_configuration, without the capability."""
        fields = {
            "head_size": question["head_size"],
            "dtype": self.dtype(question["dtype"]),
            "kv_cache_dtype": question.get("kv_cache_dtype", "auto"),
            "block_size": question.get("block_size"),
        }
        if self.selector_config is not None:
            for name in self.selector_config._fields:
                if name in question and name not in fields:
                    fields[name] = question[name]
            return dict(self.selector_config(**fields)._asdict())
        base = self.backend_base()
        for name in inspect.signature(base.validate_configuration).parameters:
            if name not in fields and name != "device_capability":
                fields[name] = question.get(name, "decoder" if name == "attn_type" else False)
        return fields

    def backend_base(self) -> Any:
        """AttentionBackend, the class all backends derive from."""
        for name in ("vllm.v1.attention.backend", "vllm.attention.backends.abstract"):
            if self.loader.has_source(name):
                return self.loader.source(name).AttentionBackend
        raise ImportError("this release has no AttentionBackend")

    def validate(self, name: str, question: Mapping[str, Any]) -> list[str]:
        """One backend's reasons to refuse, inside `context(question)`; as the engine's, exceptions included."""
        device = self.platform.get_device_capability()
        reasons = self.backend(name).validate_configuration(device_capability=device, **self.selector_fields(question))
        return _texts(reasons)

    def select(self, question: Mapping[str, Any]) -> tuple[str | None, str | None]:
        """(chosen backend, error) as `get_attn_backend_cls` decides, inside `context(question)`."""
        chosen = question.get("backend")
        fields = self.selector_fields(question)
        choose = self.platform.get_attn_backend_cls
        takes = inspect.signature(choose).parameters
        try:
            member = self.enum[chosen] if chosen else None
            if "attn_selector_config" in takes:
                extra = {"num_heads": question.get("num_heads")} if "num_heads" in takes else {}
                path = choose(member, attn_selector_config=self.selector_config(**fields), **extra)
            else:
                path = choose(member, **fields)
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
        names: dict[str, str] = {}
        for item in self.enum:
            try:
                names.setdefault(item.get_path(), item.name)
            except Exception:
                continue
        return names.get(path, path), None

    def ask(
        self,
        question: Mapping[str, Any],
        env: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        every: bool = True,
    ) -> WitnessAnswer:
        """The release's whole answer. `question` has the fields of `core.Question`, capability as "12.0" or (12, 0)."""
        answer = WitnessAnswer()
        with self.context(question, env, variables):
            try:
                answer.chosen, answer.error = self.select(question)
                if self._spied is None:
                    self._valid(question)
                valid, refused = self._spied or ((), {})
                answer.valid = [_backend_name(item) for item in valid]
                for member, item in refused.items():  # newer releases: (priority, reasons)
                    answer.refused[member.name] = _texts(item[1] if isinstance(item, tuple) else item)
            except stubs.StubLeak as leaked:
                answer.unknown = str(leaked)
            if stubs.STATE.leaks and not answer.unknown:
                answer.unknown = stubs.STATE.leaks[0]
            if every:
                self._every(question, answer)
            answer.read = sorted(self.facts.read)
        return answer

    def _valid(self, question: Mapping[str, Any]) -> None:
        fields = self.selector_fields(question)
        device = self.platform.get_device_capability()
        takes = inspect.signature(self._spy).parameters
        if "attn_selector_config" in takes:
            extra = {"num_heads": question.get("num_heads")} if "num_heads" in takes else {}
            fields = {"attn_selector_config": self.selector_config(**fields), **extra}
        try:
            self.platform.get_valid_backends(device_capability=device, **fields)
        except Exception:
            return

    def _every(self, question: Mapping[str, Any], answer: WitnessAnswer) -> None:
        device, fields = self.platform.get_device_capability(), self.selector_fields(question)
        for name in self.names:
            del stubs.STATE.leaks[:]
            try:
                backend = self.backend(name)
                if not hasattr(backend, "validate_configuration"):
                    continue
            except stubs.StubLeak as leaked:
                answer.unknown_backends[name] = str(leaked)
                continue
            except Exception as error:
                answer.every[name] = [f"LOAD {type(error).__name__}: {error}"]
                continue
            try:
                reasons = _texts(backend.validate_configuration(device_capability=device, **fields))
                if stubs.STATE.leaks:
                    raise stubs.StubLeak(stubs.STATE.leaks[0])
                answer.every[name] = reasons
            except stubs.StubLeak as leaked:
                answer.unknown_backends[name] = str(leaked)
            except Exception as error:
                answer.every[name] = [f"RAISES {type(error).__name__}: {error}"]


def _backend_name(item: Any) -> str:
    return str((item.backend if hasattr(item, "backend") else item[0]).name)


def _texts(reasons: Any) -> list[str]:
    texts = list(reasons)
    if not all(isinstance(text, str) for text in texts):
        stubs.leak("a reason is not text")
    return texts


__all__ = ["Release", "WitnessAnswer"]
