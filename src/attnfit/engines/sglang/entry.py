"""How an SGLang server is started."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from attnfit.engines.entry import EntryPoints
from attnfit.engines.sglang import words


def find_model(argv: Sequence[str], form: str) -> str | None:
    """The model among flags, however its option is shortened, or inside a `--config` file."""
    if (model := words.value_of(argv, "--model-path")) is not None:
        return model
    path = words.value_of(argv, "--config")
    if path is None:
        return None
    from attnfit.engines.sglang.config_file import read

    found = read(path)
    named = [found.get(key) for key in ("model-path", "model_path", "model")] if found else []
    return next((each for each in named if isinstance(each, str)), None)


def flag_values(argv: Sequence[str], form: str) -> Mapping[str, object]:
    """dest -> the text it was given, for every flag that has a value."""
    found: dict[str, object] = {}
    if argv and not words.is_flag(argv[0]):
        found["model_path"] = argv[0]
    for span in words.spans(argv):
        if given := words.values(argv, span):
            found[span.flag.lstrip("-").replace("-", "_")] = given[0]
    return found


ENTRY = EntryPoints(
    engine="sglang",
    distribution="sglang",
    programs={"sglang": {"serve": "serve"}},
    modules={
        "sglang.launch_server": {"": "module"},
        "sglang.cli.main": {"serve": "serve"},
    },
    scripts={"sglang/launch_server.py": "module"},
    images=re.compile(r"(?:^|/)sglang$"),  # lmsysorg/sglang, nvcr.io/nvidia/sglang and their mirrors
    official_image="lmsysorg/sglang",
    guard_variables=(),  # environ.py 0.5.23 has none
    image_form=None,  # they start no server: the command stands behind the image
    image_tag=re.compile(r"^v?(\d+\.\d+\.\d+(?:\.post\d+|rc\d+)?)(?:[-.+_].*)?$"),
    requirement=re.compile(r"^sglang(?:\[[^\]]*\])?\s*(?:==|@)\s*v?(\d+\.\d+[\w.]*)$"),
    model_options=("--model-path", "--model"),
    find_model=find_model,
    flag_values=flag_values,
    start="python -m sglang.launch_server --model-path",
    example_releases=("0.5.9", "0.5.23"),
    modelscope="SGLANG_USE_MODELSCOPE",
)
