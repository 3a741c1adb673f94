"""What attnfit's plug-in means for a launch after the selector: which layers it serves, and who picks their keys.

Sources: engines/vllm/plugin, not vLLM's; `ours.py` has what the selector is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from attnfit.core import LayerQuestion, Reason, Status, Verdict
from attnfit.engines.vllm import ours
from attnfit.engines.vllm.launch.deepseek_v4 import IS_V4
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal, Unknown
from attnfit.engines.vllm.plugin import indexers, serves, settings

if TYPE_CHECKING:
    from attnfit.engines.vllm.launch.asker import LayerAnswer

_INDEXER = f"{ours.PLACE}indexers.py"
_CACHE = "DeepseekV32IndexerCache"
OWN_INDEXER = "ATTNFIT_INDEXER"  # plugin/indexer/steps.py


def built_by(cfg: EngineConfig, architecture: str) -> str:
    """The architecture whose class builds it: vLLM's generic one where our indexer is switched on."""
    return indexers.GENERIC.get(architecture, architecture) if _own_indexer(cfg) else architecture


def _own_indexer(cfg: EngineConfig) -> bool:
    return cfg.plugin is not None and cfg.plugin.loaded and cfg.plugin.indexer and cfg.architecture in indexers.OURS


def settle(cfg: EngineConfig, answer: LayerAnswer) -> None:
    """The indexers' caches as ours has them; and of our backend's verdicts those that the model decides."""
    if _own_indexer(cfg):
        answer.kv_layers = [
            msgspec.structs.replace(row, backend=OWN_INDEXER) if row.layer_class == _CACHE else row
            for row in answer.kv_layers
        ]
    answer.layers = [_judged(cfg, layer) for layer in answer.layers]
    answer.notes += _notes(cfg, answer.layers)


def _judged(cfg: EngineConfig, layer: LayerQuestion) -> LayerQuestion:
    """Where our backend only stands in the list, it accepts no more than it would serve."""
    selection, plugin = layer.selection, cfg.plugin
    if plugin is None or not plugin.known or not any(v.brought_by for v in selection.verdicts):
        return layer
    verdicts = tuple(_of_model(cfg, v) if v.brought_by and v.backend != selection.chosen else v
                     for v in selection.verdicts)  # fmt: skip
    return msgspec.structs.replace(layer, selection=msgspec.structs.replace(selection, verdicts=verdicts))


def _of_model(cfg: EngineConfig, verdict: Verdict) -> Verdict:
    if verdict.status is not Status.ACCEPTS:
        return verdict
    if cfg.architecture not in indexers.KNOWN:
        return msgspec.structs.replace(verdict, status=Status.UNKNOWN, unknown=_not_tried(cfg.architecture))
    why = _without_keys(cfg, own=True)
    if not why:
        return verdict
    required = "an indexer that runs on this GPU"
    reason = Reason("indexer", why, required, f"capability {cfg.capability}", _INDEXER)
    return msgspec.structs.replace(verdict, status=Status.REFUSES, reasons=(reason,))


def _not_tried(architecture: str) -> str:
    return f"whether attnfit's backend serves {architecture}; it was written for {', '.join(indexers.KNOWN)}"


def _without_keys(cfg: EngineConfig, *, own: bool) -> str:
    assert cfg.plugin is not None
    release, gpu = cfg.plugin.release, cfg.capability
    return indexers.missing(release, gpu, cfg.architecture, dtype=cfg.dtype, own=own, variable=settings.INDEXER)


def _notes(cfg: EngineConfig, layers: Sequence[LayerQuestion]) -> Iterator[str]:
    plugin, wanted = cfg.plugin, cfg.attention.get("backend")
    if plugin is None:
        return
    sparse = any(layer.question.use_mla and layer.question.use_sparse for layer in layers)
    if plugin.why and (sparse or wanted in ours.NAMES):
        yield plugin.why
    if wanted == serves.CUSTOM and not plugin.loaded and sparse and not plugin.why:
        yield f"attnfit's own backend: {ours.reached(plugin)}"
    if cfg.architecture in IS_V4 and wanted in ours.NAMES:
        yield f"DeepSeek-V4 asks for no attention backend: --attention-backend {wanted} does nothing"
    if (plugin.indexer or plugin.auto) and cfg.flags.get("distributed_executor_backend") == "ray":
        yield (  # vllm/ray/ray_env.py: get_env_vars_to_copy
            f"Ray's workers are not given {settings.INDEXER} and {settings.AUTO}: set {settings.RAY} too, or set them "
            "where Ray is started"
        )
    chosen = any(layer.selection.chosen in ours.NAMES for layer in layers)
    if chosen and plugin.release in indexers.NOT_IN_WHEEL and not plugin.indexer and not plugin.deep_gemm:
        yield (
            f"vLLM {plugin.release} does not bring DeepGEMM, which its indexer needs: install it, or set "
            f"{settings.INDEXER}=1 for attnfit's own"
        )


def check_indexer(cfg: EngineConfig) -> None:
    """Raise Refusal where our indexer, switched on, does not serve the model (plugin/indexer/module.py)."""
    if not _own_indexer(cfg):
        return
    for size, value in (("decode_context_parallel_size", cfg.dcp), ("prefill_context_parallel_size", cfg.pcp)):
        if value > 1:
            said = f"NotImplementedError: attnfit's indexer does not serve {size} > 1"
            raise Refusal("model_init", said, f"{ours.PLACE}indexer/module.py")
    if (cfg.speculative or {}).get("enable_adaptive_verification"):
        raise Unknown("what vLLM does with adaptive verification and an indexer that cannot take it, as attnfit's")


def check_layer(cfg: EngineConfig, stage: str) -> None:
    """Our backend was chosen. Raise Refusal where nothing would pick its keys, Unknown for a model not known."""
    if cfg.architecture not in indexers.KNOWN:
        raise Unknown(_not_tried(cfg.architecture))
    assert cfg.plugin is not None
    if why := serves.dcp_refusal(cfg.plugin.release, cfg.dcp) or _without_keys(cfg, own=_own_indexer(cfg)):
        raise Refusal(stage, f"NotImplementedError: {why}", f"{ours.PLACE}impl.py")
