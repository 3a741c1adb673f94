"""Where SGLang's answers come from: what is here is taken before anything is fetched, and what is missing is said."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

import sglang_tiny as tiny
from attnfit.engines.sglang import answers, case
from attnfit.engines.sglang.answers import Answer, Case
from attnfit.errors import UnknownAnswer, UsageError
from attnfit.witness import cache, sources
from attnfit.witness.cache import Source
from attnfit.witness.client import WitnessError

HERE = Source(root="/nowhere", version="0.5.9", env={}, origin="sglang-0.5.9-py3-none-any.whl")
CASE: Case = case.Case(model="m", config=tiny.DENSE, hf_quant=None, files=None, capability="9.0", gpu_name="",
                       gpu_mem_gb=80.0, gpus=1, argv=["--model-path", "m"], variables={}, facts={})  # fmt: skip


class Child(tiny.Tiny):
    """The witness's child, in this process."""

    opened: ClassVar[list[Source]] = []

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.opened.append(source)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    Child.opened = []
    witness, compact = ModuleType("tiny_witness"), ModuleType("tiny_compact")
    witness.Child = Child  # type: ignore[attr-defined]
    compact.releases = lambda: ["0.5.9"]  # type: ignore[attr-defined]
    compact.answer = shipped  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tiny_witness", witness)
    monkeypatch.setitem(sys.modules, "tiny_compact", compact)
    monkeypatch.setattr(answers, "WITNESS", "tiny_witness")
    monkeypatch.setattr(answers, "COMPACT", "tiny_compact")
    monkeypatch.setattr(answers, "_have", lambda module: module in sys.modules)
    monkeypatch.setattr(cache, "kept", lambda distribution, name: None)
    monkeypatch.setattr(sources, "find", offline)
    for name in ("ATTNFIT_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    answers.choose.cache_clear()


def shipped(asked: Case, version: str) -> Answer:
    """A compact form that knows launches without flags."""
    if len(asked["argv"]) > 2:
        return answers.nothing("a flag the compact form was not proven on")
    return Answer(ok=True, unknown=[], prefill="fa3", decode="fa3")


def offline(distribution: Any, spec: str, *, offline: bool = False, say: Any = None) -> Source:
    raise UnknownAnswer("no package index can be reached")


def with_flags(*flags: str) -> Case:
    return case.Case(**{**CASE, "argv": [*CASE["argv"], *flags]})


def test_sources_in_the_users_cache_come_before_the_shipped_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "kept", lambda distribution, name: HERE if name == "sglang-0.5.9" else None)
    asker = answers.choose("0.5.9")
    assert asker.ask(CASE)["ok"] is True
    assert Child.opened == [HERE]
    assert asker.origin == f"its own code, {HERE.origin}"


def test_a_source_the_user_names_comes_before_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "kept", lambda distribution, name: pytest.fail("the cache was asked"))
    monkeypatch.setattr(sources, "find", lambda distribution, spec, **_: HERE if spec == "./tree" else None)
    assert answers.choose("0.5.9", "./tree").origin.endswith(HERE.origin)


def test_the_shipped_form_answers_what_it_knows_without_source_or_network() -> None:
    asker = answers.choose("0.5.9")
    assert asker.ask(CASE)["prefill"] == "fa3"
    assert Child.opened == []


def test_what_the_shipped_form_does_not_know_is_asked_of_fetched_sources_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "find", lambda distribution, spec, **_: HERE)
    asker = answers.choose("0.5.9")
    asker.ask(CASE)
    assert Child.opened == []
    assert asker.ask(with_flags("--tp", "8"))["ok"] is True
    asker.ask(CASE)
    assert Child.opened == [HERE]  # one child for the whole run


def test_what_its_own_code_left_open_when_the_form_was_made_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find", lambda distribution, spec, **_: HERE)
    left_open = Answer(ok=None, stage="backend-init", unknown=["a kernel was asked"])
    monkeypatch.setattr(sys.modules["tiny_compact"], "answer", lambda case, version: dict(left_open))
    assert answers.choose("0.5.9").ask(CASE) == left_open
    assert Child.opened == []


def test_where_nothing_can_be_fetched_the_answer_is_unknown_and_says_what_to_run() -> None:
    answer = answers.choose("0.5.9").ask(with_flags("--tp", "8"))
    assert answer["ok"] is None
    assert "attnfit learn sglang==0.5.9" in answer["unknown"][-1]
    other = answers.choose("0.5.12.post1").ask(CASE)
    assert other["ok"] is None
    assert "no package index can be reached" in other["unknown"][0]
    assert "attnfit learn sglang==0.5.12.post1" in other["unknown"][0]


@pytest.mark.parametrize(("name", "value", "expected"), [("HF_HUB_OFFLINE", "1", True), ("HF_HUB_OFFLINE", "0", False),
                                                         ("ATTNFIT_OFFLINE", "yes", True)])  # fmt: skip
def test_nothing_is_fetched_for_who_says_so(
    name: str, value: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bool] = []

    def find(distribution: Any, spec: str, *, offline: bool, say: Any) -> Source:
        said.append(offline)
        return HERE

    monkeypatch.setattr(sources, "find", find)
    monkeypatch.setenv(name, value)
    answers.choose("0.5.23")
    assert said == [expected]


def test_a_child_that_dies_leaves_one_case_unknown_and_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "kept", lambda distribution, name: HERE)
    asker = answers.choose("0.5.9")
    asker.ask(CASE)
    with monkeypatch.context() as patch:

        def dies(self: Child, asked: Case) -> Answer:
            raise WitnessError("the witness for 0.5.9 was killed")

        patch.setattr(Child, "ask", dies)
        assert asker.ask(CASE)["unknown"] == ["the witness for 0.5.9 was killed"]
    assert asker.ask(CASE)["ok"] is True
    assert len(Child.opened) == 2


def test_a_source_of_another_release_is_not_taken_for_the_one_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnfit.engines.sglang import ENGINE

    monkeypatch.setattr(sources, "find", lambda distribution, spec, **_: HERE)
    with pytest.raises(UsageError, match=r"give --engine sglang==0\.5\.9"):
        ENGINE.release("0.5.23").witnessed("./tree")
    assert ENGINE.release("0.5.9").witnessed("./tree").asker.origin.endswith(HERE.origin)


def test_for_a_variation_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan tries dozens of changes; the answer to the launch itself must not wait for a package index."""
    made: list[str] = []

    def further() -> answers.Asker:
        made.append("fetched")
        return answers.Nobody("no index")

    def shipped(case: Case, version: str) -> Answer:
        return answers.nothing("outside the form")

    monkeypatch.setattr(answers, "import_module", lambda name: SimpleNamespace(answer=shipped))
    asker = answers.Compact("0.5.9", further)

    found = asker.at_hand([CASE, CASE])

    assert made == []
    assert [answer["ok"] for answer in found] == [None, None]
    assert "attnfit learn sglang==0.5.9" in found[0]["unknown"][-1]
    asker.ask(CASE)
    asker.ask(CASE)
    assert made == ["fetched"]  # asked for once, not for every launch


def test_many_variations_are_answered_in_order_by_several_children(monkeypatch: pytest.MonkeyPatch) -> None:
    class Child:
        def __init__(self, source: object) -> None:
            self.asked = 0

        def ask(self, case: Case) -> Answer:
            return answers.nothing(case["argv"][-1])

        def close(self) -> None:
            pass

    monkeypatch.setattr(answers, "import_module", lambda name: SimpleNamespace(Child=Child))
    asker = answers.Witnessed(cast(Source, SimpleNamespace(origin="here", version="0.5.9")))

    found = asker.at_hand([with_flags("--port", str(number)) for number in range(60)])

    assert [answer["unknown"] for answer in found] == [[str(number)] for number in range(60)]
    asker.close()
