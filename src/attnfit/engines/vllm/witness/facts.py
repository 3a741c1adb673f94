"""What vLLM asks its surroundings, and under which names users state it. Standard library only."""

from __future__ import annotations

from typing import ClassVar

from attnfit.witness import facts

from .env import FACT_OF, OPTIONAL, default_env, requirements

# Packages every installation of vLLM has; their contents are stubs, their presence is no question.
_ALWAYS = """
    torch numpy triton transformers pydantic pydantic_core typing_extensions PIL psutil cachetools cloudpickle regex
    msgspec zmq huggingface_hub safetensors tokenizers packaging yaml einops prometheus_client filelock tqdm jinja2
    requests pynvml cv2 blake3 cpuinfo openai fastapi aiohttp uvicorn starlette tiktoken lark xgrammar sympy networkx
    scipy six setuptools pybase64 cbor2 numba py torchvision torchaudio depyf compressed_tensors gguf mistral_common
    partial_json_parser outlines_core llguidance diskcache watchfiles ray orjson httpx jsonschema
"""


class Facts(facts.Facts):
    """The circumstances of a question to vLLM."""

    package = "vllm"
    fact_of = FACT_OF
    file_of: ClassVar = {"vllm_flash_attn/cute/interface.py": "fa4"}  # file of the release -> fact
    always = frozenset(_ALWAYS.split())


__all__ = ["FACT_OF", "OPTIONAL", "Facts", "default_env", "requirements"]
