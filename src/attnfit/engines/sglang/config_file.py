"""`--config file.yaml`: launch options in a file, which the release puts in front of those of the command.

Facts from `ConfigArgumentMerger` (srt/server_args_config_parser.py; from 0.5.19 srt/utils/): one file, named .yaml or
.yml, a mapping at its root; a value of the command wins; yes is the bare flag, no leaves it away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read(path: str) -> Mapping[str, Any] | None:
    """The options in the file; None where it cannot be read here, or is no mapping."""
    if Path(path).suffix.lower() not in (".yaml", ".yml"):
        return None
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else None


def merged(argv: Sequence[str], options: Mapping[str, Any]) -> tuple[str, ...]:
    """The words as the release's parser gets them: those of the file, then the command's without `--config FILE`."""
    words: list[str] = []
    for key, value in options.items():
        if isinstance(value, bool):
            words += [f"--{key}"] if value else []
        elif isinstance(value, list):
            words += [f"--{key}", *map(str, value)] if value else []
        else:
            words += [f"--{key}", str(value)]
    at = list(argv).index("--config")
    return (*words, *argv[:at], *argv[at + 2 :])
