"""Launches of DSA models with the plug-in in a real vLLM, from flags to metadata builders, on a pretended GPU.

Run by vllm_plugin.py with the python of a venv that has vLLM. A launch is {"model": DIR, "capability": "12.0",
"flags": [...], "variables": {...}, "expect": ...}. Run are the real serve parser, create_engine_config and model class
(meta device, rank 0), then the runner's own functions: KV cache specs and groups, attention groups, kernel block sizes,
metadata builders, the allocation and binding of the KV cache (on meta) and the support of CUDA graphs.
"""

from __future__ import annotations

import collections
import importlib
import inspect
import json
import os
import sys
import tempfile
import traceback
from typing import Any

SCRATCH = tempfile.gettempdir()
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.update(
    HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="INFO",
    TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", HUMMING_DISABLE_PARALLEL_BUILD="1",
    HF_HOME=f"{SCRATCH}/real-launch-hf",
    VLLM_CACHE_ROOT=f"{SCRATCH}/real-launch-vllm", FLASHINFER_WORKSPACE_BASE=SCRATCH,
)  # fmt: skip
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import torch  # noqa: E402
from fake_gpu import OnCpu, OnMeta, install, start_groups  # noqa: E402

ADDED = ["--skip-tokenizer-init", "--load-format", "dummy"]  # no tokenizer, no weights


def first_of(*paths: str) -> Any:
    """The first of "module:attribute" that this release has."""
    for path in paths:
        module, _, attribute = path.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            continue
    raise LookupError(f"none of {paths}")


def called(function: Any, **offered: Any) -> Any:
    """The function with those of the offered arguments that this release's has."""
    return function(**{k: v for k, v in offered.items() if k in inspect.signature(function).parameters})


class Lines:
    """What the plug-in says in vLLM's log."""

    def __init__(self) -> None:
        import logging

        self.found: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: self.found.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("vllm.attnfit").addHandler(handler)


def configure(launch: dict[str, Any], out: dict[str, Any]) -> Any:
    import vllm.config.parallel as parallel
    from fake_gpu import DEVICES
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    if hasattr(parallel, "cuda_device_count_stateless"):  # 0.16.0 asks the driver
        parallel.cuda_device_count_stateless = lambda: DEVICES
    make_arg_parser = first_of(
        "vllm.entrypoints.common.cli_args:make_arg_parser",
        "vllm.entrypoints.launchers.cli_args:make_arg_parser",
        "vllm.entrypoints.openai.cli_args:make_arg_parser",
    )
    parser_class = first_of("vllm.utils.argparse_utils:FlexibleArgumentParser", "vllm.utils:FlexibleArgumentParser")
    flags = make_arg_parser(parser_class()).parse_args(["--model", launch["model"], *launch["flags"], *ADDED])
    out["stage"] = "create_engine_config"
    arguments = AsyncEngineArgs.from_cli_args(flags)
    return arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def build(config: Any, out: dict[str, Any]) -> Any:
    import vllm.config.vllm as vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model

    set_default_torch_dtype = first_of(
        "vllm.utils.torch_utils:set_default_torch_dtype",
        "vllm.model_executor.model_loader.utils:set_default_torch_dtype",
    )
    out["stage"] = "init_groups"
    start_groups(config, vllm_config.set_current_vllm_config)
    out["stage"] = "model_init"
    with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"), OnMeta():
        return initialize_model(vllm_config=config, model_config=config.model_config)


def draft(config: Any, model: Any, out: dict[str, Any]) -> None:
    """The draft model of MTP, whose layers read the target's top-k buffer once vLLM has pointed them at it."""
    speculative = config.speculative_config
    if speculative is None:
        return
    from vllm.compilation.backends import set_model_tag
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    out["stage"] = "draft_init"
    proposer = first_of("vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer")
    standin = object.__new__(proposer)
    standin.speculative_config, standin.vllm_config = speculative, config
    target = set(config.compilation_config.static_forward_context)
    with (
        set_default_torch_dtype(config.model_config.dtype),
        torch.device("meta"),
        OnMeta(),
        set_model_tag("eagle_head"),
    ):
        made = initialize_model(
            vllm_config=standin._create_draft_vllm_config(), model_config=speculative.draft_model_config
        )
    buffer = getattr(model.model, "topk_indices_buffer", None)  # vLLM's generic model has none: the draft keeps its own
    for module in (
        made.modules() if buffer is not None else ()
    ):  # as load_eagle_model does (0.33.0 worker/gpu/spec_decode/eagle/utils.py:145)
        if hasattr(module, "topk_indices_buffer"):
            module.topk_indices_buffer = buffer
    found = {n: layer for n, layer in config.compilation_config.static_forward_context.items() if n not in target}
    out["draft"] = [
        buffer is None or layer.impl.topk_indices_buffer is buffer for layer in found.values() if hasattr(layer, "impl")
    ]


def layers(config: Any, model: Any, out: dict[str, Any]) -> None:
    """Which class each part of the model is of."""
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for layer in config.compilation_config.static_forward_context.values():
        if hasattr(layer, "impl"):
            found["impl"][f"{type(layer.impl).__module__}.{type(layer.impl).__name__}"] += 1
            buffer = layer.impl.topk_indices_buffer
            found["topk"][f"{buffer.dtype} {buffer.shape[1]} {buffer.shape[0]}"] += 1
        if hasattr(layer, "get_attn_backend"):
            backend = layer.get_attn_backend()
            found["backend"][f"{backend.__module__}.{backend.__name__}"] += 1
    for module in model.modules():
        name = f"{type(module).__module__}.{type(module).__name__}"
        if name.endswith(("Indexer", "IndexerCache")):
            found["indexer"][name] += 1
    out["model_class"] = f"{type(model).__module__}.{type(model).__name__}"
    out["layers"] = {kind: dict(counted) for kind, counted in found.items()}
    dtype = config.model_config.dtype
    others = {torch.float16, torch.bfloat16} - {dtype}
    out["other_16_bit"] = sorted({n.rpartition(".")[2] for n, p in model.named_parameters() if p.dtype in others})
    out["hidden_layers"] = config.model_config.hf_text_config.num_hidden_layers


def answer(launch: dict[str, Any], platform: Any) -> dict[str, Any]:
    os.environ.update(launch.get("variables", {}))
    out: dict[str, Any] = {**launch, "ok": False, "stage": "parse_flags", "error": None}
    try:
        config = configure(launch, out)
        out.update(dtype=str(config.model_config.dtype), kv_cache_dtype=config.cache_config.cache_dtype)
        lines = Lines()  # not before: making the configuration sets up the log anew
        model = build(config, out)
        out["said"] = lines.found
        draft(config, model, out)
        out["kv_cache_dtype_after_init"] = config.cache_config.cache_dtype
        layers(config, model, out)
        set_current = importlib.import_module("vllm.config.vllm").set_current_vllm_config
        from vllm_plugin_runner import run_runner

        with set_current(config), OnMeta():
            run_runner(config, platform, out)
        out.update(ok=True, stage="done")
    except BaseException as error:
        out["error"] = f"{type(error).__name__}: {error}"[:2000]
        frames = traceback.extract_tb(error.__traceback__)[-6:]
        out["where"] = [f"{f.filename.split('site-packages/')[-1]}:{f.lineno} {f.name}" for f in frames]
    return out


def serve(capability: tuple[int, int], launches: list[dict[str, Any]]) -> None:
    """All launches of one capability: one import of the engine, one fork a launch."""
    platform = install(capability)
    from vllm.model_executor.models.registry import ModelRegistry

    for launch in launches:
        with open(f"{launch['model']}/config.json") as file:
            for name in json.load(file)["architectures"]:
                try:
                    with OnCpu():
                        ModelRegistry.models[name].load_model_cls()
                except Exception as error:
                    print(f"not preloaded: {error!r}", file=sys.stderr)
    for launch in launches:
        if os.fork() == 0:
            ANSWERS.write(json.dumps(answer(launch, platform), default=str) + "\n")
            ANSWERS.flush()
            os._exit(0)
        _, status = os.wait()
        if status:
            ANSWERS.write(json.dumps({**launch, "ok": False, "stage": "crash", "error": f"status {status}"}) + "\n")
            ANSWERS.flush()


def main() -> None:
    launches = [json.loads(line) for line in sys.stdin if line.strip()]
    for capability in sorted({launch["capability"] for launch in launches}):
        if os.fork() == 0:  # a capability is faked before the engine is imported, so each needs its own process
            major, minor = capability.split(".")
            serve((int(major), int(minor)), [launch for launch in launches if launch["capability"] == capability])
            os._exit(0)
        os.wait()


if __name__ == "__main__":  # vllm_plugin_forward.py makes its configuration with it
    main()
