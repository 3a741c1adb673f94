"""The judge of GGUF launches: what a real vLLM does with a GGUF file, stage by stage, on a machine without a GPU.

    LD_LIBRARY_PATH=STUB VENV/bin/python proofs/real_gguf.py < launches.jsonl > answers.jsonl

A launch is {"model": FILE or REPO:QUANT, "capability": "12.0", "flags": [...]}; with vllm-gguf-plugin on PYTHONPATH it
is loaded as the engine loads it. The stages are those of a start, in their order: `create_engine_config`, `tokenizer`,
`load_weights` (only what the GGUF loader does before it builds the model: the map from tensor to weight) and
`model_init` (the model class on the meta device, which asks the selector); without a GGUF loader the last two change
places. Each is run although an earlier one was refused, as far as it can be: `stages` has a word for each, `stage` and
`error` are the first refusal. Weights are not read.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

SCRATCH = tempfile.gettempdir()
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HF_HOME", f"{SCRATCH}/real-gguf-hf")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # unless a hub of our own answers (gguf_story.py)
os.environ.update(
    VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="CRITICAL",
    TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", HUMMING_DISABLE_PARALLEL_BUILD="1",
    VLLM_CACHE_ROOT=f"{SCRATCH}/real-gguf-vllm", FLASHINFER_WORKSPACE_BASE=SCRATCH,
)  # fmt: skip
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import torch  # noqa: E402
from fake_gpu import OnCpu, OnMeta, install, start_groups  # noqa: E402


def answer(launch: dict[str, Any], parser: Any) -> dict[str, Any]:
    """The launch with what came of it."""
    import vllm.version
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    out: dict[str, Any] = {**launch, "version": vllm.version.__version__, "ok": False, "stages": {}}

    def stage(name: str, run: Callable[[], Any]) -> Any:
        try:
            result = run()
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            where = [f"{f.filename.split('site-packages/')[-1]}:{f.lineno} {f.name}" for f in frames[-3:]]
            said = f"{type(error).__name__}: {error}"[:3000]
            out["stages"][name] = {"error": said, "where": where}
            if "stage" not in out:
                out.update(stage=name, error=said)
            return None
        out["stages"][name] = "ok"
        return result

    def config() -> Any:
        flags = parser.parse_args(["--model", launch["model"], *launch["flags"]])
        return AsyncEngineArgs.from_cli_args(flags).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)

    made = stage("create_engine_config", config)
    if made is None:
        return out
    model = made.model_config
    out.update(
        dtype=str(model.dtype).removeprefix("torch."), quantization=model.quantization,
        architectures=model.architectures, head_size=model.get_head_size(), use_mla=model.use_mla,
        tokenizer=str(model.tokenizer), index_topk=getattr(model.hf_config, "index_topk", None),
    )  # fmt: skip
    stage("tokenizer", lambda: _tokenizer(model))
    from vllm.model_executor.model_loader import get_model_loader

    loader = get_model_loader(made.load_config)
    if type(loader).__name__ == "GGUFModelLoader":
        found = stage("load_weights", lambda: _names(loader, model))
        if found is not None:
            out["unmapped_tensors"] = found
        stage("model_init", lambda: _build(made))
    else:  # the loader of safetensors builds the model first
        built = stage("model_init", lambda: _build(made))
        if built is not None:
            stage("load_weights", lambda: next(iter(loader.get_all_weights(model, built)), None))
    if "stage" not in out:
        out.update(ok=True, stage="done", error=None)
    return out


def _tokenizer(model: Any) -> None:
    try:
        from vllm.tokenizers import cached_tokenizer_from_config as read
    except ImportError:
        from vllm.transformers_utils.tokenizer import cached_tokenizer_from_config as read
    read(model)


def _names(loader: Any, model: Any) -> list[str]:
    """The loader's own map of names; returns the file's tensors that it leaves out."""
    import gguf

    path = loader._prepare_weights(model)
    if not hasattr(loader, "_prepare_adapter"):  # in-tree
        names = loader._get_gguf_weights_map(model)
    else:
        names = loader._prepare_adapter(model).load_spec.gguf_to_hf_name_map
    return [tensor.name for tensor in gguf.GGUFReader(path).tensors if tensor.name not in names]


def _build(config: Any) -> Any:
    import vllm.config.vllm as vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    start_groups(config, vllm_config.set_current_vllm_config)
    with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"), OnMeta():
        return initialize_model(vllm_config=config, model_config=config.model_config)


def serve(capability: tuple[int, int], launches: list[dict[str, Any]]) -> None:
    install(capability)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.plugins import load_general_plugins

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    load_general_plugins()
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    for member in AttentionBackendEnum:
        try:
            with OnCpu():
                member.get_class()
        except Exception as error:
            print(f"not preloaded: {member.name}: {error!r}", file=sys.stderr)
    for launch in launches:
        child = os.fork()
        if child == 0:
            ANSWERS.write(json.dumps(answer(launch, parser), default=str) + "\n")
            ANSWERS.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            ANSWERS.write(json.dumps({**launch, "ok": False, "stage": "crash", "error": f"status {status}"}) + "\n")


def main() -> None:
    launches = [json.loads(line) for line in sys.stdin if line.strip()]
    for capability in sorted({launch["capability"] for launch in launches}):
        child = os.fork()  # a capability is faked before the engine is imported, so each needs its own process
        if child == 0:
            major, minor = capability.split(".")
            serve((int(major), int(minor)), [one for one in launches if one["capability"] == capability])
            os._exit(0)
        os.waitpid(child, 0)


main()
