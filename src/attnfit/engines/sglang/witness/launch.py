"""One launch through the release's own code: arguments, resolution, checks, model config, attention backends.

The stages are those of `sglang.launch_server` up to the backends' constructors (model_executor/model_runner.py).
Standard library only.
"""

from __future__ import annotations

import contextlib
import io
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

from attnfit.witness import blame, stubs
from attnfit.witness.loader import Loader

from .gpu import Record
from .runner import parallel_groups, runner
from .world import Sources, World

_SETUP = "sglang.srt.model_executor.model_runner_components.attention_backend_setup"
_REGISTRY = "sglang.srt.layers.attention.attention_registry"
_OVERRIDES = "sglang.srt.arg_groups.overrides"
_CONTEXT = "sglang.srt.runtime_context"
_TRAITS = """
    head_dim v_head_dim kv_lora_rank qk_nope_head_dim qk_rope_head_dim index_head_dim num_attention_heads
    num_key_value_heads num_hidden_layers context_len quantization is_hybrid_swa sliding_window_size vocab_size
    hidden_size is_multimodal is_generation is_encoder_decoder attention_chunk_size
"""
_MACHINE = ("capability", "gpu_name", "gpu_mem_gb", "gpus", "variables", "facts")  # what a parser may look at
_MACHINES = 4  # whose parsers are kept: each keeps the world it was built in
_MOST_TEXT = 4000  # of one message
_SET = re.compile(r"\{('[^'{}]*'(?:, '[^'{}]*')*)\}")


def launch(sources: Sources, case: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to one case; both as in `attnfit.engines.sglang.answers`."""
    stubs.STATE.loading = 0
    stubs.STATE.leaks.clear()
    out: dict[str, Any] = {"ok": None, "stage": "arg-parse", "unknown": [], "given": {}, "resolved": {}}
    said: list[list[str]] = []
    notes: list[str] = []
    try:
        world = World(sources, case)
        said, notes = world.said, world.notes
        _run(world, case, out)
        if stubs.STATE.leaks:  # engine code caught it and went on: what it passed may come of that
            raise stubs.StubLeak("; ".join(dict.fromkeys(stubs.STATE.leaks)))
        out.update(ok=True, stage=None)
    except stubs.StubLeak as found:
        out["unknown"] = [str(found)]
    except (RecursionError, MemoryError) as error:
        out["unknown"] = [f"running the release's code ended in {type(error).__name__}"]
    except BaseException as error:
        out.update(ok=False, error_type=type(error).__name__, message=ordered(str(error)), where=_where(error))
        why = blame.fault(error)
        if why is not None:
            out.update(ok=None, unknown=[why])
        elif stubs.STATE.leaks:  # engine code went on after something of ours had leaked: its refusal may come of that
            out.update(ok=None, unknown=list(dict.fromkeys(stubs.STATE.leaks)))
    out["warnings"] = [[level, ordered(text), name] for level, text, name in said if level != "DEBUG"]
    out["notes"] = notes
    return out


def _run(world: World, case: Mapping[str, Any], out: dict[str, Any]) -> None:
    loader = world.loader
    module = loader.source("sglang.srt.server_args")
    args = _parsed(world, module, case, out)
    resolved = _resolved(args, out)
    out["resolved"] = {name: _json(value) for name, value in resolved.items()}
    out["stage"] = "model-config"
    config = _model_config(loader, args)
    out["traits"] = _traits(config)
    out["traits"]["architecture_known"] = _known(world, config)
    out["stage"] = "publish"
    _publish(loader, module, args)
    out["stage"] = "model-runner-init"
    parallel_groups(loader, resolved["tp_size"])
    with _passing_stubs():
        made = runner(loader, args, config, resolved.get)
        out["stage"] = "backend-init"
        backend = _backend(loader, made, args, out)
    out["backend_class"] = type(backend).__name__
    parts = {"full_attn_backend": "full_attn_backend_class", "linear_attn_backend": "linear_attn_backend_class"}
    for attribute, name in parts.items():
        part = vars(backend).get(attribute)
        if part is not None:
            out[name] = type(part).__name__
    linear = vars(made).get("linear_attn_backends")
    if linear is not None:
        out["linear_attn"] = {phase: getattr(linear, phase).value for phase in ("decode", "prefill", "verify")}


def _parsed(world: World, module: Any, case: Mapping[str, Any], out: dict[str, Any]) -> Any:
    """ServerArgs from the words. Releases up to 0.5.18 resolve while they construct it."""
    printed = io.StringIO()
    given = out["given"]
    kept = module.ServerArgs.from_cli_args
    build, built = module.ServerArgs.add_cli_args, world.sources.parsers
    machine = repr([case.get(name) for name in _MACHINE])

    def add_cli_args(parser: Any) -> None:
        """Half of a launch is building the parser: 500 options, the same for every launch on this machine."""
        if machine in built:
            vars(parser).update(vars(built[machine]))
        else:
            build(parser)
            if len(built) == _MACHINES:
                built.clear()
            built[machine] = parser

    def from_cli_args(namespace: Any) -> Any:
        given.update({name: _json(value) for name, value in vars(namespace).items()})
        out["stage"] = "arg-resolve"
        return kept(namespace)

    module.ServerArgs.add_cli_args = staticmethod(add_cli_args)
    module.ServerArgs.from_cli_args = staticmethod(from_cli_args)
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        try:
            return module.prepare_server_args(list(case["argv"]))
        except SystemExit as ended:
            last = printed.getvalue().strip().splitlines()[-1:]
            said = last[0] if last else f"the parser ended with status {ended.code}"
            raise stubs.as_real(ArgumentError(said)) from None


class ArgumentError(ValueError):
    """The argument parser's own refusal."""


def _resolved(args: Any, out: dict[str, Any]) -> dict[str, Any]:
    """Every field of ServerArgs after resolution and checks."""
    out["stage"] = "arg-resolve"
    if hasattr(args, "resolve_once"):
        args.resolve_once()
        found: dict[str, Any] = args.resolved_dict()
    else:
        found = {name: getattr(args, name) for name in args.__dataclass_fields__}
    if hasattr(args, "check_server_args"):
        out["stage"] = "arg-check"
        args.check_server_args()
        if not hasattr(args, "resolve_once"):
            found = {name: getattr(args, name) for name in args.__dataclass_fields__}
    return found


def _model_config(loader: Loader, args: Any) -> Any:
    if loader.has_source(_OVERRIDES) and loader.source(_OVERRIDES).defines("model_config_of"):
        return loader.source(_OVERRIDES).model_config_of(args)
    if hasattr(args, "get_model_config"):
        return args.get_model_config()
    return loader.source("sglang.srt.configs.model_config").ModelConfig.from_server_args(args)


def _publish(loader: Loader, module: Any, args: Any) -> None:
    """Make the arguments those of this process, as the scheduler of rank 0 does."""
    if loader.has_source(_CONTEXT):
        context = loader.source(_CONTEXT)
        if context.defines("publish"):
            ranks = context.SpawnRanks(world_rank=0, gpu_id=0) if context.defines("SpawnRanks") else None
            context.publish(args, role="scheduler", **({} if ranks is None else {"ranks": ranks}))
            return
    module.set_global_server_args_for_scheduler(args)


def _backend(loader: Loader, made: Record, args: Any, out: dict[str, Any]) -> Any:
    registry = loader.source(_REGISTRY)
    registry.run_all()
    if loader.has_source(_SETUP):
        setup = loader.source(_SETUP)
        vars(setup)["init_cublas"] = lambda: None
        if setup.defines("resolve_attention_backend_strs"):  # from 0.5.18 on
            found = setup.resolve_attention_backend_strs(model_runner=made)
            made.prefill_attention_backend_str, made.decode_attention_backend_str = found.prefill, found.decode
            out["prefill"], out["decode"] = found.prefill, found.decode
        else:
            out["prefill"], out["decode"] = args.get_attention_backends()
        return setup.build_attention_backends(model_runner=made).attn_backend
    cls = loader.source("sglang.srt.model_executor.model_runner").ModelRunner
    out["prefill"], out["decode"] = args.get_attention_backends()
    for name in ("_get_attention_backend_from_str", "_get_attention_backend"):
        setattr(made, name, types.MethodType(getattr(cls, name), made))
    return made._get_attention_backend()


@contextlib.contextmanager
def _passing_stubs() -> Iterator[None]:
    """In constructors stubs may be called and indexed; to decide by one still leaks."""
    stubs.STATE.loading += 1
    try:
        yield
    finally:
        stubs.STATE.loading -= 1


def _traits(config: Any) -> dict[str, Any]:
    """What the release's ModelConfig says of the model."""
    own = vars(config)
    found = {name: _json(own[name]) for name in _TRAITS.split() if name in own}
    architectures = getattr(config.hf_config, "architectures", None)
    found.update(
        architectures=_json(architectures),
        model_type=_json(config.hf_config.model_type),
        attention_arch=str(config.attention_arch.name),
        dtype=repr(config.dtype).removeprefix("torch."),
    )
    return found


def _known(world: World, config: Any) -> bool | None:
    """Whether the release has a model class of its own for the architecture; None where its classes were not found."""
    known = world.sources.architectures
    named = getattr(config.hf_config, "architectures", None) or ()
    return any(name in known for name in named) if known else None


def _where(error: BaseException) -> dict[str, Any] | None:
    """The innermost line of the server's own code (kernels lie beside srt/)."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith("sglang/srt/"):
            found = {"file": code.co_filename.removeprefix("sglang/"), "line": trace.tb_lineno, "func": code.co_name}
        trace = trace.tb_next
    return found


def ordered(text: str) -> str:
    """The text, with the members of a printed set in order: Python's own order changes from run to run."""
    return _SET.sub(lambda match: "{" + ", ".join(sorted(match[1].split(", "))) + "}", text[:_MOST_TEXT])


def _json(value: Any) -> Any:
    """Plain JSON; what is none as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value if not isinstance(value, float) or value == value else str(value)
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(str(item) for item in value)
    return repr(value) if not stubs.is_stub(value) else f"<{stubs.path_of(value)}>"
