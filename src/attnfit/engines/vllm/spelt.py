"""A change of a launch in the flags and variables that a release has: a remedy is written once, releases differ."""

from __future__ import annotations

from collections.abc import Mapping

from attnfit.engines.log import Edit
from attnfit.engines.vllm.flags import known_releases, load_table
from attnfit.engines.vllm.foreseen.brought import brings
from attnfit.engines.vllm.foreseen.variables import table
from attnfit.gpus import ptxas

_BACKEND, _VARIABLE = "--attention-backend", "VLLM_ATTENTION_BACKEND"  # the flag from 0.13.0 on, which the tables say

# Of releases before the oldest table: flags that stand among the arguments they print (up to 0.8 all of them), and
# what those take that did not take everything then.
OLD_FLAGS = frozenset({
    "--tokenizer", "--revision", "--dtype", "--quantization", "--load-format", "--kv-cache-dtype", "--max-model-len",
    "--tensor-parallel-size", "--pipeline-parallel-size", "--gpu-memory-utilization", "--cpu-offload-gb",
    "--block-size", "--max-num-seqs", "--max-num-batched-tokens", "--enforce-eager", "--trust-remote-code",
})  # fmt: skip
_OLD_VALUES: Mapping[str, frozenset[str]] = {
    "--kv-cache-dtype": frozenset({"auto", "fp8", "fp8_e4m3", "fp8_e5m2"}),
    _VARIABLE: frozenset({"FLASH_ATTN", "FLASHINFER"}),  # the names of others changed between them
}


def spelt(edit: Edit, release: str | None) -> Edit | str:
    """The edit as the release writes it; else why it cannot be written for it."""
    named, older = nearest(release)
    options = load_table(named).by_option()
    of = f"vLLM {release or named}"
    flags: dict[str, str] = {}
    variables = dict(edit.variables)
    for flag, value in edit.set.items():
        option = options.get(flag) or options.get(flag.partition(".")[0])
        if flag == _BACKEND and option is None:
            variables[_VARIABLE] = value
        elif option is None or (older and flag not in OLD_FLAGS):
            return f"whether {of} has {flag} is not known here" if older else f"{of} has no {flag}"
        else:
            allowed = _OLD_VALUES.get(flag) if older else option.choices
            if allowed and value and "." not in flag and value not in map(str, allowed):
                return f"{flag} of {of} takes no {value}"
            flags[flag] = value
    if older and variables.get(_VARIABLE) not in (None, *_OLD_VALUES[_VARIABLE]):
        return f"how {of} calls {variables[_VARIABLE]} is not known here"
    if (named_ptxas := variables.pop(ptxas.NEWER, None)) is not None:
        variables |= dict.fromkeys(ptxas.variables(brings().get(release or "", {}).get("torch", "")), named_ptxas)
    if unread := next((name for name, value in variables.items() if value is not None and _unread(name, release)), ""):
        return f"{of} does not read {unread}"
    return Edit(flags, edit.drop, variables)


def nearest(release: str | None) -> tuple[str, bool]:
    """The release whose table of flags is meant: that of the same minor, else the newest that is not newer; whether
    the release is older than all."""
    from packaging.version import InvalidVersion, Version

    known = known_releases()
    try:
        version = Version(release or known[-1])
    except InvalidVersion:
        return known[-1], False
    same = [name for name in known if Version(name).release[:2] == version.release[:2]]
    before = [name for name in known if Version(name) <= version]
    return (same or before or known[:1])[-1], not (same or before)


def _unread(name: str, release: str | None) -> bool:
    """Whether the release's own files were read, and the variable stands nowhere in them."""
    from packaging.version import Version

    read = table()
    if not name.startswith("VLLM_") or release not in read.releases:
        return False
    span = read.variables.get(name)
    return span is None or not Version(span[0]) <= Version(release) <= Version(span[1])
