"""The next step after a refusal: what the engine's own words name, spelt as it was meant, and never another launch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from attnfit.core import Choice, Hazard, Launch, Status, Verdict
from attnfit.engines import Cost, Given, Move
from attnfit.engines.sglang.moves import moves
from attnfit.engines.sglang.moves_spelling import options, spelling

PLAIN = ("--model-path", "m", "--tp", "8")


def tried(argv: Sequence[str], launch: Launch, version: str = "0.5.23") -> list[Move]:
    return list(moves(Given(tuple(argv), "module", version, {}, 8, 8), launch))


def refused(error: str, stage: str = "arg-resolve", **more: object) -> Launch:
    return Launch(ok=False, stage=stage, error=error, **more)  # type: ignore[arg-type]


def test_a_flag_that_the_message_names_with_its_value_comes_first() -> None:
    said = "ValueError: --linear-attn-decode-backend flashinfer on SM100+ requires --mamba-ssm-dtype bfloat16, got None"
    found = tried([*PLAIN, "--linear-attn-decode-backend", "flashinfer"], refused(said))
    assert found[0].argv == (*PLAIN, "--linear-attn-decode-backend", "flashinfer", "--mamba-ssm-dtype", "bfloat16")
    assert any(move.text == "drop --linear-attn-decode-backend flashinfer" for move in found)


def by_cost(found: list[Move]) -> list[Move]:
    return sorted(found, key=lambda move: move.cost)


def test_the_release_s_own_choice_is_cheapest_and_slow_backends_are_dearer_than_fast_ones() -> None:
    found = tried([*PLAIN, "--attention-backend", "trtllm_mha"], refused("ValueError: no"))
    backends = [move for move in by_cost(found) if move.kind == "backend" and move.cost < Cost.DENSE]
    assert backends[0].text == "drop --attention-backend trtllm_mha"
    names = [move.argv[-1] for move in backends[1:]]
    assert names[0] == "triton"
    assert not {"trtllm_mha", "ascend", "aiter", "wave"} & set(names)
    assert names.index("torch_native") > names.index("fa3")


def test_candidates_that_were_asked_and_refuse_are_not_tried_again() -> None:
    verdicts = (
        Verdict("triton", Status.REFUSES),
        Verdict("flashinfer", Status.ACCEPTS),
        Verdict("fa3", Status.UNKNOWN),
    )
    choice = Choice(what="attention backend", flag="--attention-backend", verdicts=verdicts)
    found = tried([*PLAIN, "--attention-backend", "triton"], refused("AssertionError: no", choices=(choice,)))
    assert [move.argv[-1] for move in found[1:] if move.kind == "backend"] == ["flashinfer"]


def test_a_flag_that_does_nothing_here_is_the_cheapest_to_drop() -> None:
    hazard = Hazard("inert-flag", "it does nothing", flag="--enable-flashinfer-allreduce-fusion")
    argv = [*PLAIN, "--attention-backend", "fa3", "--enable-flashinfer-allreduce-fusion"]
    first = by_cost(tried(argv, refused("AssertionError: no", hazards=(hazard,))))[0]
    assert (first.argv, first.cost, first.kind) == (tuple(argv[:-1]), Cost.NOTHING, "inert")


def test_of_a_launch_that_starts_only_what_does_nothing_is_changed() -> None:
    hazard = Hazard("inert-flag", "it does nothing", flag="--enable-flashinfer-allreduce-fusion")
    argv = [*PLAIN, "--kv-cache-dtype", "fp8_e5m2", "--enable-flashinfer-allreduce-fusion"]
    (only,) = tried(argv, Launch(ok=True, stage="done", hazards=(hazard,)))
    assert only.argv == tuple(argv[:-1])
    assert tried(argv, Launch(ok=True, stage="done")) == []


def test_what_says_which_model_gpus_and_address_is_never_dropped() -> None:
    argv = [*PLAIN, "--host", "0.0.0.0", "--port", "1", "--api-key", "k", "--kv-cache-dtype", "fp8_e5m2"]
    for move in tried(argv, refused("ValueError: no")):
        assert {"--model-path", "--tp", "--host", "--port", "--api-key"} <= set(move.argv)


@pytest.mark.parametrize(
    ("argv", "said", "meant"),
    [
        (["--pp", "2"], "error: ambiguous option: --pp could match --pp-max-micro-batch-size, --pp-size",
         ["--pp-size", "2"]),
        (["--page_size", "64"], "error: unrecognized arguments: --page_size 64", ["--page-size", "64"]),
        (["--attention-backnd=fa3"], "error: unrecognized arguments: --attention-backnd=fa3",
         ["--attention-backend=fa3"]),
        (["--gpu-memory-use", "0.9"], "error: unrecognized arguments: --gpu-memory-use 0.9", []),
        (["--attention-backend", "tritn"], "error: argument --attention-backend: invalid choice: 'tritn' "
         "(choose from 'triton', 'fa3')", ["--attention-backend", "triton"]),
        (["--attention-backend", "FA3"], "error: argument --attention-backend: invalid choice: 'FA3' "
         "(choose from triton, fa3)", ["--attention-backend", "fa3"]),
    ],
)  # fmt: skip
def test_a_word_the_parser_does_not_take_is_put_as_it_was_meant(argv: list[str], said: str, meant: list[str]) -> None:
    first = next(spelling([*PLAIN, *argv], "0.5.9", f"launch_server.py: {said}"))
    assert first.argv == (*PLAIN, *meant)


def test_an_option_is_known_for_the_releases_that_have_it() -> None:
    assert "--linear-attn-backend" in options("0.5.10.post1")
    assert "--linear-attn-backend" not in options("0.5.9")
    assert "--nsa-prefill-backend" in options("0.5.9")
    assert {"--model-path", "--model", "--attention-backend"} <= set(options("0.5.23"))


def test_a_model_in_front_that_the_release_does_not_take_gets_its_option() -> None:
    found = moves(Given(("m", "--tp", "2"), "serve", "0.5.9", {}, 8, 8), refused("Exception: Error", "arg-parse"))
    assert next(found).argv == ("--model-path", "m", "--tp", "2")


def test_another_backend_is_cheaper_than_a_flag_less() -> None:
    verdicts = tuple(Verdict(name, Status.ACCEPTS) for name in ("triton", "flashinfer"))
    choice = Choice(what="attention backend", flag="--attention-backend", verdicts=verdicts)
    argv = [*PLAIN, "--kv-cache-dtype", "fp8_e5m2"]
    found = [move.text for move in by_cost(tried(argv, refused("ValueError: no", choices=(choice,))))]
    wanted = ["--attention-backend triton", "--attention-backend flashinfer", "drop --kv-cache-dtype fp8_e5m2"]
    assert sorted(found.index(text) for text in wanted) == [found.index(text) for text in wanted]


def test_speculative_decoding_is_dropped_as_a_whole() -> None:
    argv = [*PLAIN, "--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1"]
    found = next(move for move in tried(argv, refused("ValueError: no")) if "speculative decoding" in move.gives_up)
    assert found.whole
    assert found.argv == PLAIN


def test_a_model_of_sparse_attention_is_served_without_it_at_a_price() -> None:
    config = {"architectures": ["GlmMoeDsaForCausalLM"]}
    argv = ("--attention-backend", "trtllm_mla", "--dsa-prefill-backend", "fa3", "--dsa-decode-backend", "fa3")
    given = Given(argv, "module", "0.5.23", {}, 8, 8, config=config)
    found = [move for move in moves(given, refused("ValueError: no", "resolution")) if move.kind == "backend"]
    dense = [move for move in found if move.gives_up]
    assert [move.text for move in found[: -len(dense)]] == [
        "drop --attention-backend trtllm_mla",
        *(f"--attention-backend {name} instead of trtllm_mla" for name in ("dsa", "nsa")),
    ]
    assert {"triton", "fa3", "flashinfer"} < {move.argv[1] for move in dense}
    assert all(move.cost == Cost.DENSE and "sparse attention" in move.gives_up for move in dense)
    assert not {"qsa", "dsv4"} & {move.argv[1] for move in found}
