"""SGLang's server: address, health, tiny requests, and the stages of its start as its log tells them.

Read in 0.5.6.post2 and 0.5.23: srt/server_args.py for the flags; srt/entrypoints/http_server.py:721 (/health), 1860
(/v1/completions), 1993 (/v1/models), 2600 (it is ready). Each stage names where 0.5.23 prints its words; 0.5.6 prints
the same ones elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnfit.engines.serving import OPENAI, Address, Serving, Stage, local
from attnfit.engines.sglang.entry import ENTRY

_PORT = 30000  # srt/server_args.py, ServerArgs.port


def address(argv: Sequence[str], form: str, environ: Mapping[str, str]) -> Address:
    given = ENTRY.flag_values(argv, form)
    if str(given.get("node_rank") or "0") != "0":
        return Address(nothing=f"node {given['node_rank']} has no HTTP server; the first one has it")
    if given.get("grpc_mode"):
        return Address(nothing="--grpc-mode starts a gRPC server, which is not asked")
    port = str(given.get("port") or _PORT)
    if not port.isdecimal() or int(port) == 0:
        return Address(nothing=f"--port {port} does not say where it will listen")
    tls = bool(given.get("ssl_certfile") or given.get("ssl_keyfile"))
    host = given.get("host")
    return Address(local(str(host) if host else None), int(port), tls, "", str(given.get("api_key") or ""))


SERVING = Serving(
    engine="sglang",
    address=address,
    health="/health",
    models="/v1/models",
    asks=OPENAI,
    stages=(
        Stage("starting", ("server_args=ServerArgs(", "Init torch distributed"), 300),
        # srt/model_executor/model_runner.py:1274, 1373; srt/model_loader/weight_utils.py:1166, 1371, 1688
        Stage(
            "loading weights",
            ("Load weight begin", "checkpoint shards", "loading shards", "loading pt", "Loading safetensors",
             "Load weight end"),
            1200,
        ),
        # srt/mem_cache/kv_cache_configurator.py:499
        Stage("sizing the KV cache", ("KV Cache is allocated", "Memory pool end", "max_total_num_tokens="), 600),
        # srt/model_executor/model_runner_components/cuda_graph_setup.py:685; runner/decode_cuda_graph_runner.py:1343;
        # runner_backend/tc_piecewise_cuda_graph_backend.py:207
        Stage("compiling", ("Compiling num tokens",), 1200),
        Stage("capturing graphs", ("Capture ", "Capturing "), 900),
        # srt/entrypoints/http_server.py; uvicorn's own words
        Stage("starting the server", ("Application startup", "Uvicorn running", "The server is fired up"), 300),
    ),
    waiting=("Health check failed",),
)  # fmt: skip
