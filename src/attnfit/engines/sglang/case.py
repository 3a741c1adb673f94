"""From a launch as it was given to the case a release is asked: one copy of its words, as the parser gets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnfit.core import Capability, Gpu, Model
from attnfit.engines.sglang import config_file, words
from attnfit.engines.sglang.answers import Answer, Case, Where, nothing
from attnfit.engines.sglang.releases import Entry

# Memory in GiB of a GPU of which only the compute capability is known: that of a common one (T4, A100, A40, L40S, H100,
# B200, B300, Thor, RTX PRO 6000, GB10). Sizes depend on it, backends do not.
BARE_GIB = {"7.5": 16.0, "8.0": 80.0, "8.6": 48.0, "8.9": 48.0, "9.0": 80.0, "10.0": 180.0, "10.3": 268.0,
            "11.0": 122.0, "12.0": 96.0, "12.1": 119.0}  # fmt: skip


_SPREAD = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--nnodes", "--config")


def case_of(
    model: Model,
    gpu: Gpu,
    argv: Sequence[str],
    *,
    gpus: int | None,
    variables: Mapping[str, str],
    facts: Mapping[str, bool],
) -> Case:
    """The case, with the words as they were given."""
    return Case(
        model=model.path,
        config=model.config,
        hf_quant=model.hf_quant,
        files=None if model.files is None else sorted(model.files),
        capability=str(gpu.capability or Capability(0, 0)),
        gpu_name=name_of(gpu),
        gpu_mem_gb=memory_of(gpu),
        gpus=gpus,
        argv=list(argv),
        variables=dict(variables),
        facts=dict(facts),
    )


def name_of(gpu: Gpu) -> str:
    return "" if gpu.name == f"compute capability {gpu.capability}" else gpu.name


def memory_of(gpu: Gpu) -> float:
    return gpu.memory_gib if gpu.memory_gib is not None else BARE_GIB.get(str(gpu.capability), 80.0)


def ready(case: Case, form: str, entry: Entry, *, files_here: bool) -> tuple[Case, Answer | None]:
    """The case with the words that `launch_server`'s parser gets, and the answer where it does not come to that parser.

    form: "serve" (`sglang serve`), else `launch_server`'s own. Bare flags without a model get the case's, and are a
    launch on all its GPUs where they do not say on how many.
    """
    argv: Sequence[str] = case["argv"]
    if form == "serve":
        found = _served(argv, entry)
        if not isinstance(found, tuple):
            return case, found
        argv = found
    if "--config" in argv:
        at = list(argv).index("--config")
        path = argv[at + 1] if at + 1 < len(argv) else None
        options = config_file.read(path) if path and files_here else None
        if options is None:
            where = "cannot be read here" if files_here else "lies in a container or on another machine"
            return case, nothing(f"the --config file {path or ''} {where}; put its options into the command")
        argv = config_file.merged(argv, options)
    if words.last(argv, "--model-path") is None and form == "auto":
        argv = ("--model-path", case["model"], *argv)
        if case["gpus"] and not any(words.last(argv, flag) for flag in _SPREAD):
            argv = (*argv, "--tensor-parallel-size", str(case["gpus"]))
    named = words.value_of(argv, "--model-path")  # a path in a container, say, while its files are read from elsewhere
    return Case(**{**case, "argv": list(argv), "model": named or case["model"]}), None


def _served(argv: Sequence[str], entry: Entry) -> tuple[str, ...] | Answer:
    """What `sglang serve` hands to the server's own parser (cli/serve.py)."""
    if entry.serve.model_type:
        kind = words.value_of(argv, "--model-type")
        if kind not in (None, "auto", "llm"):
            return nothing(f"--model-type {kind} starts another server than the one for language models")
        argv = words.without(argv, "--model-type")
    if entry.serve.positional and argv and not words.is_flag(argv[0]):
        return ("--model-path", *argv)
    names = ("--model-path", "--model") if entry.serve.model else ("--model-path",)
    if not any(word.partition("=")[0] in names for word in argv):
        file, _, line = entry.serve.model_required.partition(":")
        return Answer(
            ok=False,
            stage="arg-parse",
            error_type="Exception",
            message="Error: --model-path is required. Please provide the path to the model.",
            where=Where(file=file, line=int(line), func="get_model_path"),
            unknown=[],
            prefill=None,
            decode=None,
            resolved={},
            given={},
            warnings=[],
        )
    return tuple(argv)
