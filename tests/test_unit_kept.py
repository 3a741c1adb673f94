"""What a drop-in or a compose file was before comes back as it was: text, owner, group and mode; or nothing changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from attnfit.cli import cli
from attnfit.deploy import files, unitfile
from attnfit.deploy.dropin import FILE
from attnfit.deploy.files import Rights, rights_of, write_whole
from attnfit.errors import UsageError
from attnfit.inputs.units import read_unit
from test_units import ETC, image

GLM = Path(__file__).resolve().parent.parent / "examples" / "glm-5"
GPU = ["--gpu", "rtx-pro-6000-server", "-n", "8", "--engine", "vllm==0.33.0"]
SERVE = f"/opt/v/bin/vllm serve {GLM} --tensor-parallel-size 8 --dtype float16"
OLD = b"# caf\xe9\r\n[Service]\r\nNice=5\r\n"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", "")  # no systemd


def ask(root: Path, verb: str, *words: str, name: str = "x") -> Result:
    return CliRunner().invoke(cli, ["unit", verb, name, "--root", str(root), *words])


def put(root: Path, name: str = "x") -> Result:
    done = ask(root, "write", *GPU, "--yes", name=name)
    assert done.exit_code == 0, done.output
    return done


def place(root: Path, name: str = "x") -> Path:
    return root / ETC / f"{name}.service.d" / FILE


def of(root: Path, old: bytes | None = None, name: str = "x", mode: int = 0o600, serve: str = SERVE) -> Path:
    """An image with a unit, and perhaps a drop-in of our name."""
    image(root, {f"{ETC}/{name}.service": f"[Service]\nExecStart={serve}\n"})
    if old is not None:
        image(root, {f"{ETC}/{name}.service.d/{FILE}": old})
        place(root, name).chmod(mode)
    return root


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o664])
def test_a_drop_in_that_was_there_keeps_its_mode_and_comes_back_byte_by_byte(mode: int, tmp_path: Path) -> None:
    root = of(tmp_path / "r", OLD, mode=mode)
    put(root)
    assert b"Nice=5\n" in place(root).read_bytes()
    assert rights_of(place(root)).mode == mode
    done = ask(root, "undo", "--yes")
    assert (done.exit_code, "as it was" in done.output) == (0, True)
    assert place(root).read_bytes() == OLD
    assert rights_of(place(root)).mode == mode


def test_with_a_key_it_is_its_owner_s_alone_and_afterwards_as_before(tmp_path: Path) -> None:
    root = of(tmp_path / "r", OLD, mode=0o664, serve=f"{SERVE} --api-key sk-a1b2c3d4e5f6a7b8c9d0")
    put(root)
    assert rights_of(place(root)).mode == 0o600
    ask(root, "undo", "--yes")
    assert rights_of(place(root)).mode == 0o664


@as_root
def test_it_keeps_owner_and_group_when_written_undone_and_rolled_back(tmp_path: Path) -> None:
    root = of(tmp_path / "r", OLD)
    os.chown(place(root), 1234, 1235)
    whose = rights_of(place(root))
    assert whose == Rights(0o600, 1234, 1235)
    put(root)
    assert rights_of(place(root)) == whose
    put_anew(root)
    assert rights_of(place(root)) == whose
    ask(root, "undo", "--yes")
    assert rights_of(place(root)) == whose


def put_anew(root: Path) -> None:
    """Once more, with another command, and rolled back at once."""
    found = unitfile.place_of(read_unit("x", root=root))
    kept = unitfile.put(found, "[Service]\nNice=1\n", "x.service")
    unitfile.roll_back(found, "[Service]\nNice=1\n", kept)
    assert unitfile.place_of(read_unit("x", root=root)) == found


def test_after_a_roll_back_undo_takes_back_what_was_written_before_and_nothing_else(tmp_path: Path) -> None:
    root = of(tmp_path / "r", OLD)
    put_anew(root)
    assert "nothing to undo" in str(ask(root, "undo", "--yes").exception)
    put(root)
    put_anew(root)
    assert ask(root, "undo", "--yes").exit_code == 0
    assert place(root).read_bytes() == OLD


@pytest.fixture
def of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files belong to somebody whose they cannot stay when this user writes them."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(files, "rights_of", lambda path: Rights(0o640, 4321, 4322))
    monkeypatch.setattr(unitfile, "rights_of", lambda path: Rights(0o640, 4321, 4322))
    monkeypatch.setattr(os, "fchown", refuse)


@pytest.mark.usefixtures("of_another")
def test_where_the_owner_cannot_stay_nothing_is_written(tmp_path: Path) -> None:
    root = of(tmp_path / "r", OLD)
    done = ask(root, "write", *GPU, "--yes")
    assert isinstance(done.exception, UsageError)
    assert "belongs to 4321:4322" in str(done.exception)
    assert [each.name for each in place(root).parent.iterdir()] == [FILE]
    assert place(root).read_bytes() == OLD
    assert list((tmp_path / "state/attnfit/units").iterdir()) == [], "nor anything kept of what was not done"


@pytest.mark.usefixtures("of_another")
def test_so_it_is_with_a_compose_file(tmp_path: Path) -> None:
    file = compose(tmp_path)
    before = file.read_bytes()
    done = CliRunner().invoke(cli, ["compose", "fix", str(file), *GPU, "--yes"])
    assert "belongs to 4321:4322" in str(done.exception)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def compose(folder: Path) -> Path:
    file = folder / "compose.yaml"
    file.write_text(
        f"services:\n  llm:\n    image: vllm/vllm-openai:v0.33.0\n    volumes: [{GLM.parent}:/models]\n    gpus: all\n"
        "    command: --model /models/glm-5 --tensor-parallel-size 8 --dtype float16\n"
    )
    return file


@as_root
def test_a_compose_file_keeps_owner_group_and_mode(tmp_path: Path) -> None:
    file = compose(tmp_path)
    file.chmod(0o640)
    os.chown(file, 1234, 1235)
    assert CliRunner().invoke(cli, ["compose", "fix", str(file), *GPU, "--yes"]).exit_code == 0
    assert "float16" not in file.read_text()
    assert rights_of(file) == Rights(0o640, 1234, 1235)


def test_on_a_full_disk_nothing_is_left_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, root = compose(tmp_path), of(tmp_path / "r", OLD)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    for words in (["compose", "fix", str(file)], ["unit", "write", "x", "--root", str(root)]):
        done = CliRunner().invoke(cli, [*words, *GPU, "--yes"])
        assert isinstance(done.exception, UsageError)
        assert "No space left on device" in str(done.exception)
    assert {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()} == before


def test_where_there_is_no_room_to_keep_the_old_file_that_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = of(tmp_path / "r", OLD)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(unitfile, "write_private", full)
    done = ask(root, "write", *GPU, "--yes")
    assert f"{tmp_path / 'state'}/attnfit/units/" in str(done.exception).partition("cannot be written")[0]
    assert place(root).read_bytes() == OLD


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path: Path) -> None:
    done = ask(of(tmp_path / "r", OLD), "write", *GPU, "--dry-run")
    assert "-# caf\\xe9" in done.output


def test_what_interrupts_a_write_leaves_nothing_behind_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "x", b"data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x", "u" * 180])
def test_what_is_kept_of_one_image_s_unit_is_not_another_s(name: str, tmp_path: Path) -> None:
    roots = [of(tmp_path / each / "r", f"[Service]\nNice={each}\n".encode(), name) for each in ("1", "2")]
    for root in roots:
        put(root, name)
    assert len(list((tmp_path / "state/attnfit/units").iterdir())) == 2
    for root, each in zip(roots, ("1", "2"), strict=True):
        assert ask(root, "undo", "--yes", name=name).exit_code == 0
        assert place(root, name).read_text() == f"[Service]\nNice={each}\n"


def test_a_record_that_is_of_another_path_is_none(tmp_path: Path) -> None:
    here, there = of(tmp_path / "here"), of(tmp_path / "there")
    put(here)
    unitfile.kept_at(place(here)).rename(unitfile.kept_at(place(there)))
    place(there).parent.mkdir()
    place(there).write_bytes(place(here).read_bytes())
    done = ask(there, "undo", "--yes")
    assert "nothing to undo" in str(done.exception)
    assert place(there).exists()
