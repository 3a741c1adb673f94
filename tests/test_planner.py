"""The planner: what it offers starts, is the least that does, is the same each time; and what a user then reads."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from attnfit import check
from attnfit.core import Capability, Gpu, Launch, Model, Question
from attnfit.decide import Request
from attnfit.engines import Cost, Move, Piece, Weights, engine
from attnfit.engines.move import close
from attnfit.errors import UsageError
from attnfit.inputs.command import parse_command
from attnfit.inputs.rewrite import rewrite
from attnfit.plan.conflict import _Asked, _facts, core
from attnfit.plan.edits import Origin, parts_of, start, with_parts
from attnfit.plan.judge import Judge, Outcome
from attnfit.plan.search import MOST_BLIND, search
from attnfit.report.json import as_dict
from attnfit.report.planned import fix
from fit_cases import configs
from planner_cases import ask, clean, wrong

GLM = str(Path(__file__).parent.parent / "examples" / "glm-5")
STORY_2 = ["vllm", "serve", GLM, "-tp", "8", "--dtype", "float16"]


# ---- against `check` itself ----------------------------------------------------------------------------------------

FLAGS = (
    ["--kv-cache-dtype", "fp8"], ["--kv-cache-dtype", "turboquant_k8v4"], ["--attention-backend", "FLASHMLA"],
    ["--attention-backend", "TRITON_ATTN"], ["--attention-backend", "FLASHINFER_MLA_SPARSE"], ["--dtype", "float16"],
    ["--dtype", "float32"], ["--block-size", "16"], ["--block-size", "48"], ["--quantization", "awq"], ["-dcp", "4"],
    ["--enforce-eager"], ["--no-such-flag"], ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}'],
    ["-cc", '{"pass_config": {"fuse_allreduce_rms": true}}'],
)  # fmt: skip
MODELS = (
    "zai-org__GLM-5",
    "Qwen__Qwen3-8B",
    "openai__gpt-oss-20b",
    "Qwen__Qwen3.5-35B-A3B",
    "deepseek-ai__DeepSeek-R1",
)


def launches(count: int, seed: int) -> Iterator[tuple[str, list[str], str, str]]:
    pick = random.Random(seed)
    for _ in range(count):
        flags = [word for flag in pick.sample(FLAGS, pick.choice((1, 2, 2, 3))) for word in flag]
        release = pick.choice(("0.16.0", "0.20.2", "0.28.0", "0.33.0"))
        yield pick.choice(MODELS), flags, pick.choice(("t4", "a100-80g", "5090", "h200", "b200", "12.1")), release


@pytest.mark.parametrize(("model", "flags", "gpu", "release"), list(launches(24, seed=8)))
def test_every_offer_starts_and_is_the_least_that_does(
    model: str, flags: list[str], gpu: str, release: str, tmp_path: Path
) -> None:
    """5,000 such launches, and SGLang's, are asked by proofs/planner.py."""
    (tmp_path / "config.json").write_text(json.dumps(configs()[model]["config"]), "utf-8")
    words, where = ["vllm", "serve", str(tmp_path), "-tp", "4", *flags], (gpu, 4, f"vllm=={release}")
    assert list(wrong(ask(words, *where, planned=True), words, *where)) == []


def test_what_is_wrong_with_a_plan_is_found() -> None:
    """A plan for another launch does not pass as this one's."""
    where = ("rtx-pro-6000", 8, "vllm==0.33.0")
    other = ask([*STORY_2, "--max-model-len", "4096"], *where, planned=True)
    assert any("another plan" in sentence for sentence in wrong(other, STORY_2, *where))


# ---- against brute force -------------------------------------------------------------------------------------------


class Toy:
    """An engine whose launch passes or not by a table: any function of which flags stand there."""

    name, version, book, exact, dear, said = "toy", "1", "1", True, False, ()

    def __init__(self, passes: Callable[[frozenset[str]], bool], says: Callable[[frozenset[str]], str]) -> None:
        self.passes, self.says, self.asked = passes, says, 0

    def pieces(self, given: Any) -> list[Piece]:
        return [Piece(word, (word,)) for word in given.argv]

    def launch(self, circumstances: Any) -> Launch:
        self.asked += 1
        flags = frozenset(circumstances.argv)
        return (
            Launch(ok=True, stage="done") if self.passes(flags) else Launch(ok=False, stage="x", error=self.says(flags))
        )

    def fitter(self, circumstances: Any, weights: Any) -> Callable[[Gpu], None]:
        return lambda gpu: None


def toy(seed: int) -> tuple[Toy, Sequence[str], dict[str, int]]:
    pick = random.Random(seed)
    given = [f"--{letter}" for letter in "abcdef"[: pick.choice((3, 4, 5, 6))]]
    costs = {flag: pick.choice((1, 4, 10, 20, 30, 40, 120)) for flag in given}
    good = {frozenset(kept) for n in range(len(given)) for kept in combinations(given, n) if pick.random() < 0.08}
    says = pick.choice((lambda flags: "no", lambda flags: f"no {sorted(flags)[:1]}"))
    return Toy(lambda flags: flags in good, says), given, costs


def found_by_search(this: Toy, given: Sequence[str], costs: dict[str, int]) -> tuple[int | None, list[frozenset[str]]]:
    gpu = Gpu(name="g", capability=Capability(9, 0), memory_gib=80.0)
    request = Request(release=this, model=Model(path="m", config={}), gpus=((gpu, 1),), argv=tuple(given), variables={})  # type: ignore[arg-type]
    origin = start(this, request)  # type: ignore[arg-type]
    judge = Judge(lambda: Weights(None), 100)

    def successors(request: Request, outcome: Outcome) -> Iterator[Move]:
        for flag in request.argv:
            left = tuple(word for word in request.argv if word != flag)
            yield Move(f"drop {flag}", left, cost=costs[flag], kind=flag)

    refused = judge.told(request, this.launch(request.on(gpu)), None)
    found = search(origin, judge, refused, successors).found
    kept = [frozenset(with_parts(origin, each.parts).argv) for each in found]
    return (found[0].cost if found else None), kept


def test_the_search_agrees_with_brute_force_on_small_spaces() -> None:
    """Every combination of up to three changes, each a table of its own: the cheapest is the cheapest."""
    solvable = 0
    for seed in range(400):
        this, given, costs = toy(seed)
        assert sum(len(list(combinations(given, n))) for n in (2, 3)) <= MOST_BLIND
        ways = [
            set(way) for n in (1, 2, 3) for way in combinations(given, n) if this.passes(frozenset(given) - set(way))
        ]
        best = min((sum(costs[flag] for flag in way) for way in ways), default=None)
        if this.passes(frozenset(given)):
            continue
        cheapest, kept = found_by_search(this, given, costs)
        assert cheapest == best, seed
        for left in kept:
            assert this.passes(left)
            gone = set(given) - left
            assert len(gone) == 1 or not any(this.passes(left | {flag}) for flag in gone), "no part is superfluous"
        solvable += best is not None
    assert 100 < solvable < 400


def test_no_launch_is_asked_twice_and_no_more_than_the_budget() -> None:
    this = Toy(lambda flags: False, lambda flags: str(sorted(flags)))
    given = [f"--{number}" for number in range(40)]
    _, kept = found_by_search(this, given, dict.fromkeys(given, 1))
    assert kept == []
    assert this.asked <= 102


# ---- parts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "then"),
    [
        ("m --a 1 --b 2", "m --b 2"),
        ("m --a 1 --b 2", "m --a 3 --b 2 --c"),
        ("m -tp8 --dtype auto", "m -tp 8"),
        ("m —dtype float16", "m --dtype float16"),
        ("m --dtype float16 --dtype bfloat16", "m --dtype bfloat16"),
        ("m --enforce-eager --kv-cache-dtype fp8", "m --kv-cache-dtype auto --block-size 16"),
        ("m x y --dtype=half", "m --dtype half"),
        ("m --no-such 4 --nor-such", "m --block-size 16"),
        ("m --kv-cache-dtype fp8 --dtype auto", "m --dtype auto --block-size 16 --kv-cache-dtype auto"),
    ],
)
def test_parts_put_together_are_the_launch_they_were_taken_from(given: str, then: str) -> None:
    origin = origin_of(given.split())
    parts = parts_of(origin, (), Move("", tuple(then.split())))
    words = with_parts(origin, parts).argv
    assert sorted(words) == sorted(then.split())
    assert with_parts(origin, ()).argv == tuple(given.split())
    assert all(with_parts(origin, (part,)).argv != origin.request.argv for part in parts)


def test_a_flag_that_goes_here_and_comes_back_there_is_one_change() -> None:
    given, then, found = (
        text.split()
        for text in (
            "m --kv-cache-dtype fp8 --dtype auto",
            "m --dtype auto --block-size 16 --kv-cache-dtype auto",
            "m --kv-cache-dtype auto --dtype auto --block-size 16",
        )
    )
    origin = origin_of(given)
    parts = parts_of(origin, (), Move("", tuple(then)))
    assert [part.put for part in parts] == [(("--kv-cache-dtype", "auto"),), (("--block-size", "16"),)]
    assert with_parts(origin, parts).argv == tuple(found)


def origin_of(argv: Sequence[str]) -> Origin:
    this = engine("vllm")
    gpu = Gpu(name="g", capability=Capability(9, 0), memory_gib=80.0)
    model = Model(path="m", config={})
    return start(this, Request(release=this.release("0.33.0"), model=model, gpus=((gpu, 1),), argv=tuple(argv),
                               form="serve", variables={}))  # fmt: skip


def test_another_release_is_written_where_the_command_names_one() -> None:
    for given, then in (
        ("docker run --gpus all vllm/vllm-openai:v0.16.0 m", "docker run --gpus all vllm/vllm-openai:v0.24.0 m"),
        ("uvx --with vllm==0.16.0 vllm serve m", "uvx --with vllm==0.24.0 vllm serve m"),
        ("vllm serve m", "vllm serve m"),
    ):
        command = parse_command(given.split())
        assert rewrite(command, command.argv, {}, "0.24.0") == then.split()


# ---- why nothing helps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capability", ["7.5", "8.0", "9.0", "12.0"])
@pytest.mark.parametrize("changed", [{}, {"kv_cache_dtype": "fp8_e5m2"}, {"dtype": "bfloat16"}, {"has_sink": True}])
def test_a_conflict_is_one_and_no_part_of_it_can_be_spared(capability: str, changed: dict[str, Any]) -> None:
    release = engine("vllm").release("0.33.0")
    plain: dict[str, Any] = {
        "head_size": 576, "dtype": "float16", "use_mla": True, "use_sparse": True, "num_heads": 8,
        "hf": {"index_topk": 2048, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "kv_lora_rank": 512},
    }  # fmt: skip
    question = Question(capability=Capability.parse(capability), **{**plain, **changed})
    if release.select(question).chosen is not None:
        return
    asked = asker(release)
    facts = _facts(question)
    found = core(asked, question, facts)
    assert found
    free = [fact for fact in facts if fact not in found]
    assert asked.served(question, free) is None, "whatever else is let go of"
    for fact in found:
        assert asked.served(question, [*free, fact]) is not None, f"without {fact.name} it is served"


def asker(release: Any) -> _Asked:
    gpu = Gpu(name="g", capability=Capability(9, 0))
    found = _Asked(Request(release=release, model=Model(path="m", config={}), gpus=((gpu, 1),), argv=(), variables={}))
    found.left = 100_000
    return found


# ---- the two stories, and what people read ---------------------------------------------------------------------------


def test_story_2_on_0_16_is_a_newer_release_ours_on_another_or_the_other_engine() -> None:
    """GLM-5's config class is newer than the transformers that 0.16.0 takes: nothing in its command helps."""
    report = check(STORY_2, gpu="rtx-pro-6000", count=8, engine="vllm==0.16.0")
    assert [(step.kind, step.engine, step.release, bool(step.env)) for step in report.steps] == [
        ("release", "vllm", "0.24.0", False),
        ("engine", "sglang", "0.5.23", False),
        ("release", "vllm", "0.23.0", True),
    ]
    assert "the refusal stays the same" in report.plan.useless[0]
    newer = report.steps[0]
    assert newer.gives_up == "activations run in bfloat16 instead of float16"
    assert [(change.name, change.before, change.after) for change in newer.changes] == [
        ("--dtype", "--dtype float16", None)
    ]
    assert newer.installs == "vllm==0.24.0"
    in_a_container = ["docker", "run", "vllm/vllm-openai:v0.16.0", *STORY_2[2:]]
    contained = check(in_a_container, gpu="rtx-pro-6000", count=8, model=GLM).steps[0]
    assert (contained.argv, contained.installs) == (
        ("docker", "run", "vllm/vllm-openai:v0.24.0", GLM, "-tp", "8"), "",
    )  # fmt: skip


def test_dense_attention_is_no_flag_of_this_engine() -> None:
    """The release asks whether its config has index_topk at all; an override can set it and not remove it."""
    for release in ("0.23.0", "0.33.0"):
        words = [*STORY_2, "--hf-overrides", '{"index_topk": null}']
        assert not clean(ask(words, "rtx-pro-6000", 8, f"vllm=={release}"))


def test_a_flag_that_does_nothing_goes_with_the_cure_and_only_with_it() -> None:
    inert = ["-cc", '{"pass_config": {"fuse_allreduce_rms": true}, "cudagraph_mode": "PIECEWISE"}']
    words = [*STORY_2, *inert]
    report = check(words, gpu="rtx-pro-6000", count=8, engine="vllm==0.28.0")
    step = report.steps[0]
    assert step.argv == (*STORY_2[:5], "-cc", '{"cudagraph_mode": "PIECEWISE"}')
    assert {change.name for change in step.changes} == {"--dtype", "-cc"}


def test_another_gpu_is_text_and_never_a_fix() -> None:
    report = check(["vllm", "serve", GLM, "-tp", "8"], gpu="t4x8", engine="vllm==0.33.0")
    command, said = fix(report)
    assert command == ""
    assert "no command found that would pass" in said


@pytest.mark.parametrize(
    ("engine", "flags", "more"),
    [
        ("vllm==0.16.0", [], "vllm 0.33.0 instead of 0.16.0"),
        ("vllm==0.33.0", ["--block-size", "3"], "drop --block-size 3"),
        ("vllm==0.16.0", ["--max-model-len", "9999999"], "and vllm 0.33.0 instead of 0.16.0, and drop --max-model-len"),
    ],
)
def test_another_gpu_is_offered_with_another_release_or_a_flag_less_if_it_takes_that(
    engine: str, flags: list[str], more: str
) -> None:
    words, gpu = ["vllm", "serve", GLM, "-tp", "8", *flags], "t4"
    report = ask(words, gpu, 8, engine, planned=True)
    offered = [step for step in report.steps if step.gpu]
    assert len(offered) == 1
    assert more in offered[0].text
    assert not list(wrong(report, words, gpu, 8, engine)), "what is said starts there"
    assert not clean(ask(words, offered[0].gpu, 8, engine)), "as it is it does not"


@pytest.mark.parametrize(
    ("model", "words", "where", "found"),
    [
        ("Qwen__Qwen3-8B", "-tp 2 --attention-backend TRITON_MLA", ("h100", 1, "vllm==0.33.0"), "-tp 1"),
        ("Qwen__Qwen3-8B", "-tp 3 --attention-backend FLASHMLA", ("h100", 3, "vllm==0.33.0"), "-tp 2"),
        ("Qwen__Qwen3-8B", "-tp 3 -dcp 3", ("h200", 4, "vllm==0.33.0"), "-tp 4 -dcp 1"),
        ("zai-org__GLM-5.2", "-tp 3 -dcp 2", ("h200", 3, "vllm==0.22.1"), "-tp 2 -dcp 1"),
        ("Qwen__Qwen3-8B", "-tp 2 --hf-overrides {bad", ("h100", 2, "vllm==0.33.0"), "-tp 2"),
    ],
)
def test_a_split_that_is_wrong_hides_no_other_fault(
    model: str, words: str, where: tuple[str, int, str], found: str, tmp_path: Path
) -> None:
    """What the engine never came to, for it stopped before, does not make two changes look like progress."""
    (tmp_path / "config.json").write_text(json.dumps(configs()[model]["config"]), "utf-8")
    given = ["vllm", "serve", str(tmp_path), *words.split()]
    report = ask(given, *where, planned=True)
    assert report.steps[0].argv == (*given[:3], *found.split())
    assert not list(wrong(report, given, *where))


def test_a_size_that_another_engine_abbreviates_is_put_right_whole(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(configs()["Qwen__Qwen3-8B"]["config"]), "utf-8")
    given = ["vllm", "serve", str(tmp_path)]
    for words, found in (("--tp-size 2", "--tensor-parallel-size 2"), ("--tp-size=4", "--tensor-parallel-size=2")):
        step = ask([*given, *words.split()], "h100", 2, "vllm==0.33.0", planned=True).steps[0]
        assert step.argv == (*given, *found.split())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--tp 8", "--tp 4"),
        ("--tp-size 4 --pp-size 2", "--tp-size 4 --pp-size 1"),
        ("--tp 8 --dp-size 2", "--tp 2 --dp-size 2"),
        ("--pipeline-parallel-size=8", "--pipeline-parallel-size=4"),
        ("--tp 4 --ep-size 8", "--tp 4 --ep-size 1"),
        ("--tp 8 --kv-cache-dtype fp9", "--tp 4"),
        ("--tp 8 --attention-backend tritn", "--tp 4 --attention-backend triton"),
        ("--tp 8 --enable-metric", "--tp 4 --enable-metrics"),
        ("--tp 2 --pp 2 --chunked-prefil-size 4096", "--tp 2 --pp-size 2 --chunked-prefill-size 4096"),
        ("--enable-flashinfer-mla --disable-cuda-grph", "--disable-cuda-graph"),
    ],
)
def test_sglang_is_divided_among_the_gpus_there_are(words: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(configs()["openai__gpt-oss-120b"]["config"]), "utf-8")
    given = ["python3", "-m", "sglang.launch_server", "--model-path", str(tmp_path)]
    report = ask([*given, *words.split()], "h100", 4, "sglang==0.5.23", planned=True)
    assert report.steps[0].argv == (*given, *found.split())
    assert not list(wrong(report, [*given, *words.split()], "h100", 4, "sglang==0.5.23"))


@pytest.mark.parametrize(
    ("model", "words", "where", "release", "found"),
    [
        ("MiniMaxAI__MiniMax-M2.7", "-tp 8", ("h100", 2, "vllm==0.17.1"), "0.19.0", "-tp 2"),
        ("MiniMaxAI__MiniMax-M2.7", "-tp 8 --trust-remote-code", ("h100", 8, "vllm==0.17.1"), "0.19.0", "-tp 8"),
    ],
)
def test_another_release_is_offered_with_one_change_more_of_any_kind(
    model: str, words: str, where: tuple[str, int, str], release: str, found: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(configs()[model]["config"]), "utf-8")
    given = ["vllm", "serve", str(tmp_path), *words.split()]
    step = next(step for step in ask(given, *where, planned=True).steps if step.argv)
    assert (step.release, step.argv) == (release, (*given[:3], *found.split()))


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("vllm serve M --disable-log-requests", "vllm==0.27.1"),
        ("vllm serve M --disable-prefix-caching", "vllm==0.27.1"),
        ("vllm serve M --disable-async-output-proc", "vllm==0.33.0"),
        ("python3 -m sglang.launch_server --model-path M --no-trust-remote-code", "sglang==0.5.23"),
        ("python3 -m sglang.launch_server --model-path M --enable-radix-cache", "sglang==0.5.23"),
        ("python3 -m sglang.launch_server --model-path M --enable-cuda-graph", "sglang==0.5.23"),
        ("python3 -m sglang.launch_server --model-path M --disable-metrics", "sglang==0.5.23"),
    ],
)
def test_a_flag_that_is_gone_is_dropped_and_never_taken_for_its_opposite(
    words: str, where: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(configs()["Qwen__Qwen3-8B"]["config"]), "utf-8")
    given = [str(tmp_path) if word == "M" else word for word in words.split()]
    report = ask(given, "h100", 1, where, planned=True)
    assert report.verdict == "refused"
    assert report.steps[0].argv == tuple(given[:-1])


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--max-model-lenght", ["--max-model-len"]), ("--atention-backend", ["--attention-backend"]),
        ("--attn-backend", ["--attention-backend"]), ("--kv-cache-type", ["--kv-cache-dtype"]),
        ("--tensor-paralel", ["--tensor-parallel-size"]), ("--gpu-mem-utilization", ["--gpu-memory-utilization"]),
        ("--disable-logs", []), ("--enable-logs-of-requests", []), ("--model-len", []),
        ("--tp-size", ["--tensor-parallel-size"]), ("--disable-prefix-cache", ["--disable-prefix-caching"]),
    ],
)  # fmt: skip
def test_what_a_misspelt_flag_was_meant_to_be(word: str, meant: list[str]) -> None:
    names = ["--max-model-len", "--attention-backend", "--kv-cache-dtype", "--tensor-parallel-size",
             "--enable-log-requests", "--gpu-memory-utilization", "--disable-log-stats",
             "--mm-encoder-attn-backend", "--disable-prefix-caching"]  # fmt: skip
    assert close(word, names, 0.75) == meant


@pytest.mark.parametrize("code_is_there", [True, False])
def test_the_model_s_own_code_is_a_way_that_is_said_where_nobody_knows_what_it_does(
    tmp_path: Path, code_is_there: bool
) -> None:
    """It is no offer: attnfit does not run that code."""
    config = {"model_type": "mymodel", "architectures": ["LlamaForCausalLM"],
              "auto_map": {"AutoConfig": "configuration_mine.MyConfig"}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    if code_is_there:
        (tmp_path / "configuration_mine.py").touch()
    report = check(["vllm", "serve", str(tmp_path)], gpu="h100", engine="vllm==0.33.0")
    assert report.verdict == "refused"
    (said,) = [step for step in report.steps if "--trust-remote-code may help" in step.text]
    assert ("with configuration_mine.py beside config.json" in said.text) != code_is_there
    assert said.argv is None
    assert not said.cost
    assert "look at it first" in said.gives_up
    trusted = check(["vllm", "serve", str(tmp_path), "--trust-remote-code"], gpu="h100", engine="vllm==0.33.0")
    put = any(step.text.startswith("put configuration_mine.py") for step in trusted.steps)
    assert put != code_is_there


def test_fix_of_a_launch_that_passes_is_the_launch() -> None:
    words = ["vllm", "serve", GLM, "-tp", "8"]
    assert fix(check(words, gpu="h200x8", engine="vllm==0.33.0"))[0] == " ".join(words) + "\n"


def test_the_plan_is_in_the_json_answer() -> None:
    shown = as_dict(check(STORY_2, gpu="rtx-pro-6000", count=8, engine="vllm==0.33.0"))
    first = shown["steps"][0]
    assert (first["kind"], first["cost"], first["breaks"]) == ("dtype", int(Cost.DTYPE), False)
    assert first["changes"] == [
        {"name": "--dtype", "before": "--dtype float16", "after": None, "variable": False, "together": False}
    ]
    assert set(shown["plan"]) == {"useless", "because", "tried", "stopped_early"}
    assert shown["plan"]["tried"] > 0


def test_a_config_class_that_insists_on_a_window_refuses_to_lose_it(tmp_path: Path) -> None:
    """Found by proofs/planner.py, as an internal error."""
    (tmp_path / "config.json").write_text(json.dumps(configs()["deepseek-ai__DeepSeek-V4-Flash"]["config"]), "utf-8")
    words = ["vllm", "serve", str(tmp_path), "-tp", "8", "--disable-sliding-window"]
    report = ask(words, "h200", 8, "vllm==0.33.0", planned=True)
    assert "Field 'sliding_window' expected int, got NoneType" in (report.launch.error or "")
    assert report.steps[0].argv == tuple(words[:-1])


# ---- what an offer says of itself ------------------------------------------------------------------------------------


def test_an_offer_is_never_named_and_priced_by_a_part_that_it_no_longer_has() -> None:
    """Of our backend with another KV cache only the KV cache is left: that is no plug-in, and dropped already."""
    words = ["vllm", "serve", GLM, "-tp", "4", "--kv-cache-dtype", "nvfp4"]
    report = check(words, gpu="rtx-5090", count=4, engine="vllm==0.33.0")
    assert report.steps[0].argv == tuple(words[:-2])
    for step in report.steps:
        ours = bool(step.installs) or any("attnfit" in change.name.lower() for change in step.changes)
        assert ("plugin" in step.kind, "ours was compiled" in step.gives_up) == (ours, ours), step.text
    assert sum(not step.installs for step in report.steps) == 1


@pytest.mark.parametrize(
    ("model", "flags", "where", "lost"),
    [
        ("Qwen__Qwen3-8B", ["--kv-cache-dtype", "fp8_e4m3"], ("v100", 1),
         "room: the KV cache is held in float16 instead of fp8_e4m3"),
        ("Qwen__Qwen2.5-VL-7B-Instruct", ["-tp", "8"], ("l40s", 8), "GPUs: the model is divided among 4 instead of 8"),
        ("Qwen__Qwen2.5-VL-7B-Instruct", ["-tp", "3"], ("l40s", 3), "GPUs: the model is divided among 2 instead of 3"),
    ],
)  # fmt: skip
def test_what_an_offer_loses_is_said_whatever_flag_it_changes(
    model: str, flags: list[str], where: tuple[str, int], lost: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(configs()[model]["config"]), "utf-8")
    report = ask(["vllm", "serve", str(tmp_path), *flags], *where, "vllm==0.33.0", planned=True)
    assert report.steps[0].gives_up == lost
    whole = [step for step in report.steps if "--pipeline-parallel-size" in (step.argv or ())]
    assert not any("divided among" in step.gives_up for step in whole), "as many GPUs, one behind the other"


def test_on_fewer_gpus_than_the_sizes_ask_for_a_split_that_uses_them_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(configs()["Qwen__Qwen2.5-VL-7B-Instruct"]["config"]), "utf-8")
    sizes = {"-tp": 3, "--pipeline-parallel-size": 2, "--decode-context-parallel-size": 2}
    words = ["vllm", "serve", str(tmp_path), *(str(word) for pair in sizes.items() for word in pair)]
    report = ask(words, "l40s", 3, "vllm==0.30.0", planned=True)
    assert list(wrong(report, words, "l40s", 3, "vllm==0.30.0")) == []
    used = []
    for step in report.steps:
        argv = list(step.argv or ())
        tp, stages, dcp = (int(argv[argv.index(name) + 1]) for name in sizes)
        used.append(tp * stages)
        assert dcp == 1
    assert max(used) == 3, "as many as there are"
    assert not report.plan.stopped_early
    assert len({step.argv for step in report.steps}) == len(report.steps)


@pytest.mark.parametrize(
    ("model", "flags", "where"),
    [
        ("stepfun-ai__Step-3.7-Flash", ["--quantization", "awq"], ("h100", 8, "vllm==0.14.1")),
        ("zai-org__GLM-5", ["--no-such-flag", "3"], ("rtx-3060", 1, "vllm==0.27.0")),
        ("stepfun-ai__Step-3.7-Flash", ["-tp", "3"], ("rtx-3060", 3, "vllm==0.13.0")),
    ],
)
def test_a_refusal_without_a_cure_never_ends_without_a_reason(
    model: str, flags: list[str], where: tuple[str, int, str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(configs()[model]["config"]), "utf-8")
    report = ask(["vllm", "serve", str(tmp_path), *flags], *where, planned=True)
    assert not any(step.argv for step in report.steps)
    assert report.plan.because
    assert report.plan.useless


def test_no_help_is_of_a_change_alone_and_says_how_it_ends(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(configs()["Qwen__Qwen3-8B"]["config"]), "utf-8")
    words = ["vllm", "serve", str(tmp_path), "--dtype", "bfloat16", "--attention-backend", "FLASH_ATTN"]
    report = ask(words, "t4", 1, "vllm==0.33.0", planned=True)
    assert "--dtype" in report.steps[0].text
    said = [text for text in report.plan.useless if text.startswith("another dtype")]
    assert said
    for text in said:
        assert " asked alone; " in text


def test_fix_says_whose_opinion_it_is_where_the_release_has_no_book_of_its_own() -> None:
    words = ["vllm", "serve", GLM, "-tp", "8"]
    command, said = fix(check(words, gpu="h200x8", engine="vllm==9.9"))
    assert command == " ".join(words) + "\n"
    assert said == "only the opinion of the nearest rule book: 9.9 has none of its own\n"


def test_a_config_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for words in (["--config", str(tmp_path / "nope.yaml")], [f"--config={tmp_path / 'nope.yaml'}"]):
        with pytest.raises(UsageError, match=r"nope\.yaml: no such file"):
            check(["vllm", "serve", *words], gpu="h100", engine="vllm==0.33.0")


def test_a_key_of_the_attention_config_costs_what_its_flag_costs() -> None:
    price = engine("vllm").price
    assert price("--attention-config.backend") == price("-ac.backend") == price("--attention-backend") == Cost.BACKEND
    assert price("--compilation-config.pass_config") == Cost.GRAPHS
    assert price("--no-such.thing") == Cost.FEATURE


def test_a_flag_keeps_the_form_in_which_it_was_written() -> None:
    words = ["vllm", "serve", GLM, "--tensor-parallel-size=3", "--dtype=float16"]
    report = check(words, gpu="h200x8", engine="vllm==0.33.0")
    for step in report.steps:
        if step.kind in ("split", "dtype"):
            assert "--tensor-parallel-size" not in (step.argv or ())
            assert "--dtype" not in (step.argv or ())
    assert any("--tensor-parallel-size=4" in (step.argv or ()) for step in report.steps), [s.text for s in report.steps]
