"""The environment variables of the plug-in. All are off unless set to 1 (or true, yes, on, in any case)."""

from __future__ import annotations

import os
from collections.abc import Mapping

AUTO = "ATTNFIT_VLLM_AUTO"  # choose our backend by itself where no backend of vLLM accepts
INDEXER = "ATTNFIT_VLLM_INDEXER"  # our indexer in place of the one that needs DeepGEMM
CPU = "ATTNFIT_VLLM_CPU"  # DSA models on the CPU build
# Of vLLM's own, from 0.23.0 on: what it takes for Ray's workers to see the others (vllm/ray/ray_env.py).
RAY = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY=ATTNFIT_"


def is_on(name: str, variables: Mapping[str, str] = os.environ) -> bool:
    return variables.get(name, "").strip().lower() in ("1", "true", "yes", "on")
