"""A unit is put right, restarted and watched; where it does not serve, everything is as it was before."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from fake_systemd import state, stop
from replay import HERE, Stage, until

EXAMPLES = HERE.parent / "examples"
GPU = ("--gpu", "rtx-pro-6000-server", "-n", "8", "--engine", "vllm==0.33.0")
LOADING = "(EngineCore pid=7) INFO 05-08 12:00:00 [gpu_model_runner.py:4979] Starting to load model /m..."
NAME = "llm-glm.service"
KEY = "sk-a1b2c3d4e5f6a7b8c9d0"


class Service:
    """A home with one unit of the user's, tools that play systemd, and an engine that plays its part."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stage = Stage(folder)
        played = f'"{HERE / "replay_engine.py"}" --model-path "{self.stage.model}"'
        for name in ("vllm", "python3"):  # the engine's scenes lie elsewhere: they are no files of a model
            self.program(name, f'{played} "$@"')
        for name in ("systemctl", "journalctl", "systemd-analyze"):
            self.program(name, f'"{HERE / "fake_systemd.py"}" {name} "$@"')
        self.state = folder / "systemd"
        self.state.mkdir()
        self.units = folder / "config/systemd/user"
        self.units.mkdir(parents=True)
        self.stage.env |= {"FAKE_SYSTEMD": str(self.state), "XDG_CONFIG_HOME": str(folder / "config"),
                           "ATTNFIT_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "XDG_RUNTIME_DIR": str(folder)}  # fmt: skip
        monkeypatch.setattr("fake_systemd.HOME", self.state)
        for name, value in self.stage.env.items():
            monkeypatch.setenv(name, value)
        self.unit = self.units / NAME
        self.dropin = self.units / f"{NAME}.d" / "zz-attnfit.conf"
        self.serve = f"{folder}/bin/vllm serve {EXAMPLES / 'glm-5'} --port {self.stage.port} --tensor-parallel-size 8"
        self.write(f"{self.serve} \\\n  --dtype float16 --served-model-name %p")

    def program(self, name: str, what: str) -> None:
        script = self.stage.folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {what}\n')
        script.chmod(0o755)

    def write(self, command: str) -> None:
        self.unit.write_text(
            f"[Unit]\nDescription=%p\n\n[Service]\nType=exec\nRestart=on-failure\nExecStart={command}\n"
        )

    def fails_but_when_put_right(self, *then: list[Any], wrong: str = "--dtype float16") -> None:
        self.stage.scenes({"if": wrong, "do": [["say", LOADING], ["exit", 1]]}, {"do": list(then)})

    def fix(self, *more: str, gpu: Sequence[str] = GPU) -> subprocess.CompletedProcess[str]:
        return self.stage.attnfit("unit", "fix", NAME, "--user", *gpu, "--yes", *more)

    def starts(self) -> None:
        """As somebody had started it: it fails, and is started again and again."""
        for verb in (["daemon-reload"], ["start", self.unit.name]):
            self.systemctl(*verb)

    def systemctl(self, *words: str) -> None:
        subprocess.run([str(self.stage.folder / "bin/systemctl"), "--user", *words], env=self.stage.env, check=True)

    def now(self) -> dict[str, Any]:
        return state(NAME)

    def asked(self) -> list[str]:
        return (self.state / "asked").read_text().splitlines()


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    made = Service(tmp_path, monkeypatch)
    yield made
    stop(NAME)


def test_story_one_the_unit_is_put_right_and_serves(service: Service) -> None:
    model = EXAMPLES / "qwen3.5-397b-nvfp4"
    service.write(
        f"{service.stage.folder}/bin/python3 -m sglang.launch_server --model-path {model} \\\n"
        f"  --port {service.stage.port} --tp 8 --attention-backend flashinfer \\\n"
        "  --enable-flashinfer-allreduce-fusion --served-model-name %p"
    )
    said = "[2026-05-08 12:00:00 TP0] Load weight begin. avail mem=94.0 GB"
    service.fails_but_when_put_right(["say", said], ["serve"], wrong="flashinfer")
    service.starts()
    until(lambda: service.now()["restarts"] >= 1)
    gpu = ("--gpu", "rtx-pro-6000-server", "-n", "8", "--engine", "sglang==0.5.9")
    done = service.fix(gpu=gpu)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{NAME} serves" in done.stdout
    assert "loading weights" in done.stderr  # read in the journal
    assert "a completion was answered" in done.stderr
    assert service.now()["active"] == "active"
    text = service.dropin.read_text().partition("[Service]")[2]
    assert "ExecStart=\nExecStart=" in text
    assert "--attention-backend triton" in text
    assert "flashinfer" not in text
    assert "--served-model-name %p" in text, "what stays is written as it was"
    assert "flashinfer" in service.unit.read_text(), "the unit's own file is not touched"
    checked = service.stage.attnfit("unit", "check", NAME, "--user", *gpu, "--quiet")
    assert (checked.returncode, checked.stdout.partition(":")[0]) == (0, "passes")


@pytest.mark.parametrize("end", [[["say", "RuntimeError: no"], ["exit", 1]], [["killed", 9]]])
def test_a_unit_that_does_not_serve_is_put_back_and_left_stopped_if_it_did_not_run(
    service: Service, end: list[list[Any]]
) -> None:
    service.fails_but_when_put_right(["say", LOADING], *end)
    service.starts()
    until(lambda: service.now()["restarts"] >= 1)
    done = service.fix()
    assert done.returncode == 1
    assert "does not serve: it ended" in done.stdout
    assert "stopped; before it was" in done.stdout
    assert not service.dropin.parent.exists()
    assert list((service.stage.state / "attnfit/units").iterdir()) == []
    assert service.now()["active"] == "inactive"
    assert service.asked().count("--user --no-ask-password daemon-reload") == 2


def test_a_unit_that_ran_runs_again_as_before_and_an_older_drop_in_comes_back(service: Service) -> None:
    service.stage.scenes({"if": "--dtype", "do": [["serve"]]}, {"do": [["exit", 3]]})
    service.dropin.parent.mkdir()
    service.dropin.write_text("[Service]\nEnvironment=VLLM_OLD=1\n")
    service.dropin.chmod(0o600)
    service.starts()
    until(lambda: service.now()["pid"])
    done = service.fix("--", *service.serve.split())
    assert done.returncode == 1, done.stderr
    assert "does not serve: it ended" in done.stdout
    assert "+Environment=VLLM_OLD=1" in done.stdout.replace(" Env", "+Env"), "what else stands there stays"
    assert service.dropin.read_text() == "[Service]\nEnvironment=VLLM_OLD=1\n"
    assert service.dropin.stat().st_mode & 0o777 == 0o600
    assert "restarted as it was before" in done.stdout
    until(lambda: service.now()["active"] == "active")


def test_a_start_that_says_nothing_is_given_up_in_time_and_put_back(service: Service) -> None:
    service.fails_but_when_put_right(["say", LOADING], ["hang"])
    done = service.fix("--wait", "2")
    assert done.returncode == 1
    assert "did not serve within 2 s, and was at: loading weights" in done.stdout
    assert not service.dropin.exists()


def test_what_systemd_refuses_is_said_and_put_back(service: Service) -> None:
    service.fails_but_when_put_right(["serve"])
    (service.state / "refuses-restart").touch()
    done = service.fix()
    assert done.returncode == 1
    assert "Access denied" in done.stdout
    assert not service.dropin.exists()


def test_what_verify_complains_of_is_not_written(service: Service) -> None:
    (service.state / "complaint").write_text("Unknown key name")
    done = service.fix()
    assert done.returncode == 2
    assert "Unknown key name" in done.stderr
    assert not service.dropin.exists()


def test_without_a_terminal_nothing_is_done_unless_yes_is_said(service: Service) -> None:
    for verb in ("fix", "write"):
        done = service.stage.attnfit("unit", verb, NAME, "--user", *GPU)
        assert done.returncode == 2
        assert "--yes" in done.stderr
        assert "+    --served-model-name %p" in done.stdout, "the diff is shown first"
        dry = service.stage.attnfit("unit", verb, NAME, "--user", *GPU, "--dry-run")
        assert (dry.returncode, dry.stdout) == (0, done.stdout)
    assert not service.dropin.exists()
    assert not service.stage.state.exists()


def test_where_systemd_does_not_run_fix_says_so_and_write_stdout_works(service: Service) -> None:
    (service.state / "off").touch()
    done = service.fix()
    assert done.returncode == 2
    assert "systemd is not running here" in done.stderr
    assert f"write {NAME} --stdout" in done.stderr
    printed = service.stage.attnfit("unit", "write", NAME, "--user", *GPU, "--stdout")
    assert printed.returncode == 0
    assert "[Service]\nExecStart=\nExecStart=" in printed.stdout
    shown = service.stage.attnfit("unit", "show", NAME, "--user")
    assert shown.returncode == 0
    assert "read from its files" in shown.stderr


def test_a_unit_that_passes_is_left_alone(service: Service) -> None:
    service.write(service.serve)
    done = service.fix()
    assert done.returncode == 0
    assert "nothing is to be changed" in done.stderr
    assert not service.dropin.exists()


def test_a_unit_that_passes_and_is_not_what_runs_is_restarted_and_watched(service: Service) -> None:
    """So it is left by a fix that was killed as soon as it had written."""
    service.fails_but_when_put_right(["serve"])
    service.starts()
    service.stage.attnfit("unit", "write", NAME, "--user", *GPU, "--yes")
    before = service.dropin.read_text()
    assert "restart" not in " ".join(service.asked())
    done = service.fix("--dry-run")
    assert done.returncode == 0
    assert "not what runs now: its files were changed since systemd read them" in done.stderr
    assert "restart" not in " ".join(service.asked())
    done = service.fix()
    assert done.returncode == 0, done.stderr
    assert f"{NAME} serves, after" in done.stdout
    assert service.dropin.read_text() == before
    asked = len(service.asked())
    assert "nothing is to be changed" in service.fix().stderr
    assert not [line for line in service.asked()[asked:] if "show" not in line], "now it runs as it should"


def test_and_where_it_does_not_serve_that_is_said_and_its_files_stay(service: Service) -> None:
    service.stage.scenes({"do": [["say", "RuntimeError: no"], ["exit", 1]]})
    service.starts()
    service.stage.attnfit("unit", "write", NAME, "--user", *GPU, "--yes")
    done = service.fix()
    assert done.returncode == 1
    assert "does not serve" in done.stdout
    assert "its files are as they were" in done.stdout
    assert service.dropin.exists()


def test_a_file_that_attnfit_keeps_nothing_of_is_not_said_to_go(service: Service) -> None:
    service.dropin.parent.mkdir()
    service.dropin.write_text("[Service]\nNice=5\n")
    done = service.stage.attnfit("unit", "undo", NAME, "--user", "--yes")
    assert done.returncode == 2
    assert "nothing to undo" in done.stderr
    assert "Nice" not in done.stdout + done.stderr
    assert "Nice=5" in service.dropin.read_text()


def test_written_and_undone_it_is_as_before(service: Service) -> None:
    assert service.stage.attnfit("unit", "write", NAME, "--user", *GPU, "--yes").returncode == 0
    assert service.dropin.stat().st_mode & 0o777 == 0o644
    assert f"# To take it away: attnfit unit undo {NAME} --user\n" in service.dropin.read_text()
    again = service.stage.attnfit("unit", "write", NAME, "--user", *GPU, "--yes")
    assert "nothing is to be changed" in again.stderr
    kept = list((service.stage.state / "attnfit/units").iterdir())
    assert [file.stat().st_mode & 0o777 for file in kept] == [0o600]
    assert service.stage.attnfit("unit", "undo", NAME, "--user").returncode == 2, "asks first"
    assert service.stage.attnfit("unit", "undo", NAME, "--user", "--yes").returncode == 0
    assert not service.dropin.parent.exists()
    nothing = service.stage.attnfit("unit", "undo", NAME, "--user", "--yes")
    assert nothing.returncode == 2
    assert "nothing to undo" in nothing.stderr


def test_a_line_that_systemd_passes_over_is_a_warning_and_stops_nothing(service: Service) -> None:
    service.unit.write_text(service.unit.read_text() + "RestartSec 5\n")
    for words in (("show",), ("write", *GPU, "--dry-run"), ("write", *GPU, "--yes"), ("undo", "--yes")):
        done = service.stage.attnfit("unit", words[0], NAME, "--user", *words[1:])
        assert done.returncode == 0, done.stderr
        assert f"warning: {service.unit}:9 has no '='" in done.stderr


def test_a_comment_that_is_no_utf8_stops_nothing(service: Service) -> None:
    service.unit.write_bytes(b"# caf\xe9\n" + service.unit.read_bytes())
    service.fails_but_when_put_right(["serve"])
    for words in (
        ("show",),
        ("check", *GPU, "--quiet"),
        ("write", *GPU, "--yes"),
        ("undo", "--yes"),
        ("fix", *GPU, "--yes"),
    ):
        done = service.stage.attnfit("unit", words[0], NAME, "--user", *words[1:])
        assert done.returncode == (1 if words[0] == "check" else 0), done.stderr
        assert "UTF-8" not in done.stderr


def test_a_drop_in_that_somebody_changed_is_not_overwritten_by_undo(service: Service) -> None:
    service.stage.attnfit("unit", "write", NAME, "--user", *GPU, "--yes")
    service.dropin.write_text(service.dropin.read_text() + "Nice=5\n")
    done = service.stage.attnfit("unit", "undo", NAME, "--user", "--yes")
    assert done.returncode == 2
    assert "changed since" in done.stderr
    assert "Nice=5" in service.dropin.read_text()


def begun(service: Service) -> subprocess.Popen[str]:
    """A fix that waits for an engine which hangs, and follows the journal of it."""
    service.fails_but_when_put_right(["say", LOADING], ["hang"])
    words = [sys.executable, "-m", "attnfit", "unit", "fix", NAME, "--user", *GPU, "--yes"]
    fixing = subprocess.Popen(words, env=service.stage.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert fixing.stdout is not None
    said = ""
    while "loading weights" not in said:
        line = fixing.stdout.readline()
        assert line, said
        said += line
    assert service.dropin.exists()
    assert len(followers(service)) == 1
    return fixing


def followers(service: Service) -> list[int]:
    """Those of ours that follow the journal."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = each.environ().get("FAKE_SYSTEMD") == str(service.state)
            if ours and "journalctl" in each.cmdline() and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each.pid)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_what_is_interrupted_is_put_back(service: Service, number: int) -> None:
    fixing = begun(service)
    fixing.send_signal(number)
    rest = fixing.communicate(timeout=30)[0]
    assert fixing.returncode == 130
    assert "removed" in rest
    assert not service.dropin.exists()
    assert not followers(service)
    until(lambda: service.now()["active"] == "inactive")


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for it")
def test_when_it_is_killed_nothing_follows_the_journal_any_more_and_undo_takes_it_back(service: Service) -> None:
    fixing = begun(service)
    fixing.kill()
    fixing.communicate(timeout=30)
    until(lambda: not followers(service))
    assert service.stage.attnfit("unit", "undo", NAME, "--user", "--yes").returncode == 0
    assert not service.dropin.exists()


def test_output_that_goes_to_a_file_is_read_there_from_this_start_on(service: Service) -> None:
    log = service.stage.folder / "engine.log"
    log.write_text(f"{LOADING}\nServer is ready, long ago\n")
    service.unit.write_text(service.unit.read_text().replace("Type=exec", f"Type=exec\nStandardOutput=append:{log}"))
    service.fails_but_when_put_right(["say", LOADING], ["serve"])
    done = service.fix()
    assert done.returncode == 0, done.stdout
    assert done.stderr.count("loading weights") == 1


def test_a_key_of_the_unit_is_used_for_the_request_and_never_shown(service: Service) -> None:
    keys = service.stage.folder / "key.env"
    keys.write_text(f"SERVE_KEY={KEY}\n")
    text = service.unit.read_text().replace("--served", "--api-key ${SERVE_KEY} --served")
    service.unit.write_text(text.replace("Type=exec", f"Type=exec\nEnvironmentFile={keys}"))
    service.fails_but_when_put_right(["say", LOADING], ["serve_so", {"key": KEY}])
    done = service.fix()
    assert done.returncode == 0, done.stdout
    assert "a completion was answered" in done.stderr
    shown = service.stage.attnfit("unit", "show", NAME, "--user", "--json")
    for text in (
        done.stdout,
        done.stderr,
        shown.stdout,
        service.dropin.read_text(),
        service.stage.everything_written(),
    ):
        assert KEY not in text
