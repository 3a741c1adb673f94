"""Which models a GGUF loader has a name for every weight of, as data: `launch/tables/gguf-loaders.json`.

    VENV/bin/python proofs/gguf_loaders.py > one.json          # in a venv with vLLM up to 0.23
    PYTHONPATH=PLUGIN VENV/bin/python proofs/gguf_loaders.py   # with vllm-gguf-plugin

Before it builds the model, the loader maps every weight of transformers' class to a tensor of the file, and refuses
where one has no name. Its own function is run here for each model type that its table of architectures knows, on a
config of four layers with the class's defaults. Recorded are the types for which the map holds; no code of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import types
from importlib.metadata import version
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", VLLM_LOGGING_LEVEL="CRITICAL")

from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def loader() -> Any:
    """A function config -> map of names, or an error."""
    try:
        from vllm_gguf_plugin.weights_adapter import get_weights_adapter
    except ImportError:
        from vllm.model_executor.model_loader.gguf_loader import GGUFModelLoader

        bare = object.__new__(GGUFModelLoader)
        return lambda config: bare._get_gguf_weights_map(_model(config))

    def names(config: Any) -> Any:
        adapter = get_weights_adapter(config)
        return adapter.build_name_map(_model(config)) if hasattr(adapter, "build_name_map") else {}

    return names  # an adapter of its own (gemma3) has no such map, and refuses nothing


def _model(config: Any) -> Any:
    return types.SimpleNamespace(hf_config=config, trust_remote_code=False)


def small(model_type: str) -> Any:
    config = AutoConfig.for_model(model_type)
    for name in ("num_hidden_layers", "n_layer"):
        try:
            if getattr(config, name, 0) > 4:
                setattr(config, name, 4)
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[:4]
        except (AttributeError, TypeError, ValueError):
            continue
    return config


def main() -> None:
    names, out = loader(), sys.stdout
    sys.stdout = sys.stderr
    maps, fails = [], {}
    for model_type in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            names(small(model_type))
            maps.append(model_type)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            if not said.startswith("RuntimeError: Unknown gguf model_type"):
                fails[model_type] = said[:100]
    packages = [f"{name} {version(name)}" for name in ("vllm", "transformers", "gguf")]
    with contextlib.suppress(ImportError):
        packages.append(f"vllm-gguf-plugin {version('vllm-gguf-plugin')}")
    json.dump({"source": ", ".join(packages), "maps": maps, "fails": fails}, out, indent=1)


main()
