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
}
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
        if name is None or len(said) > 1 or (name != "trust" and not said):
            left.append(argv[span.start].partition("=")[0])
        else:
            values[name] = said[0] if said else ""
    return Common(model, values, tuple(left))


def translated(common: Common) -> Sequence[str]:
    found = ["python", "-m", "sglang.launch_server", "--model-path", common.model]
    for name, value in common.values.items():
        flag = _WRITTEN.get(FLAGS[name], FLAGS[name])
        found += [flag, value] if value else [flag]
    return found
