"""The judge of whole launches: a real vLLM 0.33.0 goes from config.json and flags to built layers, without a GPU.

    LD_LIBRARY_PATH=STUB venv/bin/python proofs/real_launch.py < launches.jsonl > answers.jsonl

A launch is {"model": DIR, "capability": "12.0", "flags": [...]}. The real serve parser, the real create_engine_config
and the real model class (on the meta device, rank 0) are run; recorded is every selector question, the dtypes and block
sizes before and after, and the stage and text of a refusal. Not run: weight post-processing, metadata builders, KV
allocation, CUDA graphs. After a refusal of the selector a placeholder lets construction go on, and is not reported.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRATCH = tempfile.gettempdir()
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.update(
    HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="CRITICAL",
    TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", HUMMING_DISABLE_PARALLEL_BUILD="1",
    HF_HOME=f"{SCRATCH}/real-launch-hf",
    VLLM_CACHE_ROOT=f"{SCRATCH}/real-launch-vllm", FLASHINFER_WORKSPACE_BASE=SCRATCH,
)  # fmt: skip
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import torch  # noqa: E402
from fake_gpu import OnCpu, OnMeta, install, start_groups  # noqa: E402

SECONDS = 120  # for one launch
WITHOUT_DRAFT = ("ngram", "ngram_gpu", "suffix")
ADDED = ["--skip-tokenizer-init", "--load-format", "dummy"]  # no tokenizer, no weights


class Recorder:
    """Every question the model asks the selector, in order, equal ones counted."""

    def __init__(self, backends: Any) -> None:
        self.rows: dict[Any, dict[str, Any]] = {}
        self.role = "target"
        self.refused = False
        self.backends = backends
        self.name_of: dict[str, str] = {}
        for member in backends:
            try:
                self.name_of.setdefault(member.get_path(), member.name)
            except Exception:
                continue

    def install(self) -> None:
        import vllm.model_executor.layers.attention.mla_attention as mla
        import vllm.v1.attention.selector as selector
        from vllm.config import get_current_vllm_config

        ask = selector._cached_get_attn_backend

        def recorded(
            backend: Any, attn_selector_config: Any, num_heads: int | None = None, *, _run_kv_cache_dtype: Any = None
        ) -> Any:
            key = (self.role, backend, attn_selector_config, num_heads, layer_class())
            if key not in self.rows:
                self.rows[key] = self._row(key)
                try:
                    found = ask(backend, attn_selector_config, num_heads, _run_kv_cache_dtype=_run_kv_cache_dtype)
                    module, name = found.full_cls_name()
                    self.rows[key].update(chosen=self.name_of.get(f"{module}.{name}", found.get_name()), _class=found)
                except Exception as error:
                    self.refused = True
                    placeholder = _placeholder(attn_selector_config)
                    self.rows[key].update(
                        chosen=None, error=_words(error), _class=self.backends[placeholder].get_class()
                    )
            self.rows[key]["count"] += 1
            return self.rows[key]["_class"]

        selector._cached_get_attn_backend = recorded
        build = mla.MLAAttention.__init__

        def built(this: Any, *args: Any, **kwargs: Any) -> None:
            # A placeholder must not rewrite the run-wide KV cache dtype for the layers that follow.
            cache = get_current_vllm_config().cache_config
            dtype = cache.cache_dtype
            try:
                build(this, *args, **kwargs)
            finally:
                if self.refused:
                    cache.cache_dtype = dtype

        mla.MLAAttention.__init__ = built

    def _row(self, key: Any) -> dict[str, Any]:
        role, backend, config, num_heads, layer = key
        fields = {name: _plain(value) for name, value in config._asdict().items()}
        selected = backend.name if backend else None
        return {"role": role, "selected": selected, "config": fields, "num_heads": num_heads, "layer_class": layer,
                "after_refusal": self.refused, "count": 0}  # fmt: skip

    def answer(self) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "_class"} for row in self.rows.values()]


def _placeholder(config: Any) -> str:
    if not config.use_mla:
        return "TRITON_ATTN"
    return "FLASHMLA_SPARSE" if config.use_sparse else "TRITON_MLA"


def layer_class() -> str | None:
    """The class of the nearest layer that is being built."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        this = frame.f_locals.get("self")
        if isinstance(this, torch.nn.Module):
            return type(this).__name__
        frame = frame.f_back
    return None


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:3000]


def _plain(value: Any) -> Any:
    return str(value).replace("torch.", "") if isinstance(value, torch.dtype) else value


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"no answer after {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def answer(launch: dict[str, Any], platform: Any, parser: Any, backends: Any) -> dict[str, Any]:
    out: dict[str, Any] = {**launch, "ok": False, "stage": "parse_flags", "error": None}
    recorder = Recorder(backends)
    try:
        with at_most(SECONDS):
            _walk(launch, out, recorder, platform, parser)
    except BaseException as error:
        out["error"] = _words(error)
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        out["where"] = [f"{f.filename.split('site-packages/')[-1]}:{f.lineno} {f.name}" for f in frames]
    out["selector_configs"] = recorder.answer()
    refusals = [row["error"] for row in recorder.rows.values() if row.get("error")]
    if refusals:  # what comes after the first refusal, the engine never reaches
        out.update(ok=False, stage="selector", error=refusals[0])
    return out


def _walk(launch: dict[str, Any], out: dict[str, Any], recorder: Recorder, platform: Any, parser: Any) -> None:
    import vllm.config.vllm as vllm_config
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.torch_utils import set_default_torch_dtype

    try:
        flags = parser.parse_args(["--model", launch["model"], *launch["flags"], *ADDED])
    except SystemExit as exit_:
        raise ValueError(f"argument parser refused the flags (exit {exit_.code})") from None
    out["stage"] = "create_engine_config"
    config = AsyncEngineArgs.from_cli_args(flags).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    model, cache = config.model_config, config.cache_config
    out.update(dtype=_plain(model.dtype), kv_cache_dtype=cache.cache_dtype, block_size=cache.block_size)
    out["stage"] = "init_groups"
    start_groups(config, vllm_config.set_current_vllm_config)
    recorder.install()
    _without_kimi_gpu_objects(model)
    out["stage"] = "model_init"
    try:
        with set_default_torch_dtype(model.dtype), torch.device("meta"), OnMeta():
            built = initialize_model(vllm_config=config, model_config=model)
    finally:
        out["kv_cache_dtype_after_init"] = cache.cache_dtype
    _draft(config, recorder, out)
    out["stage"] = "update_block_size"
    with OnMeta():
        platform.update_block_size_for_backend(config)
    out["block_size_after_load"] = cache.block_size
    out.update(ok=True, stage="done")
    if launch.get("measure") and not any(row.get("error") for row in recorder.rows.values()):
        from real_memory import measured

        with vllm_config.set_current_vllm_config(config), OnMeta():
            out["memory"] = measured(config, built)


def _draft(config: Any, recorder: Recorder, out: dict[str, Any]) -> None:
    """The draft model asks for itself."""
    speculative = config.speculative_config
    if speculative is None or getattr(speculative, "draft_model_config", None) is None:
        return
    if speculative.method in WITHOUT_DRAFT:
        return  # its draft_model_config is the target's; the engine builds no model from it
    from vllm.compilation.backends import set_model_tag
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.spec_decode.dflash import DFlashProposer
    from vllm.v1.spec_decode.draft_model import DraftModelProposer
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    out["stage"], recorder.role = "draft_init", "draft"
    special = {"draft_model": DraftModelProposer, "dflash": DFlashProposer}
    proposer = special.get(speculative.method, SpecDecodeBaseProposer)
    standin = object.__new__(proposer)
    standin.speculative_config, standin.vllm_config = speculative, config
    draft = speculative.draft_model_config
    with set_default_torch_dtype(draft.dtype), torch.device("meta"), OnMeta(), set_model_tag("eagle_head"):
        initialize_model(vllm_config=standin._create_draft_vllm_config(), model_config=draft)


def _without_kimi_gpu_objects(model: Any) -> None:
    """Kimi-K3 builds a CUDA operator in __init__ that has nothing to do with attention."""
    if "KimiK3" in str(model.architecture):
        from unittest.mock import MagicMock

        import vllm.models.kimi_k3.nvidia.ops.latent_moe_tail as tail

        contract = {"contract.max_num_tokens": getattr(tail, "_MAX_NUM_TOKENS", 1024)}
        tail.KimiK3LatentMoETailOp.initialize = classmethod(lambda cls, **_: MagicMock(**contract))


def preload(launches: list[dict[str, Any]], backends: Any) -> None:
    """Import in the parent what every child would import again."""
    import vllm.v1.attention.backends.mla.prefill.selector  # noqa: F401
    from vllm.model_executor.models.registry import ModelRegistry

    for launch in launches:
        try:
            for name in json.loads(Path(launch["model"], "config.json").read_text())["architectures"]:
                ModelRegistry.models[name].load_model_cls()
        except Exception as error:
            print(f"not preloaded: {error!r}", file=sys.stderr)
    for member in backends:
        try:
            with OnCpu():
                member.get_class()
        except Exception as error:
            print(f"not preloaded: {member.name}: {error!r}", file=sys.stderr)


def serve(capability: tuple[int, int], launches: list[dict[str, Any]], out: Any) -> None:
    """All launches of one capability: one import of the engine, one fork a launch."""
    platform = install(capability)
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    parser = make_arg_parser(FlexibleArgumentParser())
    preload(launches, AttentionBackendEnum)
    for launch in launches:
        child = os.fork()
        if child == 0:
            out.write(json.dumps(answer(launch, platform, parser, AttentionBackendEnum), default=str) + "\n")
            out.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            out.write(json.dumps({**launch, "ok": False, "stage": "crash", "error": f"status {status}"}) + "\n")
            out.flush()


def main() -> None:
    launches = [json.loads(line) for line in sys.stdin if line.strip()]
    by_capability: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for launch in launches:
        major, minor = launch["capability"].split(".")
        by_capability.setdefault((int(major), int(minor)), []).append(launch)
    for capability, some in sorted(by_capability.items()):
        child = os.fork()  # a capability is faked before the engine is imported, so each needs its own process
        if child == 0:
            serve(capability, some, ANSWERS)
            os._exit(0)
        os.waitpid(child, 0)


main()
