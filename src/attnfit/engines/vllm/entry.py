"""How a vLLM server is started."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from attnfit.engines.entry import EntryPoints, Plugin


def find_model(argv: Sequence[str], form: str) -> str | None:
    """The model among flags (`-tp 8 MODEL`) or inside a `--config` file, as the newest release's parser sees it."""
    values = flag_values(argv, form)
    model = values.get("model_tag") if form == "serve" else None
    model = model or values.get("model")
    return model if isinstance(model, str) else None


def flag_values(argv: Sequence[str], form: str) -> Mapping[str, object]:
    """The text every flag was given, as the newest release's parser sees it."""
    from attnfit.engines.vllm.flags import known_releases, lenient_values

    return lenient_values(known_releases()[-1], argv, form)


ENTRY = EntryPoints(
    engine="vllm",
    distribution="vllm",
    programs={"vllm": {"serve": "serve"}},
    modules={
        "vllm.entrypoints.openai.api_server": {"": "module"},
        "vllm.entrypoints.launchers.api_server.entry": {"": "module"},
        "vllm.entrypoints.api_server": {"": "module"},
        "vllm.entrypoints.cli.main": {"serve": "serve"},
        "vllm.scripts": {"serve": "serve"},
    },
    scripts={"vllm/entrypoints/openai/api_server.py": "module"},
    # docker/Dockerfile of the releases with a book: ENTRYPOINT ["vllm", "serve"]
    images=re.compile(r"(?:^|/)vllm-openai(?:-[a-z0-9]+)?$"),
    image_form="serve",
    official_image="vllm/vllm-openai",
    guard_variables=("VLLM_API_KEY",),
    image_tag=re.compile(r"^v?(\d+\.\d+\.\d+(?:\.post\d+|rc\d+)?)(?:[-.+_].*)?$"),
    requirement=re.compile(r"^vllm(?:\[[^\]]*\])?\s*(?:==|@)\s*v?(\d+\.\d+[\w.]*)$"),
    model_options=("--model",),
    find_model=find_model,
    flag_values=flag_values,
    start="vllm serve",
    example_releases=("0.16.0", "0.33.0"),
    modelscope="VLLM_USE_MODELSCOPE",
    facts_beside={"vllm-gguf-plugin": "gguf_plugin"},
    plugins_beside={"attnfit": Plugin("attnfit", "vllm.general_plugins", needs=("torch", "triton"))},
)
# Which file `org/repo:Q4_K_M` means, inputs/hub_gguf.py decides as transformers_utils/gguf_utils.py does up to 0.32.
