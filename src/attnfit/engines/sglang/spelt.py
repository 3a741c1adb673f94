"""A change of a launch in the flags and values that a release has, with what a changed flag takes along."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.version import InvalidVersion, Version

from attnfit.engines.log import Edit
from attnfit.engines.sglang import releases
from attnfit.gpus import ptxas

_OPTIONS = Path(__file__).with_name("options.json")
_PHASE = re.compile(r"(?<=-)(?:prefill|decode|verify)-")

# What a flag was called before (server_args.py of 0.5.6 to 0.5.23).
_BEFORE = {
    "--dsa-prefill-backend": "--nsa-prefill-backend",
    "--dsa-decode-backend": "--nsa-decode-backend",
    "--fp4-gemm-runner-backend": "--fp4-gemm-backend",
    "--fp8-gemm-runner-backend": "--fp8-gemm-backend",
}


@functools.cache
def _options() -> Mapping[str, tuple[str, str]]:
    """Flag -> the first and the last release that has it."""
    return {flag: (first, last) for flag, (first, last) in json.loads(_OPTIONS.read_text("utf-8")).items()}


def spelt(edit: Edit, release: str | None) -> Edit | str:
    """The edit as the release writes it; else why it cannot be written for it."""
    version = _version(release)
    of = f"SGLang {release or releases.known()[-1]}"
    flags: dict[str, str] = {}
    for flag, value in edit.set.items():
        name = next((each for each in (flag, _BEFORE.get(flag, flag)) if _has(each, version)), None)
        if name is None:
            return f"{of} has no {flag}"
        choices = releases.entry(str(version)).choices.get(name[2:].replace("-", "_"))
        if value and choices is not None and value not in choices.names:
            return f"{name} of {of} takes no {value}"
        flags[name] = value
    variables = dict(edit.variables)
    if (named := variables.pop(ptxas.NEWER, None)) is not None:
        variables |= dict.fromkeys(ptxas.variables(""), named)  # its torch is not in the table of releases
    return Edit(flags, edit.drop, variables)


def overriding(flag: str) -> Iterator[str]:
    """Flags of one phase, which count more than the flag of all: `--prefill-attention-backend` for the backend's."""
    if not _PHASE.search(flag):
        yield from (each for each in _options() if each != flag and _PHASE.sub("", each) == flag)


def _version(release: str | None) -> Version:
    try:
        return Version(release or releases.known()[-1])
    except InvalidVersion:
        return Version(releases.known()[-1])


def _has(flag: str, version: Version) -> bool:
    """A release older than all that were read is taken for the oldest, a newer one for the newest."""
    if flag not in _options():
        return False
    known = [Version(name) for name in releases.known()]
    first, last = map(Version, _options()[flag])
    return first <= min(max(version, known[0]), known[-1]) <= last
