"""What an installed transformers makes of GGUF keys, as data: `launch/tables/gguf-transformers-X.json`.

    VENV/bin/python proofs/gguf_tables.py > gguf-transformers-4.57.6.json

Recorded are the key names that transformers maps, the architectures it accepts, and the model class it names for each
model type; no code of it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def tables() -> dict[str, Any]:
    out: dict[str, Any] = {"source": f"transformers=={transformers.__version__}"}
    try:
        from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
    except ImportError:
        return {**out, "causal_lm": dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}
    keys = {
        name: {key: trait for key, trait in mapping.items() if isinstance(trait, str)}
        for name, mapping in GGUF_CONFIG_MAPPING.items()
        if name not in ("general", "tokenizer")
    }
    known = list(GGUF_CONFIG_MAPPING)
    return {**out, "known": known, "keys": keys, "causal_lm": dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}


if __name__ == "__main__":
    json.dump(tables(), sys.stdout, indent=0, sort_keys=False)
