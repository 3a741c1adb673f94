"""Nothing that a file, a path or a flag says reaches the terminal as a control character."""

from __future__ import annotations

import json
import sys
from io import BytesIO
from pathlib import Path

import pytest

from attnfit import batch, cli
from attnfit.report.plain import printable, styled

BAD = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp"
GLM5 = Path(__file__).parent.parent / "examples" / "glm-5"


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["attnfit", *words])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    out, err = capsys.readouterr()
    return int(exit_.value.code or 0), out + err


def test_control_characters_are_shown_as_what_they_are() -> None:
    assert printable("a\x1b[31m\x07b\x9b\u202e") == "a\\u001b[31m\\u0007b\\u009b\\u202e"
    assert printable("plain ä 模型\tx\n") == "plain ä 模型\tx\n"
    assert styled("\x1b[31mred\x1b[0m \x1b[2J") == "\x1b[31mred\x1b[0m \\u001b[2J"


@pytest.mark.parametrize("key", ["model_type", "sliding_window", "architectures", "torch_dtype", "hidden_size"])
@pytest.mark.parametrize("words", [["check", "--gpu", "h200x8"], ["check", "--gpu", "h200x8", "--json"], ["model"]])
def test_a_config_cannot_write_to_the_terminal(
    key: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((GLM5 / "config.json").read_text("utf-8"))
    config[key] = [BAD] if key == "architectures" else BAD
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    _, said = run(capsys, monkeypatch, words[0], str(tmp_path), *words[1:])
    assert not set(BAD) & set(said) & set("\x1b\x07\x9b\u202e")
    if "--json" in words and said.startswith("{"):
        assert json.loads(said)


def test_nor_can_a_path_or_an_option(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["model", f"no{BAD}such"], ["check", f"--{BAD}"], ["check", "--gpu", BAD, str(GLM5)]):
        code, said = run(capsys, monkeypatch, *words)
        assert code == 2
        assert "\x1b" not in said
        assert "\x9b" not in said


def test_nor_can_a_line_of_a_batch(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text(json.dumps({"id": BAD, "model": f"no{BAD}such", "gpu": "h200"}), "utf-8")
    out = BytesIO()
    batch.run(str(tmp_path / "lines"), out)
    said = out.getvalue().decode()
    assert not set(said) & set("\x1b\x07\x9b\u202e")
    assert json.loads(said)["id"] == BAD


def test_a_number_no_float_holds_is_named_and_no_fault_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((GLM5 / "config.json").read_text("utf-8"))
    config["rope_theta"] = 10**400
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    for words in (["check", "--gpu", "h200x8", str(tmp_path)], ["model", str(tmp_path)]):
        _, said = run(capsys, monkeypatch, *words)
        assert "internal error" not in said
    _, said = run(capsys, monkeypatch, "check", "--gpu", "h200x8", str(tmp_path))
    assert "rope_theta is" in said
