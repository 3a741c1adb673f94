"""The next step after a refusal: it is found where there is one, it passes, and nothing false is said of the rest."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnfit import check, cli
from attnfit.core import Report
from attnfit.engines.vllm.flags.table import load_table
from attnfit.engines.vllm.moves_flags import Flags
from attnfit.inputs.command import parse_command
from attnfit.inputs.rewrite import rewrite

GLM = str(Path(__file__).parent.parent / "examples" / "glm-5")
DENSE = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16", "head_dim": 128,
    "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 36, "max_position_embeddings": 40960, "vocab_size": 151936, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "rope_theta": 1000000, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_a_folder_of_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    models: dict[str, dict[str, Any]] = {"dense": DENSE, "v32": json.loads(Path(GLM, "config.json").read_text("utf-8"))}
    models["v32"] |= {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"}
    for name, config in models.items():
        Path(name).mkdir()
        Path(name, "config.json").write_text(json.dumps(config), "utf-8")
    Path("heavy").mkdir()
    Path("heavy", "config.json").write_text(json.dumps(DENSE), "utf-8")
    write_weights(Path("heavy", "model.safetensors"))
    Path("be.yaml").write_text("attention-backend: FLASHMLA\n", "utf-8")


def write_weights(path: Path) -> None:
    """The header of 15.3 GiB of weights, and a hole in place of them."""
    shapes = {"model.embed_tokens": (151936, 4096), "lm_head": (151936, 4096), "model.norm": (4096,)}
    for i in range(36):
        layer = f"model.layers.{i}."
        shapes |= {f"{layer}self_attn.{name}_proj": (1024, 4096) for name in "kv"}
        shapes |= {f"{layer}self_attn.{name}_proj": (4096, 4096) for name in "qo"}
        shapes |= {f"{layer}self_attn.{name}_norm": (128,) for name in "qk"}
        shapes |= {f"{layer}mlp.{name}_proj": (12288, 4096) for name in ("gate", "up")}
        shapes |= {f"{layer}mlp.down_proj": (4096, 12288)}
        shapes |= {f"{layer}{name}_layernorm": (4096,) for name in ("input", "post_attention")}
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": (at, end)}
        at = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


def answer(command: str, gpu: str = "h100x8", engine: str = "vllm==0.33.0") -> Report:
    return check(command, gpu=gpu, engine=engine)


def cures(report: Report) -> list[str]:
    return [" ".join(step.argv) for step in report.steps if step.argv]


def test_a_backend_from_a_variable_is_dropped_or_changed_where_the_variable_stands() -> None:
    asked = "VLLM_ATTENTION_BACKEND=FLASHMLA"
    for command in (
        f"env {asked} vllm serve v32 -tp 8",
        f"{asked} vllm serve v32 -tp 8",
        f"docker run --gpus all -e {asked} vllm/vllm-openai:v0.12.0 v32 -tp 8",
        f"docker run --gpus all --env={asked} vllm/vllm-openai:v0.12.0 v32 -tp 8",
        f"bash -c '{asked} vllm serve v32 -tp 8'",
    ):
        on_blackwell = cures(answer(command, "b200x8", "vllm==0.12.0"))
        assert on_blackwell == [command.replace("FLASHMLA", "FLASHMLA_SPARSE")], command
        on_hopper = answer(command, "h200x8", "vllm==0.12.0")
        assert on_hopper.steps[0].text.startswith(f"drop {asked}; then FLASHMLA_SPARSE serves it"), command
        assert "VLLM_ATTENTION_BACKEND" not in cures(on_hopper)[0]


def test_where_the_engines_own_choice_refuses_an_accepting_backend_is_named() -> None:
    report = answer("vllm serve v32 -tp 8", "b200x8", "vllm==0.12.0")
    assert report.verdict == "refused"
    assert cures(report) == ["VLLM_ATTENTION_BACKEND=FLASHMLA_SPARSE vllm serve v32 -tp 8"]


def test_a_backend_from_a_yaml_file_is_overridden_by_the_flag() -> None:
    report = answer("vllm serve v32 -tp 8 --config be.yaml", "h200x8")
    assert cures(report)[0].startswith("vllm serve v32 -tp 8 --config be.yaml --attention-backend ")


def test_no_backend_accepts_is_said_only_where_none_does() -> None:
    none = answer(f"vllm serve {GLM} -tp 8", "t4x8")
    assert none.plan.because[0].startswith("compute capability 7.5 and sparse MLA attention: either alone is served")
    assert any("another backend: all 33 of the release were asked, and refuse" in text for text in none.plan.useless)
    some = answer("export VLLM_ATTENTION_BACKEND=FLASHMLA; vllm serve v32 -tp 8", "b200x8", "vllm==0.12.0")
    assert not any("another backend" in text for text in some.plan.useless), "one accepts, and cannot be written there"


@pytest.mark.parametrize(
    ("flags", "cured"),
    [
        ("-tp 3", ["-tp 4", "-tp 2", "-tp 1 --pipeline-parallel-size 3"]),
        (
            "--tensor-parallel-size=3",
            [
                "--tensor-parallel-size=4",
                "--tensor-parallel-size=2",
                "--tensor-parallel-size=1 --pipeline-parallel-size 3",
            ],
        ),
        ("-tp 16", ["-tp 8", "-tp 4 --pipeline-parallel-size 2"]),
        ("-tp 4 -pp 4", ["-tp 4 -pp 2", "-tp 1 -pp 8"]),
        ("-tp two", ["-tp 8"]),
        ("-tp", ["-tp 8"]),
        ("-tp8", ["-tp 8"]),
        ("—tensor-parallel-size 8", ["--tensor-parallel-size 8"]),
        ("--tensor-paralel-size 8", ["--tensor-parallel-size 8"]),
        ("-tp 2 –dtype float16", ["-tp 2 --dtype float16"]),
        ("-tp 2 --dtpye float16 --max-modl-len 512", ["-tp 2 --dtype float16 --max-model-len 512"]),
        ("-tp 2 stray words", ["-tp 2"]),
        ("--config nosuch.yaml", [""]),
    ],
)
def test_flags_that_cannot_be_meant_so_are_put_right(flags: str, cured: list[str]) -> None:
    report = answer(f"vllm serve dense {flags}")
    assert report.verdict == "refused"
    assert cures(report) == [f"vllm serve dense {flag}".strip() for flag in cured]
    for command in cures(report):
        assert answer(command).verdict == "passes"


def test_a_flag_that_may_be_a_size_is_never_dropped_as_a_cure() -> None:
    for flags in ("-tpp 8", "--parallel 8"):
        report = answer(f"vllm serve dense {flags}")
        assert report.verdict == "refused"
        assert report.steps[0].text == "no change found; the engine stops at stage parse_flags", flags


def test_the_model_is_no_value_of_the_flag_before_it() -> None:
    report = answer("python -m vllm.entrypoints.openai.api_server --enforce-eager --dtype float8 --model dense")
    assert cures(report)[0] == "python -m vllm.entrypoints.openai.api_server --enforce-eager --model dense"


def test_more_gpus_can_be_made_visible_or_fewer_asked_for() -> None:
    report = answer("CUDA_VISIBLE_DEVICES=1 vllm serve dense -tp 2")
    assert cures(report) == [
        "CUDA_VISIBLE_DEVICES=1 vllm serve dense -tp 1",
        "CUDA_VISIBLE_DEVICES=1,0 vllm serve dense -tp 2",
    ]


def test_a_step_says_when_its_memory_is_in_doubt() -> None:
    step = answer(f"vllm serve {GLM} -tp 8 --dtype float16", "rtx-pro-6000-serverx8").steps[0]
    assert step.text.endswith("serves it; it runs out of memory if the weights are those that config.json tells")
    assert answer(" ".join(step.argv or ()), "rtx-pro-6000-serverx8").may_break
    roomy = answer("vllm serve heavy --attention-backend FLASHMLA").steps[0]
    assert roomy.text == "drop --attention-backend FLASHMLA; then FLASH_ATTN serves it"


def test_a_step_into_too_little_memory_takes_more_gpus_or_other_ones() -> None:
    refused = "vllm serve heavy --attention-backend FLASHMLA"
    two = answer(refused, "5080x2").steps[0]
    assert "drop --attention-backend FLASHMLA, and --tensor-parallel-size 2; then" in two.text
    assert answer(" ".join(two.argv or ()), "5080x2").verdict == "passes"
    one = answer(refused, "5080").steps[0]
    assert (one.argv, one.kind) == (None, "gpu"), "no command that runs out of memory is offered"
    assert one.text.startswith("other hardware: 1 x ")
    assert "and drop --attention-backend FLASHMLA; then FLASH_ATTN serves it" in one.text


def test_what_breaks_is_divided_among_the_gpus_at_hand_first() -> None:
    report = answer("vllm serve heavy", "5080x2")
    assert report.verdict == "breaks"
    assert cures(report)[0] == "vllm serve heavy --tensor-parallel-size 2"
    (alone,) = answer("vllm serve heavy", "5080").steps
    assert alone.text.startswith("other hardware: 1 x ")


@pytest.mark.parametrize(
    ("words", "printed", "code"),
    [
        (["dense", "--gpu", "h100"], "vllm serve dense\n", 0),
        (["--gpu", "5080x2", "--", "vllm", "serve", "heavy"], "vllm serve heavy --tensor-parallel-size 2\n", 1),
        (["--gpu", "5080", "--", "vllm", "serve", "heavy", "--attention-backend", "FLASHMLA"], "", 1),
    ],
)
def test_fix_prints_a_command_that_passes_or_none(
    words: list[str], printed: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["attnfit", "check", "--engine", "vllm==0.33.0", "--fix", *words])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    out, err = capsys.readouterr()
    assert (out, int(exit_.value.code or 0)) == (printed, code)
    assert bool(err) is not bool(printed)


@pytest.mark.parametrize(
    ("command", "value", "written"),
    [
        ("env A=1 X=1 vllm serve m", None, "env A=1 vllm serve m"),
        ("docker run -e A=1 -e X=1 vllm/vllm-openai:v0.12.0 m", None, "docker run -e A=1 vllm/vllm-openai:v0.12.0 m"),
        ("docker run vllm/vllm-openai:v0.12.0 m", "2", "docker run -e X=2 vllm/vllm-openai:v0.12.0 m"),
        ("uv run vllm serve m", "2", "X=2 uv run vllm serve m"),
        ("export X=1; vllm serve m", "2", None),
        ("ssh host vllm serve m", "2", "ssh host env X=2 vllm serve m"),
    ],
)
def test_a_variable_is_written_where_the_command_holds_it(command: str, value: str | None, written: str | None) -> None:
    for given in (command, command.split()) if ";" not in command else (command,):
        parsed = parse_command(given)
        words = rewrite(parsed, parsed.argv, {"X": value})
        assert (None if words is None else " ".join(words)) == written


@pytest.mark.parametrize("release", ["0.12.0", "0.19.1", "0.33.0"])
def test_what_dropping_a_flag_gives_up_is_said_by_the_flag_that_was_given(release: str) -> None:
    flags = Flags(SimpleNamespace(argv=(), book=release))  # type: ignore[arg-type]
    for flag in load_table(release).flags:
        for option in flag.options:
            assert (flags.whole(option) in flag.negative) is (option in flag.negative)
