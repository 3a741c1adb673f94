"""What a vLLM launch has in common with another engine's: flags that mean the same there, by a name of neither."""

from __future__ import annotations

from collections.abc import Sequence

from attnfit.engines import Common, Given
from attnfit.engines.vllm.moves_flags import Flags

# common name -> the flag here
FLAGS = {
    "tensor parallel": "--tensor-parallel-size",
    "pipeline parallel": "--pipeline-parallel-size",
    "dtype": "--dtype",
    "length": "--max-model-len",
    "served name": "--served-model-name",
    "port": "--port",
    "host": "--host",
    "revision": "--revision",
    "trust": "--trust-remote-code",
    "api key": "--api-key",
}
_HOST, _PORT = "0.0.0.0", "8000"  # where nobody says (entrypoints/openai/cli_args.py, 0.12.0 to 0.33.0)
_GUARDS = frozenset({
    "--api-key", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs", "--ssl-ciphers", "--uds",
    "--middleware", "--allowed-origins", "--allowed-methods", "--allowed-headers", "--allowed-media-domains",
    "--disable-fastapi-docs", "--config",  # a file may hold any of them
})  # fmt: skip
_NAMES = {flag: name for name, flag in FLAGS.items()}


def common(given: Given) -> Common:
    from attnfit.engines.vllm.entry import find_model

    form = "serve" if given.form == "auto" else given.form
    model = find_model(given.argv, form) or ""
    values: dict[str, str] = {}
    left: list[str] = []
    for piece in Flags(given).pieces():
        if not piece.flag or piece.flag == "--model":
            continue
        name = _NAMES.get(piece.flag)
        _head, equals, glued = piece.words[0].partition("=")
        said = [glued] if equals else list(piece.words[1:])
        if name is None or len(said) > 1 or (name != "trust" and not said):
            left.append(piece.flag)
        else:
            values[name] = said[0] if said else ""
    values = {**values, "host": values.get("host", _HOST), "port": values.get("port", _PORT)}
    return Common(model, values, tuple(left), tuple(flag for flag in left if flag in _GUARDS))


def translated(common: Common) -> Sequence[str]:
    words = ["vllm", "serve", common.model]
    for name, value in common.values.items():
        words += [FLAGS[name], value] if value else [FLAGS[name]]
    return words
