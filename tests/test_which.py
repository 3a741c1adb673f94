"""`attnfit which`: every release answers what `check` says of it; spans, the nearest release, text and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnfit.engines import engine
from attnfit.engines.sglang.answers import choose
from attnfit.engines.vllm.ours import FACT
from attnfit.fleet.cell import ANSWERS, AS_IS, NO, UNKNOWN, WITH_A_CHANGE, Cell
from attnfit.fleet.which import Answered, Span, which
from attnfit.inputs.gpu import read_gpus
from attnfit.report import which as report
from fit_cases import configs
from fleet_cases import ENGINE, check, differences, subject, write
from test_cli import Run, same_as_snapshot

ROOT = Path(__file__).parent.parent
RELEASES = tuple(engine(ENGINE).releases())


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    choose.cache_clear()
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path))  # no engine sources
    monkeypatch.setenv("ATTNFIT_OFFLINE", "1")  # `which` sets it; this takes it away again
    for name in ("NO_COLOR", "TERM", "ATTNFIT_GPU", "ATTNFIT_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    yield
    choose.cache_clear()


@pytest.fixture
def attnfit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(monkeypatch, capsys)


@pytest.mark.parametrize("seed", range(6))
def test_a_release_answers_what_check_says_of_it(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    model, gpu = random.choice(sorted(configs())), random.choice(["h200", "t4", "l40s", "rtx-pro-6000-server", "b300"])
    count = random.choice([1, 8])
    place = write(tmp_path / model, model)
    answered = which(subject(place), random.choice(RELEASES), read_gpus(gpu, count))
    assert sorted(release for span in answered.spans for release in span.releases) == sorted(RELEASES)
    for span in answered.spans:
        assert differences(span.cell, check(place, gpu, count, span.release)) == []
        for release in random.sample(span.releases, min(2, len(span.releases))):
            found = check(place, gpu, count, release)
            assert (found.verdict, found.launch.ok is None) == (span.cell.verdict, span.cell.answer == UNKNOWN), release
            if span.cell.answer == AS_IS:
                assert {each.selection.chosen for each in found.launch.layers} - {None} == set(
                    span.cell.serves.split(", ")
                ) - {""}


def _cell(answer: str, why: str = "") -> Cell:
    return Cell(count=1, answer=answer, verdict="passes" if answer == AS_IS else "refused", why=why)


ANSWERED = st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=12)


@given(ANSWERED, st.data())
def test_the_nearest_release_is_the_nearest_and_of_two_the_newer(answers: list[str], data: st.DataObject) -> None:
    releases = tuple(f"0.{number}.0" for number in range(len(answers)))
    spans = tuple(Span(releases=(r,), release=r, cell=_cell(a)) for r, a in zip(releases, answers, strict=True))
    here = data.draw(st.integers(0, len(answers) - 1))
    found = Answered(engine="x", asked=releases[here], releases=releases, spans=spans, launched=()).nearest()
    good = [number for number, answer in enumerate(answers) if answer == AS_IS]
    if not good:
        assert found is None
        return
    distance = min(abs(number - here) for number in good)
    assert found == releases[max(number for number in good if abs(number - here) == distance)]


@given(ANSWERED)
def test_spans_hold_every_release_once_and_part_what_differs(answers: list[str]) -> None:
    releases = tuple(f"0.{number}.0" for number in range(len(answers)))
    cells = dict(zip(releases, (_cell(answer, f"{answer} in X") for answer in answers), strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnfit.fleet.which._plain", lambda subject, version, on: cells[version])
        patch.setattr("attnfit.fleet.which._changed", lambda subject, version, found, on: found)
        engine_ = type("Engine", (), {"name": "x", "apart": True, "releases": lambda self: releases})()
        subject_ = type("Subject", (), {"engine": engine_})()
        found = which(subject_, releases[-1], None)  # type: ignore[arg-type]
    assert sorted(r for span in found.spans for r in span.releases) == sorted(releases)
    place = {release: span for span in found.spans for release in span.releases}
    assert all(place[release].cell.answer == answer for release, answer in zip(releases, answers, strict=True))
    known = [r for r, answer in zip(releases, answers, strict=True) if answer != UNKNOWN]
    for one, other in pairwise(known):
        same = cells[one].answer == cells[other].answer
        assert (place[one] is place[other]) is same, "alike neighbours stand together, whatever is unknown between"


def test_text_is_what_it_was(attnfit: Run) -> None:
    code, out, err = attnfit("which", "examples/glm-5", "--gpu", "rtx-pro-6000-server", "-n", "8")
    assert (code, err) == (0, "")
    same_as_snapshot("which.txt", out)
    assert not [line for line in out.splitlines() if len(line) > 80]


def test_a_release_that_cannot_be_asked_is_said_to_be_unknown(attnfit: Run) -> None:
    words = ["which", "examples/qwen3.5-397b-nvfp4", "--gpu", "h200x8", "--engine", "sglang", "--json"]
    _, out, _ = attnfit(*words)
    (answered,) = json.loads(out)["engines"]
    unknown = [span for span in answered["spans"] if span["answer"] == UNKNOWN]
    assert sum(len(span["releases"]) for span in unknown) == len(answered["releases"]) - 2, "two are shipped"
    assert all("attnfit learn" in span["why"] for span in unknown)
    assert answered["nearest"] == "0.5.23"


def test_a_change_is_looked_for_where_no_release_serves(attnfit: Run) -> None:
    launch = ["--", "vllm", "serve", "examples/glm-5", "-tp", "8", "--dtype", "float16"]
    words = ["which", "--gpu", "rtx-pro-6000-server", "-n", "8", "--engine", "vllm==0.16.0", "--json"]
    code, out, _ = attnfit(*words, *launch)
    (answered,) = json.loads(out)["engines"]
    assert (code, answered["nearest"], answered["asked"]) == (0, None, "0.16.0")
    span = next(span for span in answered["spans"] if span["release"] == answered["nearest_with_a_change"])
    assert span["answer"] == WITH_A_CHANGE
    again = ["check", "--gpu", "rtx-pro-6000-server", "-n", "8", "--engine", f"vllm=={span['release']}", "--quiet"]
    facts = ["--env", f"{FACT}=yes"] if span["installs"] else []
    assert attnfit(*again, *facts, "--", *span["command"])[0] == 0


def test_json_has_the_documented_keys(attnfit: Run) -> None:
    _, out, _ = attnfit("which", "examples/glm-5", "--gpu", "h200x8", "--engine", "vllm", "--json")
    answer = json.loads(out)
    documented = (ROOT / "docs" / "where.md").read_text("utf-8")
    for key in [*answer, *answer["engines"][0], *answer["engines"][0]["spans"][0]]:
        assert f"`{key}`" in documented, f"{key} is not documented"
    assert answer["schema"] == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["which", "examples/glm-5"], 2, "no GPU"),
        (["which", "--gpu", "h200"], 2, "no model"),
        (["which", "no/such/dir/x", "--gpu", "h200"], 2, "no/such/dir/x"),
        (["which", "examples/glm-5", "--gpu", "h9000"], 2, "unknown GPU 'h9000'"),
        (["which", "examples/glm-5", "--gpu", "h200", "--engine", "vlm"], 2, "did you mean 'vllm'"),
        (["which", "examples/glm-5", "--gpu", "h200", "--engine", "vllm==banana"], 2, "banana"),
        (["which", "examples/glm-5", "--gpu", "h200", "--engine", "vllm==0.9.0"], 3, "0.12.0"),
        (["which", "examples/glm-5", "--gpu", "h200", "--fetch", "--offline"], 2, "contradict"),
        (["which", "examples/glm-5", "--gpu", "h200", "--json", "--quiet"], 2, "give one of them"),
    ],
)
def test_bad_input_is_one_error_with_the_right_exit_code(attnfit: Run, words: list[str], code: int, says: str) -> None:
    got, out, err = attnfit(*words)
    assert (got, out) == (code, "")
    assert says in err
    assert "Traceback" not in err


def test_what_no_release_knows_exits_3(attnfit: Run) -> None:
    code, out, _ = attnfit("which", "examples/glm-5", "--gpu", "mi300x", "--engine", "vllm", "--quiet")
    assert (code, "missing" in out) == (3, True)


def test_the_words_for_a_span_name_no_release_that_is_not_in_it() -> None:
    cell = Cell(count=1, answer=NO, verdict="refused", why="0.1.0 does not take it")
    spans = (Span(releases=("0.1.0", "0.2.0"), release="0.1.0", cell=cell),)
    answered = Answered(engine="x", asked="0.2.0", releases=("0.1.0", "0.2.0"), spans=spans, launched=())
    assert "X does not take it" in report.render([answered], read_gpus("h200", 1))


@pytest.mark.parametrize(
    ("memory", "said"), [("too small", "too little memory"), ("fits", ""), ("", "memory not measured")]
)
def test_the_headline_agrees_with_the_groups_on_memory(memory: str, said: str) -> None:
    serving = Cell(count=1, answer=AS_IS, verdict="passes", serves="A", memory=memory)
    small = Cell(count=1, answer=AS_IS, verdict="passes", serves="A", memory="too small")
    both = (
        Span(releases=("0.1.0",), release="0.1.0", cell=small),
        Span(releases=("0.2.0",), release="0.2.0", cell=serving),
    )
    answered = Answered(engine="x", asked="0.1.0", releases=("0.1.0", "0.2.0"), spans=both, launched=())
    text = report.render([answered], read_gpus("h200", 1))
    assert said in text.splitlines()[-1]
    first = report.headline(answered)
    if memory == "too small":
        assert first == "x: too little memory, else served by 0.1.0 to 0.2.0"
        assert answered.nearest() is None
    else:
        assert first == "x: served by 0.2.0; nearest to 0.1.0: 0.2.0; too little memory in 0.1.0"
