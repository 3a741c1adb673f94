"""Learn one release: every backend's predicate, the priority list and the messages, as trees. Runs in the witness.

The release's own code runs with tracked values in place of a question; what it asks becomes the rule book. Nothing
here depends on a release: which fields exist, which are dropped on the way, and every text come out of the run.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

from attnfit.engines.vllm.learn import paths, summary, units
from attnfit.engines.vllm.learn.explore import explore
from attnfit.engines.vllm.learn.helpers import HELPERS
from attnfit.engines.vllm.learn.paths import ANYTHING, NUMBER, OPTIONAL, POSITIVE, Field, Run
from attnfit.engines.vllm.learn.prune import Pruner
from attnfit.engines.vllm.learn.tracked import Attributes, Choice, Number
from attnfit.engines.vllm.learn.trees import Forest, Leaf
from attnfit.engines.vllm.witness.release import Release
from attnfit.witness import stubs

CAPABILITIES = ("7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.1", "10.3", "11.0", "12.0", "12.1")
DTYPES = ("float16", "bfloat16", "float32")
KV_DTYPES = (  # every value any release knew; a release is asked about all of them and its own
    "auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla",
    "turboquant_k8v4",
    "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "octave_k3v4", "octave_k3v3",
    "octave_k3v3_compact",
    "ultraquant_4bit", "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "nvfp4_4over6",
)  # fmt: skip
ATTN_TYPES = ("decoder", "encoder", "encoder_only", "encoder_decoder")
FLAGS = (
    "use_mla", "has_sink", "use_sparse", "use_mm_prefix", "use_per_head_quant_scales", "has_sliding_window",
    "use_non_causal", "use_batch_invariant", "use_kv_connector", "use_pcp", "use_adaptive_verification", "use_dcp",
    "use_rswa",
)  # fmt: skip
CONSTANT = frozenset({"wheel"})  # says how complete the facts are; no circumstance of a question
VARIABLES = ("VLLM_BATCH_INVARIANT",)  # environment variables that are circumstances of a question
ANNOTATIONS = __future__.annotations.compiler_flag


class _Forking(dict[str, Any]):
    """vllm_config's fields; whether there is a model config is a question of its own."""

    present: Choice

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return value if name != "model_config" or self.present else None


class Survey:
    """Explores one `Release` that was loaded with `rewrite` and `HELPERS`."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.forest = Forest()
        self.helpers: dict[str, int] = {}  # "function(argument=field)" -> tree of its value
        summary.SUMMARIES.clear()
        own = typing.get_args(release.loader.source("vllm.config.cache").CacheDType)
        kv = tuple(dict.fromkeys((*KV_DTYPES, *own)))
        self.fields: dict[str, Field] = {}
        self.capability = self._field(
            "capability", CAPABILITIES, tuple(tuple(map(int, c.split("."))) for c in CAPABILITIES), False
        )
        self._field("dtype", DTYPES, tuple(release.dtype(name) for name in DTYPES))
        self._field("kv_cache_dtype", (None, *kv))
        self._field("run_kv_cache_dtype", kv)
        self._field("attn_type", ATTN_TYPES)
        self._field("model_config", (False, True))
        for name in FLAGS:
            self._field(name, (False, True))
        self._field("flash_attn_version", (None, 2, 3, 4))
        self._field("is_diffusion", (False, True))
        self._field("use_trtllm_attention", (None, True, False))
        for name in sorted(release.env.keys() - CONSTANT):
            self._field(f"env.{name}", (True, False))  # the first way through finds everything installed
        for name in VARIABLES:
            self._field(f"env.{name}", (True, False))  # the first way through finds everything installed
        self.numbers: dict[str, int] = {
            "head_size": NUMBER, "block_size": OPTIONAL, "num_heads": OPTIONAL, "num_kv_heads": POSITIVE,
            "dcp_size": POSITIVE, "pcp_size": POSITIVE, "rswa_window": OPTIONAL,
            "model_head_size": NUMBER, "model_num_heads": NUMBER,
        }  # fmt: skip
        self.question = self._question()
        self._cut: dict[Any, list[tuple[units.Unit, Callable[..., Any], str]]] = {}
        self._install()

    def _field(
        self, name: str, labels: tuple[Any, ...], values: tuple[Any, ...] | None = None, marker: bool = True
    ) -> Field:
        field = self.fields[name] = Field(name, labels, labels if values is None else values, marker)
        return field

    def tracked(self, name: str) -> Any:
        """A fresh tracked value for a field."""
        return Number(name, self.numbers[name]) if name in self.numbers else Choice(self.fields[name])

    # -- the stage ----------------------------------------------------------------------------------------------

    def _question(self) -> dict[str, Any]:
        """The selector fields this release knows, tracked; fields we do not know keep the release's default."""
        config = self.release.selector_config
        known = {*self.fields, *self.numbers}
        if config is not None:
            names = config._fields
            defaults = config._field_defaults
        else:
            parameters = inspect.signature(self.release.platform.get_attn_backend_cls).parameters
            names = [n for n in parameters if n != "selected_backend"]
            defaults = {n: p.default for n, p in parameters.items()}
        return {name: self.tracked(name) if name in known else defaults[name] for name in names}

    def _install(self) -> None:
        """Put tracked circumstances where the engine reads them."""
        release, facts = self.release, self.release.facts
        plain = {"capability": (9, 0), "head_size": 128, "dtype": "bfloat16", "hf": {}}
        config = release._vllm_config(plain)
        fields = _Forking(vars(config)["_fields"])
        fields.present = self.tracked("model_config")
        vars(config)["_fields"] = fields
        model = vars(dict.__getitem__(fields, "model_config"))["_fields"]
        text = Attributes("hf.", "types.SimpleNamespace")
        heads, kv_heads, size = (self.tracked(n) for n in ("model_num_heads", "num_kv_heads", "model_head_size"))
        model.update(
            hf_text_config=text, hf_config=text, dtype=self.tracked("dtype"), get_head_size=lambda: size,
            get_num_attention_heads=lambda parallel_config=None: heads,
            get_num_kv_heads=lambda parallel_config=None: kv_heads,
            is_mm_prefix_lm=self.tracked("use_mm_prefix"), use_mla=self.tracked("use_mla"),
            is_diffusion=self.tracked("is_diffusion"), rswa_window=self.tracked("rswa_window"),
        )  # fmt: skip
        vars(fields["attention_config"])["_fields"].update(
            flash_attn_version=self.tracked("flash_attn_version"), use_non_causal=self.tracked("use_non_causal"),
            use_trtllm_attention=self.tracked("use_trtllm_attention"),
        )  # fmt: skip
        vars(fields["parallel_config"])["_fields"].update(
            decode_context_parallel_size=self.tracked("dcp_size"),
            prefill_context_parallel_size=self.tracked("pcp_size"),
        )
        given = _Given(self.tracked("block_size"))
        vars(fields["cache_config"])["_fields"].update(
            cache_dtype=self.tracked("run_kv_cache_dtype"), block_size=self.tracked("block_size"),
            user_specified_block_size=given,
        )  # fmt: skip
        release._config = config
        vars(release._config_module)["_current_vllm_config"] = config
        facts.env = {
            name: value if name in CONSTANT else self.tracked(f"env.{name}") for name, value in release.env.items()
        }
        release.variables = {name: self.tracked(f"env.{name}") for name in VARIABLES}
        facts._capability = Choice(self.capability)

    def _before(self) -> None:
        situation = self.release.facts.situation
        for facet in self.release.facts.read:
            situation.changed(facet)
        del stubs.STATE.leaks[:]

    def explore(self, call: Callable[[], Any], shape: Callable[[Any], Leaf] | None = None) -> int:
        """The tree of `call`, run with everything tracked. Helpers met on the way get trees of their own first."""
        while True:
            try:
                return explore(
                    self.forest,
                    call,
                    (stubs.StubLeak,),
                    self._before,
                    lambda: stubs.STATE.leaks[0] if stubs.STATE.leaks else "",
                    shape=shape,
                )
            except summary.Restart as met:
                self._summarise(met.name, met.call)

    def _summarise(self, name: str, call: Callable[[], Any]) -> None:
        tree = summary.inside(name, lambda: self.explore(call, lambda value: Leaf("value", (_plain(value),))))
        leaves = self.forest.leaves(tree)
        if all(leaf.kind == "value" for leaf in leaves):
            values = tuple(sorted({leaf.payload[0] for leaf in leaves}, key=lambda v: (v is not None, v)))
            summary.SUMMARIES[name] = self._field(name, values, None, False)
            self.helpers[name] = tree
        else:
            summary.SUMMARIES[name] = None

    # -- backends -----------------------------------------------------------------------------------------------

    def load_tree(self, name: str) -> int:
        """Whether the backend's module can be imported."""

        def call() -> list[str]:
            self.release.backend(name)
            return []

        return self.explore(call)

    def rules(self, name: str) -> list[tuple[str, int, str]]:
        """(code, tree, engine file:line) per unit of the backend's predicate, in the order of the reasons."""
        found = []
        for unit, function, file in self._units(name):

            def call(function: Callable[..., Any] = function) -> Any:
                try:
                    cls = self.release.backend(name)
                except ImportError:
                    return []  # the load tree says so
                return function(cls, device_capability=self.release.platform.get_device_capability(), **self.question)

            tree = self.prune(self.explore(call))
            found.append((unit.code, tree, self._place(name, unit, file)))
        return found

    def prune(self, tree: int) -> int:
        """The tree without the branches that no question can take."""

        def start(name: str) -> int:
            return self.numbers.get(name, ANYTHING if name.startswith("hf.") else NUMBER)

        sizes = {name: len(field.labels) for name, field in self.fields.items()}
        values = {name: self.fields[name].values for name in self.helpers}
        return Pruner(self.forest, self.helpers, values, sizes, start).prune(tree)

    def _units(self, name: str) -> list[tuple[units.Unit, Callable[..., Any], str]]:
        """The pieces of validate_configuration as this backend has it, compiled like all engine code."""
        method = self.once(lambda: self.release.backend(name).validate_configuration)
        function = method.__func__
        key = function.__code__
        if key not in self._cut:
            file = key.co_filename
            path = self.release.loader.root / file
            tree = ast.parse(path.read_bytes(), file)
            definition = next(
                n
                for n in ast.walk(tree)
                if isinstance(n, ast.FunctionDef)
                and n.name == function.__name__
                and min([n.lineno, *(d.lineno for d in n.decorator_list)]) == key.co_firstlineno
            )
            pieces = []
            for unit in units.cut(definition):
                piece = unit.function
                piece.decorator_list = []
                statement = self.release.loader.transform(piece, file)
                space: dict[str, Any] = {}
                module = ast.Module([statement], [])
                exec(compile(module, file, "exec", ANNOTATIONS, True), function.__globals__, space)
                pieces.append((unit, space[definition.name], file))
            self._cut[key] = pieces
        return self._cut[key]

    def _place(self, name: str, unit: units.Unit, file: str) -> str:
        """Where the rule stands: what the unit's method reads of this backend's own class, else the method itself."""
        if unit.method:
            mro = self.once(lambda: self.release.backend(name).__mro__)
            homes = [c for c in mro if unit.method in vars(c)]
            code = getattr(getattr(vars(homes[0])[unit.method], "__func__", None), "__code__", None) if homes else None
            if code is not None and code.co_filename.startswith(stubs.STATE.sources):
                for read in (n for n in code.co_names if not n.endswith("_cls")):
                    owner = next((c for c in mro if read in vars(c)), None)
                    if owner is not None and mro.index(owner) < mro.index(homes[0]):
                        line: str = self.once(functools.partial(self._line, owner, read))
                        return line or f"{code.co_filename}:{code.co_firstlineno}"
                return f"{code.co_filename}:{code.co_firstlineno}"
        return f"{file}:{unit.line}"

    def _line(self, owner: type, name: str) -> str:
        """File:line of a class attribute; "" where the source does not show it."""
        code = getattr(getattr(vars(owner)[name], "__func__", None), "__code__", None)
        if code is not None:
            return f"{code.co_filename}:{code.co_firstlineno}"
        module = self.release.loader.source(owner.__module__)
        file = str(vars(module)["__file__"]).removeprefix(f"{self.release.loader.root}/")
        for tree in module.statements(owner.__name__):
            for node in getattr(tree, "body", ()):
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                    return f"{file}:{node.lineno}"
        return ""

    def once(self, call: Callable[[], Any]) -> Any:
        """`call()` on the first path alone."""
        self._before()
        return paths.during(Run(()), call)


def _plain(value: Any) -> Any:
    if type(value) is Choice:
        value = value._pin()
    if value is not None and type(value) not in (bool, int, str):
        raise paths.Opaque(f"a helper returned {type(value).__name__}")
    return value


class _Given:
    """`user_specified_block_size`: true where a block size was given."""

    def __init__(self, block_size: Number) -> None:
        self._block_size = block_size

    def __bool__(self) -> bool:
        return self._block_size != None  # noqa: E711


def load(root: str, version: str, env: dict[str, bool]) -> Survey:
    """The release in `root`, ready to be explored."""
    from attnfit.engines.vllm.learn.rewrite import rewrite

    return Survey(Release(root, version, env, rewrite, {**HELPERS, "__attnfit_summary__": summary.summary}))
