"""vLLM's server: address, health, tiny requests, and the stages of its start as its log tells them.

Read in 0.12.0, 0.16.0, 0.23.0 and 0.33.0: vllm/entrypoints/openai/cli_args.py (0.33.0: entrypoints/common/cli_args.py)
for the flags; entrypoints/serve/instrumentator/health.py:22 for /health; v1/engine/utils.py:1444 and
distributed/device_communicators/shm_broadcast.py:112 for what is said while nothing goes on. Each stage names where
0.33.0 prints its words; older releases print the same ones elsewhere, unless a release is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnfit.engines.serving import OPENAI, Address, Ask, Serving, Stage, local
from attnfit.engines.vllm.entry import ENTRY

_PORT = 8000  # entrypoints/common/cli_args.py


def address(argv: Sequence[str], form: str, environ: Mapping[str, str]) -> Address:
    given = ENTRY.flag_values(argv, form)
    if given.get("headless"):
        return Address(nothing="--headless starts no HTTP server")
    if given.get("grpc"):
        return Address(nothing="--grpc starts a gRPC server, which is not asked")
    keys = given.get("api_key") or environ.get("VLLM_API_KEY") or ""
    first = next((str(key) for key in keys if key), "") if isinstance(keys, list) else str(keys)
    port = str(given.get("port") or _PORT)
    if not port.isdecimal() or int(port) == 0:
        return Address(nothing=f"--port {port} does not say where it will listen")
    tls = bool(given.get("ssl_certfile") or given.get("ssl_keyfile"))
    host = given.get("host")
    return Address(local(str(host) if host else None), int(port), tls, str(given.get("uds") or ""), first)


SERVING = Serving(
    engine="vllm",
    address=address,
    health="/health",
    models="/v1/models",
    asks=(
        *OPENAI,
        Ask("pooling", "/pooling", lambda model: {"model": model, "input": "Hello"}),
        Ask("classification", "/classify", lambda model: {"model": model, "input": "Hello"}),
        Ask("score", "/score", lambda model: {"model": model, "text_1": "Hello", "text_2": "Hello"}),
    ),
    stages=(
        # entrypoints/utils.py (version, arguments), v1/engine/core.py:140
        Stage("starting", ("API server version", "non-default args:", "Initializing a V1 LLM engine"), 300),
        # model_executor/model_loader/weight_utils.py:538
        Stage("downloading weights", ("Time spent downloading weights",), 1800),
        # v1/worker/gpu_model_runner.py:4979; model_loader/weight_utils.py:1130, 1487; default_loader.py:507
        Stage(
            "loading weights",
            ("Starting to load model", "checkpoint shards", "Loading weights took", "Model loading took"),
            1200,
        ),
        # compilation/backends.py:1197; up to 0.23.0 also backends.py:1090 ("Using cache directory") and monitor.py
        Stage(
            "compiling",
            (
                "vLLM's torch.compile", "torch.compile takes", "torch.compile took", "Dynamo bytecode transform",
                "Compiling a graph", "Cache the graph",
                "Directly load the compiled graph", "Warming up model for the compilation",
            ),
            1200,
        ),
        # v1/worker/gpu_worker.py:773; v1/core/kv_cache_utils.py
        Stage("sizing the KV cache", ("Available KV cache memory", "KV cache size", "Profiling CUDA graph"), 600),
        # model_executor/warmup/kernel_warmup.py:295 and its neighbours; v1/worker/cpu/model_runner.py:16
        Stage("warming up", ("Warming up FlashInfer", "Triton kernels", "Warming up done", "Autotuning"), 900),
        # v1/worker/gpu_model_runner.py:6592, 6517
        Stage("capturing graphs", ("Capturing CUDA graph", "Graph capturing finished"), 900),
        # v1/engine/core.py:396; entrypoints/launchers/api_server/entry.py:139; launcher.py:197
        Stage("starting the server", ("init engine (profile", "Starting vLLM", "Route: "), 300),
    ),
    waiting=("No available shared memory broadcast block", "core engine proc(s) to"),
)  # fmt: skip
