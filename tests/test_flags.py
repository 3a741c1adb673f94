"""Flags mean what the release's own parser makes of them; a refusal carries the parser's words."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnfit.engines.vllm.flags import checks, known_releases, load_table, parse_flags
from attnfit.engines.vllm.launch.state import Refusal, Unknown
from attnfit.errors import AttnfitError, InputError, UnknownAnswer

DATA = Path(__file__).parent / "data" / "flags"
REFUSED = "ValueError: argument parser refused the flags (exit 2)"


def values(*argv: str, release: str = "0.33.0") -> dict:
    return parse_flags(release, argv).values


def detail(*argv: str, release: str = "0.33.0") -> str:
    with pytest.raises(Refusal) as caught:
        parse_flags(release, argv)
    assert caught.value.stage == "parse_flags"
    return caught.value.detail


@pytest.mark.parametrize("release", ["0.16.0", "0.23.0", "0.33.0"])
def test_the_real_parser_answered_the_same(release: str) -> None:
    """Random lists, answered by the engine itself: same verdict, same words, same values."""
    table = load_table(release)
    defaults = {f.dest: f.default for f in table.flags}
    for line in (DATA / f"{release}.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        if not row["ok"]:
            with pytest.raises(Refusal) as caught:
                parse_flags(table, row["argv"], form="module")
            words = caught.value.detail.split(": ")[0].split(" cannot be")[0]
            assert row["error"].startswith(("exit", words)), row
            continue
        got = parse_flags(table, row["argv"], form="module").values
        for dest, value in row["values"].items():
            if dest != "lora_modules":
                assert json.loads(json.dumps(got.get(dest, defaults.get(dest)))) == value or value != value, (row, dest)


def test_every_book_release_has_a_table_with_nothing_unknown() -> None:
    assert len(known_releases()) >= 22
    for release in known_releases():
        table = load_table(release)
        by_option = table.by_option()
        assert by_option["--tensor-parallel-size"] is by_option["-tp"]
        for flag in table.flags:
            assert flag.action in ("store", "bool", "true", "append", "lora", "help"), (release, flag)
            if flag.action in ("store", "append"):
                assert flag.type is not None, (release, flag)
        for name, spec in table.classes.items():
            for check in spec.get("checks", ()):
                known = (name, check["name"], check["digest"]) in checks.KNOWN
                # 0.13 to 0.15 fill the profiler's fields from variables: left unknown
                assert known or check["mode"] == "wrap" or name == "ProfilerConfig", (release, name, check)


def test_spellings() -> None:
    assert values("m", "-tp", "8", "--dtype=half") == {
        "model_tag": "m",
        "model": "m",
        "tensor_parallel_size": 8,
        "dtype": "half",
    }
    assert values("--tensor_parallel_size", "4")["tensor_parallel_size"] == 4
    assert values("--tensor-par", "2")["tensor_parallel_size"] == 2
    assert values("-O3")["optimization_level"] == "3"  # a number only once the configuration is built
    assert values("--max-model-len", "32k")["max_model_len"] == 32000
    assert values("--max-model-len", "1K")["max_model_len"] == 1024
    assert values("--no-enable-prefix-caching")["enable_prefix_caching"] is False
    assert values("-tp", "2", "-tp", "4")["tensor_parallel_size"] == 4


def test_json_and_dotted_keys_are_one_object() -> None:
    assert values("--hf-overrides", '{"a": 1}')["hf_overrides"] == {"a": 1}
    got = values(
        "-cc.cudagraph_mode=FULL", "-cc.pass_config.fuse_attn_quant", "true", "-cc.custom_ops+", "none,+silu_and_mul"
    )
    assert got["compilation_config"] == {
        "cudagraph_mode": "FULL",
        "pass_config": {"fuse_attn_quant": True},
        "custom_ops": ["none", "+silu_and_mul"],
    }
    assert values("--speculative-config.num_speculative_tokens", "2")["speculative_config"] == {
        "num_speculative_tokens": 2
    }


def test_the_parsers_own_words() -> None:
    assert detail("--no-such-flag").startswith("unrecognized arguments: --no-such-flag")
    assert detail("--tensor-paralel-size", "2").endswith("did you mean '--tensor-parallel-size'?")
    assert detail("--dtype", "int3").startswith("argument --dtype: invalid choice: 'int3' (choose from ")
    assert detail("-tp", "x") == "argument --tensor-parallel-size/-tp: invalid int value: 'x'"
    assert detail("-tp") == "argument --tensor-parallel-size/-tp: expected one argument"
    assert detail("--enable-p").startswith("ambiguous option: --enable-p could match ")
    assert detail("m", "extra") == "unrecognized arguments: extra"


def test_a_config_object_is_judged_as_the_release_would() -> None:
    assert "Unexpected keyword argument" in detail("--attention-config", '{"nope": 1}')
    assert "kv_role" in detail("--kv-transfer-config", '{"kv_connector": "NixlConnector"}')
    assert "Invalid JSON" in detail("-cc", "{")
    assert "custom_ops" in detail("-cc", '{"custom_ops": ["all", "none"]}')
    # the engine's own enum lookup escapes argparse with a KeyError
    with pytest.raises(Refusal) as caught:
        parse_flags("0.33.0", ["-cc", '{"cudagraph_mode": "fully"}'])
    assert caught.value.message == "KeyError: 'FULLY'"


def test_later_stages_judge_later_values() -> None:
    """What pydantic validates when the engine's configuration is built is no business of the parser."""
    assert values("--attention-backend", "no_such")["attention_backend"] == "no_such"
    assert values("--speculative-config", '{"method": "nonsense"}')["speculative_config"] == {"method": "nonsense"}


def test_releases_differ() -> None:
    assert values("--swap-space", "4", release="0.16.0")["swap_space"] == 4
    assert detail("--swap-space", "4").startswith("unrecognized arguments: --swap-space")
    assert values("-O.cudagraph_mode=FULL", release="0.12.0")["compilation_config"] == {"cudagraph_mode": "FULL"}
    with pytest.raises(UnknownAnswer, match=r"0\.33\.0"):
        load_table("0.99.0")


class TestConfigFile:
    def test_the_line_wins_over_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "c.yaml"
        file.write_text(
            "model: /m\ntensor-parallel-size: 2\ndtype: half\nenforce-eager: true\n"
            "compilation-config:\n  cudagraph_mode: FULL\n"
        )
        got = values("--config", str(file), "-tp", "4")
        assert got["tensor_parallel_size"] == 4
        assert got["model"] == "/m"
        assert got["enforce_eager"] is True
        assert got["compilation_config"] == {"cudagraph_mode": "FULL"}

    def test_an_unknown_key_is_an_unknown_flag(self, tmp_path: Path) -> None:
        file = tmp_path / "c.yml"
        file.write_text("nonsense: 1\n")
        assert detail("m", "--config", str(file)).startswith("unrecognized arguments: --nonsense")

    @pytest.mark.parametrize(
        ("content", "error"),
        [
            ("[1, 2]", "AttributeError: 'list' object has no attribute 'items'"),
            ("", "AttributeError: 'NoneType' object has no attribute 'items'"),
            ("3: 4", 'TypeError: can only concatenate str (not "int") to str'),
            ("a: [", "ParserError: "),
            ("a: \x00", "ReaderError: "),
        ],
    )
    def test_what_the_engine_raises_for_it(self, tmp_path: Path, content: str, error: str) -> None:
        file = tmp_path / "c.yaml"
        file.write_text(content)
        with pytest.raises(Refusal) as caught:
            parse_flags("0.33.0", ["m", "--config", str(file)])
        assert caught.value.message.startswith(error)

    def test_missing_directory_or_wrong_kind(self, tmp_path: Path) -> None:
        (tmp_path / "d.yaml").mkdir()
        for path, error in (
            (str(tmp_path / "no.yaml"), "FileNotFoundError"),
            (str(tmp_path / "d.yaml"), "IsADirectory"),
            ("x.json", "ValueError: Config file must be of a yaml/yml type"),
        ):
            with pytest.raises(Refusal) as caught:
                parse_flags("0.33.0", ["m", "--config", path])
            assert caught.value.message.startswith(error)
        with pytest.raises(Refusal, match="No config file specified"):
            parse_flags("0.33.0", ["m", "--config"])

    def test_a_bomb_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "c.yaml"
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
        file.write_text("\n".join(lines))
        with pytest.raises(InputError, match="expands to more than"):
            parse_flags("0.33.0", ["m", "--config", str(file)])

    def test_inside_a_container_it_is_unknown(self) -> None:
        with pytest.raises(Unknown, match="container"):
            parse_flags("0.33.0", ["m", "--config", "/etc/v.yaml"], files_here=False)


WORDS = st.one_of(
    st.sampled_from([o for f in load_table("0.33.0").flags for o in f.options]),
    st.text(max_size=20),
    st.sampled_from(["{", "[]", "-1", "--", "-cc.a=1", "1e999", '{"a":' * 300, "-O", "--config", "--model"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=8))
def test_no_list_of_words_is_a_traceback(argv: list[str]) -> None:
    with contextlib.suppress(Refusal, Unknown, AttnfitError):
        parse_flags("0.33.0", argv)


def test_a_megabyte_in_one_word() -> None:
    big = "x" * (1 << 20)
    assert values("m", "--served-model-name", big)["served_model_name"] == [big]
    assert detail("--" + big).startswith("unrecognized arguments")


def test_numbers_that_no_float_holds_are_judged_as_the_release_would() -> None:
    huge = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_size": 10**400, "nope": 1})
    assert "Unexpected keyword argument" in detail("--kv-transfer-config", huge)
    with pytest.raises(Refusal, match="OverflowError: cannot convert float infinity to integer"):
        parse_flags("0.33.0", ["--max-model-len", "9" * 400 + "k"])
