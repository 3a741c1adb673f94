"""What an SGLang launch has in common with another engine's: flags that mean the same there, by a name of neither."""

from __future__ import annotations

from collections.abc import Sequence

from attnfit.engines import Common, Given
from attnfit.engines.sglang import words

# common name -> the flag here
FLAGS = {
    "tensor parallel": "--tensor-parallel-size",
    "pipeline parallel": "--pipeline-parallel-size",
    "dtype": "--dtype",
    "length": "--context-length",
    "served name": "--served-model-name",
    "port": "--port",
    "host": "--host",
    "revision": "--revision",
    "trust": "--trust-remote-code",
    "api key": "--api-key",
}
_HOST, _PORT = "127.0.0.1", "30000"  # where nobody says (server_args.py, 0.5.6.post2 to 0.5.23)
# Its key guards every path but health and metrics; the other engine's only /v1, so the key alone is no counterpart.
_GUARDS = frozenset({
    "--api-key", "--admin-api-key", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-keyfile-password",
    "--allowed-media-domains", "--config",  # a file may hold any of them
})  # fmt: skip
_NAMES = {flag: name for name, flag in FLAGS.items()}
_WRITTEN = {"--tensor-parallel-size": "--tp", "--pipeline-parallel-size": "--pp-size"}


def common(given: Given) -> Common:
    from attnfit.engines.sglang.entry import find_model

    argv = given.argv
    model = argv[0] if argv and not words.is_flag(argv[0]) else find_model(argv, given.form) or ""
    values: dict[str, str] = {}
    left: list[str] = []
    for span in words.spans(argv):
        name, said = _NAMES.get(span.flag), words.values(argv, span)
        if span.flag == "--model-path":
            continue
        if name is None or name == "api key" or len(said) > 1 or (name != "trust" and not said):
            left.append(span.flag)
        else:
            values[name] = said[0] if said else ""
    values = {**values, "host": values.get("host", _HOST), "port": values.get("port", _PORT)}
    return Common(model, values, tuple(left), tuple(flag for flag in left if flag in _GUARDS))


def translated(common: Common) -> Sequence[str]:
    found = ["python", "-m", "sglang.launch_server", "--model-path", common.model]
    for name, value in common.values.items():
        flag = _WRITTEN.get(FLAGS[name], FLAGS[name])
        found += [flag, value] if value else [flag]
    return found
