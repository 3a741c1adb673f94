"""No command on a unit or a compose file prints a key of it, however many there are and however they are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from attnfit.cli import cli
from attnfit.deploy.dropin import FILE
from attnfit.errors import AttnfitError
from attnfit.inputs.secrets import clean, is_secret, masked
from test_units import ETC, image

GLM = Path(__file__).resolve().parent.parent / "examples" / "glm-5"
GPU = ["--gpu", "rtx-pro-6000-server", "-n", "8", "--engine", "vllm==0.33.0"]
ONE, TWO = "SECRET-u7", "SECRET-u8"
FLAGS = {
    "two values": f"--api-key {ONE} {TWO} --hf-token=SECRET-h9",
    "last": f"--api-key {ONE} {TWO}",
    "quoted": f"--api-key '{ONE}' \"{TWO}\"",
    "escaped": f'--api-key SEC\\x52ET-u7 "SECRET\\x2du8" {TWO}',
    "as JSON": f'--model-loader-extra-config \'{{"auth": "{ONE}", "access_key_id": "{TWO}"}}\'',
    "in a shell": f"--api-key {ONE} {TWO}",
}


def said(*words: str) -> str:
    done = CliRunner().invoke(cli, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit | AttnfitError), done.exception
    return done.output + (str(done.exception) if isinstance(done.exception, AttnfitError) else "")


@pytest.mark.parametrize("form", FLAGS)
def test_of_several_keys_none_is_shown(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", "")
    serve = f"/opt/v/bin/vllm serve {GLM} --tensor-parallel-size 8 --dtype float16 {FLAGS[form]}"
    serve = f'/bin/bash -c "exec {serve}"' if form == "in a shell" else serve
    root = image(tmp_path / "r", {"x.service": f"[Service]\nExecStart={serve}\n"})
    unit = ["--root", str(root)]
    asked = [
        ("show",), ("show", "--json"), ("check", *GPU), ("check", *GPU, "--json"), ("write", *GPU, "--stdout"),
        ("write", *GPU, "--dry-run"), ("write", *GPU, "--yes"), ("undo", "--dry-run"), ("undo", "--yes"),
    ]  # fmt: skip
    for verb, *more in asked:
        text = said("unit", verb, "x", *unit, *more)
        for part in ("SECRET", "\\x52ET", "u8", "h9"):
            assert part not in text, (verb, more)
        if "--json" in more:
            json.loads(text)
        if more[-1:] == ["--yes"] and verb == "write":
            assert "u8" in (root / ETC / "x.service.d" / FILE).read_text(), "systemd needs it"
            assert "+    --tensor-parallel-size 8" in text or form == "in a shell", "the rest is shown"


PLAIN = "plainvalue123"
HELD = {
    "in the shell": f"ExecStart=/bin/bash -c 'export LLM={PLAIN}; exec SERVE --api-key $$LLM'",
    "for the shell": f"Environment=LLM={PLAIN}\nExecStart=/bin/bash -c 'exec SERVE --api-key $$LLM'",
    "for the unit": f"Environment=LLM={PLAIN}\nExecStart=SERVE --api-key ${{LLM}}",
}


@pytest.mark.parametrize("form", HELD)
def test_a_key_under_any_name_is_hidden_and_kept_from_others(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", "")
    serve = HELD[form].replace("SERVE", f"/opt/v/bin/vllm serve {GLM} --tensor-parallel-size 8 --dtype float16")
    root = image(tmp_path / "r", {"x.service": f"[Service]\n{serve}\n"})
    for verb, *more in (
        ("show",), ("show", "--json"), ("check", *GPU), ("check", *GPU, "--json"), ("write", *GPU, "--stdout"),
        ("write", *GPU, "--dry-run"), ("write", *GPU, "--yes"), ("undo", "--dry-run"),
    ):  # fmt: skip
        text = said("unit", verb, "x", "--root", str(root), *more)
        assert PLAIN not in text, (verb, more)
    written = root / ETC / "x.service.d" / FILE
    assert written.stat().st_mode & 0o777 == (0o600 if PLAIN in written.read_text() else 0o644)
    assert (PLAIN in written.read_text()) == (form == "in the shell")


@pytest.mark.parametrize("command", [f"--api-key {ONE} {TWO}$$9", f"[--api-key, {ONE}, '{TWO}$$9']"])
def test_so_it_is_with_a_compose_file(command: str, tmp_path: Path) -> None:
    words = "--model /models/glm-5 --tensor-parallel-size 8 --dtype float16"
    command = f"[{', '.join(words.split())}, {command[1:]}" if command.startswith("[") else f"{words} {command}"
    file = tmp_path / "compose.yaml"
    file.write_text(
        f"services:\n  llm:\n    image: vllm/vllm-openai:v0.33.0\n    volumes: [{GLM.parent}:/models]\n    gpus: all\n"
        f"    command: {command}\n"
    )
    for more in (("check",), ("check", "--json"), ("fix",), ("fix", "--yes")):
        text = said("compose", more[0], str(file), *GPU[:4], *more[1:])
        assert "SECRET" not in text, more
        assert "u8" not in text, more
        assert "refused" in text


SECRET = ("auth", "access_key_id", "aws_access_key_id", "accessKeyId", "session", "sessionid", "basic_auth", "jwt",
          "bearer", "creds", "password", "apikey", "private_key", "aws_session_token")  # fmt: skip
ORDINARY = ("author", "authors", "session_timeout", "auth_mode", "new_session", "require_auth", "no_auth", "use_auth",
            "kms_key_id", "key_id", "session_count", "authority", "sessions", "model_id")  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_in_json_what_such_a_name_holds_is_hidden(name: str) -> None:
    assert is_secret(name)
    for text in (f'{{"{name}": "Zx-value", "a": 1}}', f'{{\\"{name}\\": \\"Zx-value\\"}}', f"{{'{name}': 'Zx-value'}}"):
        assert "Zx" not in masked(text)
        assert "Zx" not in clean(text, ["--model-loader-extra-config", text])


@pytest.mark.parametrize("name", ORDINARY)
def test_what_only_sounds_like_it_is_shown(name: str) -> None:
    assert not is_secret("--" + name.replace("_", "-"))
    for text in (f'{{"{name}": "basic"}}', f"{name}=a1b2", f"{name}: basic"):
        assert masked(text) == text


@pytest.mark.parametrize("line", ["session: closed", "auth=basic", "auth: enabled", "session=train-run", "Session: x"])
def test_a_log_may_speak_of_sessions(line: str) -> None:
    assert masked(line) == line
