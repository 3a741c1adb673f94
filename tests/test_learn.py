"""`attnfit learn`: what it writes is what the engine's own code does, or it says unknown, or it refuses to write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import learn_engine
from attnfit.core import Status
from attnfit.engines.vllm.book import Book
from attnfit.engines.vllm.learn import learn, same
from attnfit.engines.vllm.learn.coverage import Coverage
from attnfit.engines.vllm.learn.generate import Generator
from attnfit.engines.vllm.row import question_of, row
from attnfit.errors import UsageError
from attnfit.witness.cache import Source

QUESTION = {"capability": "9.0", "head_size": 128, "dtype": "bfloat16", "hf": {"kv_lora_rank": 512}}


def learned(root: Path, combination: str = learn_engine.COMBINATION, **options: Any) -> learn.Learned:
    learn_engine.write(root, combination)
    source = Source(root=str(root), version="0.0.1", env={"package": True}, origin="here")
    return learn.learn(source, how="a test", questions=300, seed=1, **options)


def ask(book: Book, **changed: Any) -> dict[str, Any]:
    q = question_of({**QUESTION, **changed})
    return row(q, book.select(q))


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    return Book(learned(tmp_path_factory.mktemp("engine")).raw)


def test_a_learned_book_has_replayed_without_a_disagreement(tmp_path: Path) -> None:
    found = learned(tmp_path)
    assert (found.replay.disagreements, found.replay.unknown, found.unknown) == (0, 0, [])
    assert found.replay.questions >= 300
    assert json.loads(found.raw)["provenance"]["replay"]["disagreements"] == 0


def test_the_choice_and_its_order_depend_on_the_capability(book: Book) -> None:
    assert ask(book)["valid"] == ["FAST", "SLOW"]
    assert ask(book, capability="8.0")["chosen"] == "SLOW"


def test_reasons_come_in_the_engine_s_order_and_words(book: Book) -> None:
    got = ask(book, use_mla=True, dtype="float32", hf={"kv_lora_rank": 128}, head_size=96)
    assert got["refused"] == {
        "FAST": ["dtype not supported", "kv_lora_rank 256 or 512, got 128"],
        "SLOW": ["head_size not supported", "dtype not supported"],
    }
    assert got["engine_message"] == (
        "ValueError: nothing for AttentionSelectorConfig(head_size=96, dtype=torch.float32, kv_cache_dtype='auto', "
        "block_size=None, use_mla=True): {FAST: [dtype not supported, kv_lora_rank 256 or 512, got 128], "
        "SLOW: [head_size not supported, dtype not supported]}"
    )


def test_an_absent_attribute_prints_as_the_engine_prints_it(book: Book) -> None:
    assert ask(book, use_mla=True, hf={})["refused"]["FAST"] == ["kv_lora_rank 256 or 512, got None"]
    assert ask(book, use_mla=True, hf=None)["chosen"] == "FAST"


def test_an_explicit_backend_is_refused_with_the_engine_s_text(book: Book) -> None:
    got = ask(book, backend="FAST", capability="8.6")
    assert got["engine_message"] == (
        "ValueError: AttentionBackendEnum.FAST cannot: ['needs 9.0, not DeviceCapability(major=8, minor=6)']"
    )


def test_a_field_the_platform_drops_counts_only_where_it_is_not_dropped(book: Book) -> None:
    """The engine chooses without the block size; asked directly, its backends would refuse it."""
    got = ask(book, block_size=24)
    assert got["chosen"] == "FAST"
    assert got["refused"] == {}
    assert got["every_backend"]["FAST"] == ["block_size not supported"]


def test_every_reason_says_where_what_and_why(book: Book) -> None:
    selection = book.select(question_of({**QUESTION, "use_mla": True, "hf": {"kv_lora_rank": 128}}))
    (reason,) = selection.verdicts[0].reasons
    assert (reason.code, reason.required, reason.observed) == (
        "combination",
        "kv_lora_rank 256, 512",
        "kv_lora_rank 128",
    )
    assert reason.where.startswith("vllm/v1/attention/backends/fast.py:")


def test_values_outside_the_exploration_are_unknown(book: Book) -> None:
    selection = book.select(question_of({**QUESTION, "capability": "13.0"}))
    assert selection.chosen is None
    assert "13.0" in selection.unknown
    selection = book.select(question_of({**QUESTION, "use_mla": True, "hf": {"kv_lora_rank": "512"}}))
    fast = selection.verdicts[0]
    assert (fast.status, fast.unknown) == (Status.UNKNOWN, "hf.kv_lora_rank is str, not a number")


@pytest.mark.parametrize(
    ("combination", "named"),
    [
        ("return 'no' if torch.version.cuda == '12' else None", "torch.version.cuda"),
        ("return 'no' if hash(head_size) % 2 else None", "head_size"),
        ("return 'no' if head_size / 2 > 3 else None", "head_size"),
        ("return 'no' if head_size > 4096 else None", "4096"),
    ],
)
def test_what_cannot_be_followed_is_unknown_with_its_place(tmp_path: Path, combination: str, named: str) -> None:
    """A stub, an opaque use of a number, a constant beyond the proof: never a guess."""
    learn_engine.write(tmp_path, combination)
    source = Source(root=str(tmp_path), version="0.0.1", env={}, origin="here")
    with learn.Witness(source.root, "0.0.1", {}, modules=["attnfit.engines.vllm.learn.job"]) as witness:
        body = witness.call("learn")
    (unknown,) = learn.unknowns(body)
    assert named in unknown
    assert "vllm/v1/attention/backends/fast.py:" in unknown or "beyond" in unknown


def test_one_disagreement_and_no_book_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A book that says a word differently is refused, showing the question."""
    real = learn._whole

    def wrong(*args: Any) -> Any:
        return json.loads(json.dumps(real(*args)).replace("dtype not supported", "dtype unsupported"))

    monkeypatch.setattr(learn, "_whole", wrong)
    monkeypatch.setenv("ATTNFIT_DATA", str(tmp_path / "data"))
    learn_engine.write(tmp_path / "engine")
    with pytest.raises(learn.Disagreement, match="dtype unsupported"):
        learn.run(str(tmp_path / "engine"), questions=200, seed=1, say=lambda text: None)
    assert not (tmp_path / "data").exists()


def test_the_generator_reaches_every_branch_and_every_text(book: Book) -> None:
    generator, coverage = Generator(book, 3), Coverage(book)
    for env in generator.environments(3):
        for question in generator.questions(300, env):
            coverage.see(book.values_of(question_of(question), book.environment))
    report = coverage.report()
    assert report["branches"][0] == report["branches"][1]
    assert report["texts"][0] == report["texts"][1]


def test_the_same_seed_gives_the_same_questions(book: Book) -> None:
    one, other = (list(Generator(book, 5).questions(50, {})) for _ in range(2))
    assert one == other
    assert one != list(Generator(book, 6).questions(50, {}))


def test_equal_rules_are_equal_whatever_the_line_numbers(tmp_path: Path) -> None:
    one = learned(tmp_path / "one").raw
    shifted = "\n\n" + learn_engine.COMBINATION
    assert same.equal(one, learned(tmp_path / "two", shifted).raw)
    changed = learn_engine.COMBINATION.replace("512)", "640)")
    assert not same.equal(one, learned(tmp_path / "three", changed).raw)


def test_a_damaged_book_is_one_clear_error(book: Book) -> None:
    with pytest.raises(learn.AttnfitError, match="not a rule book"):
        Book(b"{")
    other = msgspec.json.encode({**json.loads(msgspec.json.encode(book.written)), "format": 99})
    with pytest.raises(learn.AttnfitError, match="format 99"):
        Book(other)


def test_a_book_that_nothing_would_read_is_said_and_one_from_no_questions_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNFIT_DATA", str(tmp_path / "data"))
    learn_engine.write(tmp_path / "engine")
    with pytest.raises(UsageError, match="-5 questions prove nothing"):
        learn.run(str(tmp_path / "engine"), questions=-5, say=lambda text: None)
    assert not (tmp_path / "data").exists()
    said: list[str] = []
    path = learn.run(str(tmp_path / "engine"), questions=50, seed=1, say=said.append)
    assert not any("goes on using" in text for text in said)
    monkeypatch.setattr(learn.releases, "shipped", lambda: [path.stem])
    learn.run(str(tmp_path / "engine"), questions=50, seed=1, say=said.append)
    assert any(f"has a book of {path.stem} already, which it goes on using" in text for text in said)
