"""How GGUF models are named on a command line, and what is said of names that stand for nothing."""

from __future__ import annotations

import re

from attnfit.engines.vllm.launch.messages import plain
from attnfit.engines.vllm.launch.state import Refusal, Unknown

#: `REPO:QUANT`, as the releases tell it from a repository
REMOTE = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*:[A-Za-z0-9_+-]+")


def is_quant(path: str, release: str, *, plugin: bool) -> bool:
    """Whether the release takes `REPO:QUANT` for GGUF: it knows the names of types, then of mixes, then of variants.

    vllm/transformers_utils/gguf_utils.py of 0.13, 0.16 and 0.20; the plug-in's gguf_utils.py.
    """
    from attnfit.inputs.gguf.tensor_types import TYPES

    if not REMOTE.fullmatch(path):
        return False
    known = {kind.name for kind in TYPES.values()}
    minor, word = int(release.split(".")[1]), path.rpartition(":")[2]
    mixes = plugin or minor >= 16
    if plugin or minor >= 20:
        word = word.rpartition("-")[2]
    bases = [word, *(word.removesuffix(end) for end in _MIXES if mixes and word.endswith(end))]
    return any(base in known for base in bases) or (plugin and word in _FILE_TYPES)


_MIXES = ("_M", "_S", "_L", "_XL", "_XS", "_XXS")
_FILE_TYPES = ("IQ2_M", "IQ3_M", "IQ3_XS", "MXFP4_MOE")  # no tensor types; the plug-in knows them


def no_config(repository: str) -> Refusal:
    said = (
        f"{repository} does not appear to have a file named config.json. Checkout "
        f"'https://huggingface.co/{repository}/tree/main' for available files."
    )
    return plain("OSError", said, "transformers/utils/hub.py")


def no_such_quant(path: str) -> Refusal:
    """A release that does not know the quant takes the whole for a repository (transformers 4)."""
    said = (
        f"Can't load the configuration of '{path}'. If you were trying to load it from "
        "'https://huggingface.co/models', make sure you don't have a local directory with the same name. "
        f"Otherwise, make sure '{path}' is the correct path to a directory containing a config.json file"
    )
    return plain("OSError", said, "transformers/configuration_utils.py")


def no_id(path: str) -> Refusal:
    """The same from transformers 5."""
    said = (
        "Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or end with '-' or '.' and the "
        f"maximum length is 96: '{path}'."
    )
    return plain("OSError", said, "transformers/utils/hub.py:595")


def no_repository(path: str) -> str:
    """What the hub's client says of a file where a repository should be named. Raises Unknown where it is one."""
    if not path.startswith("/") and path.count("/") < 2:
        raise Unknown(f"whether the hub has a repository named {path}, which the engine takes it for")
    return (
        f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'. Use `repo_type` argument if "
        "needed."
    )


INVALID = (
    "Invalid repository ID or local directory specified: '{}'.\nPlease verify the following requirements:\n"
    "1. Provide a valid Hugging Face repository ID.\n"
    "2. Specify a local directory that contains a recognized configuration file.\n"
    "   - For Hugging Face models: ensure the presence of a 'config.json'.\n"
    "   - For Mistral models: ensure the presence of a 'params.json'.\n"
)
