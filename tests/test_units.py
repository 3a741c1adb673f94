"""Units are read as systemd reads them. `proofs/systemd.py` holds the same reading against systemd itself."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnfit.errors import AttnfitError, InputError, UnknownAnswer, UsageError
from attnfit.inputs.units import Unit, read_unit
from attnfit.inputs.units.environ import parse_file
from attnfit.inputs.units.launch import server_of
from attnfit.inputs.units.words import spell, split_relaxed

ETC = "etc/systemd/system"


def image(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = root / (name if "/" in name and not name.startswith("x.service") else f"{ETC}/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def unit(root: Path, text: str, name: str = "x.service", **files: str) -> Unit:
    return read_unit(name, root=image(root, {name: "[Service]\n" + text, **files}))


def argv(root: Path, line: str, more: str = "") -> list[str]:
    return unit(root, f"{more}ExecStart={line}\n").execs[0].argv


# What systemd 252 started for each of these lines, as `proofs/systemd.py` saw it.
STARTED = {
    '/bin/x a"b c"d \'x\'y "q\\"r"': ["/bin/x", "ab cd", "xy", 'q"r'],
    "/bin/x \\x41\\u00e4\\101 \\d %% %": ["/bin/x", "AäA", "\\d", "%", "%"],
    "/bin/x %i|%n|%p|%N": ["/bin/x", "|x.service|x|x"],
    "/bin/x $FOO ${FOO} $$ ${FOO}$FOO": ["/bin/x", "x", "y z", 'x "y z"', "$", 'x "y z"$FOO'],
    "/bin/x \\; a\\;b": ["/bin/x", ";", "a\\;b"],
    "/bin/x \"\\xc3\\xa4\" it\\'s 'a\\nb' \\s --": ["/bin/x", "ä", "it's", "a\nb", " ", "--"],
    "/bin/x a\\\n  # a comment\n  b \\\nc": ["/bin/x", "a", "b", "c"],
    ":/bin/x last\\\\ $FOO ${FOO} $$": ["/bin/x", "last\\", "$FOO", "${FOO}", "$$"],
    '"/bin/e cho" x': ["/bin/e cho", "x"],
    "/bin/x a\"\" ''b \"a\"'b' \\": ["/bin/x", "a", "b", "ab"],
    "@/bin/x zeroth one": ["/bin/x", "one"],
    "-@!!/bin/x zeroth one": ["/bin/x", "one"],
    "/bin/x $NOT a${NOT}b $NOT-SO ${NOT": ["/bin/x", "ab", "${NOT"],
    "/bin/x ${FOO$$ $": ["/bin/x", "${FOO$$"],
}


@pytest.mark.parametrize("line", STARTED)
def test_a_line_is_read_as_systemd_starts_it(line: str, tmp_path: Path) -> None:
    assert argv(tmp_path, line, "Environment=FOO='x \"y z\"'\n") == STARTED[line]


REFUSED = {
    "/bin/x 'unbalanced": "quotes",
    "/bin/x %z": "specifier",
    '"" x': "empty",
    "bin/x y": "absolute path",
    "/bin/ x": "directory",
    "@/bin/x": "own name",
    "!!!/bin/x": "absolute path",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_systemd_refuses_is_one_error_with_its_place(line: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=REFUSED[line]) as error:
        argv(tmp_path, line)
    assert f"/{ETC}/x.service:2" in str(error.value)
    assert error.value.exit_code == 2


def test_several_commands_are_for_oneshot_and_an_empty_one_resets(tmp_path: Path) -> None:
    text = "ExecStart=/bin/a\nExecStart=\nExecStart=/bin/b ; /bin/c \\; ; ; /bin/d\n"
    with pytest.raises(InputError, match="Type=oneshot"):
        unit(tmp_path, text)
    assert [e.argv for e in unit(tmp_path, "Type=oneshot\n" + text).execs] == [["/bin/b"], ["/bin/c", ";"], ["/bin/d"]]


def test_drop_ins_count_in_the_order_of_their_names_and_etc_hides_usr(tmp_path: Path) -> None:
    root = image(
        tmp_path,
        {
            "usr/lib/systemd/system/a-b@.service": "[Service]\nExecStart=/bin/a\n",
            "usr/lib/systemd/system/a-b@.service.d/20.conf": "[Service]\nExecStart=\nExecStart=/bin/usr %i\n",
            "etc/systemd/system/a-.service.d/30.conf": "[Service]\nEnvironment=A=30\n",
            "run/systemd/system/a-b@i.service.d/10.conf": "[Service]\nEnvironment=A=10\n",
            "etc/systemd/system/service.d/10.conf": "[Service]\nEnvironment=A=no\n",
            "etc/systemd/system/a-b@.service.d/25.conf": "[Service]\nExecStart=\nExecStart=/bin/etc %i ${A}\n",
            "etc/systemd/system/a-b@i.service.d/25.conf.off": "[Service]\nnonsense\n",
        },
    )
    (root / ETC / "a-b@i.service.d/40.conf").symlink_to("/dev/null")
    found = read_unit("a-b@i", root=root)
    assert [path.rpartition("/")[2] for path in found.dropins] == ["10.conf", "20.conf", "25.conf", "30.conf"]
    assert found.execs[0].argv == ["/bin/etc", "i", "30"]


def test_an_alias_leads_to_the_unit_and_brings_its_drop_ins(tmp_path: Path) -> None:
    root = image(
        tmp_path, {"real.service": "[Service]\nExecStart=/bin/x %n\n", f"{ETC}/nick.service.d/a.conf": "[Unit]\n"}
    )
    (root / ETC / "nick.service").symlink_to("real.service")
    assert read_unit("nick", root=root).fragment == f"/{ETC}/real.service"
    assert [p.rpartition("/")[2] for p in read_unit("real", root=root).dropins] == ["a.conf"]


def test_variables_files_count_more_than_settings_and_unset_ends_both(tmp_path: Path) -> None:
    root = image(tmp_path, {"srv/one.env": "A=file\nexport B=no\n# C=no\nD='x y' z\nE=1\n"})
    text = (
        'Environment="A=own" B=own "C=a b"\nEnvironment=A=later\nEnvironmentFile=/srv/*.env\n'
        "EnvironmentFile=-/srv/none\nUnsetEnvironment=E B=other\nExecStart=/bin/x\n"
    )
    found = unit(root, text).variables
    assert {n: found.values[n] for n in found.origin} == {"A": "file", "B": "own", "C": "a b", "D": "x yz"}


def test_a_file_of_variables_that_is_not_there_is_an_error_unless_it_may_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not there"):
        unit(tmp_path, "EnvironmentFile=/srv/none\nExecStart=/bin/x\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [("F=a\\\nb", "ab"), ('F="a\nb"', "a\nb"), ("F=a # b", "a # b"), ("F='a'b", "ab"), ('F="a\\$b\\c"', "a$b\\c"),
     ("F=x\\ y", "x y"), (" F = v w ", "v w"), ("F=", ""), ("F='x\\n'", "x\\n")],
)  # fmt: skip
def test_an_environment_file_is_read_as_systemd_reads_it(text: str, value: str) -> None:
    assert parse_file(text) == {"F": value}


def test_variables_split_at_spaces_with_quotes() -> None:
    assert split_relaxed("'q r' s\\ t  \\n \"\"") == ["q r", "s t", "n", ""]


BAD_FILES: dict[bytes, str] = {
    b"\x7fELF\0\0": "NUL",
    b"[Service]\nExecStart=/bin/\xff\n": "UTF-8",
    b"[Service]\nExecStart /bin/x\n": "no '='",
    b"ExecStart=/bin/x\n": "before any section",
    b"[Service\nExecStart=/bin/x\n": "section header",
    b"[Service]\nType=simple\n": "no ExecStart=",
}


@pytest.mark.parametrize("data", BAD_FILES)
def test_a_bad_file_is_one_error(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=BAD_FILES[data]):
        read_unit("x", root=image(tmp_path, {"x.service": data}))


@pytest.mark.parametrize(
    ("text", "says"),
    [("API_KEY sk-1\n", r"/x\.service:2 has no '='"), ("Environment=1A=b AB C=d\n", "x.service:2: a word"),
     ("EnvironmentFile=rel\n", "no absolute path")],
)  # fmt: skip
def test_what_systemd_passes_over_is_a_warning_and_the_rest_is_read(text: str, says: str, tmp_path: Path) -> None:
    found = unit(tmp_path, f"{text}ExecStart=/bin/x ${{C}}\n")
    assert [arg.raw for arg in found.execs[0].args] == ["${C}"]
    assert re.search(says, found.notes[0])
    assert "sk-1" not in "".join(found.notes)
    assert found.variables.values.get("C") == ("d" if "C=d" in text else None)


LATIN = b"caf\xe9"


def test_a_comment_may_be_of_any_bytes(tmp_path: Path) -> None:
    start = b"# %b\n[Service]\nEnvironmentFile=/srv/a.env\nExecStart=/bin/x \\\n; %b\n  ${A}\n" % (LATIN, LATIN)
    root = image(tmp_path, {"x.service": start, "srv/a.env": b"# %b\nA=1\n" % LATIN})
    found = read_unit("x", root=root)
    assert found.execs[0].argv == ["/bin/x", "1"]
    assert found.notes == ()


# As systemd 252 does: it refuses the unit for such a line in its own file, and reads a drop-in up to it.
@pytest.mark.parametrize(
    ("line", "why"), [(b"Environment=A=" + LATIN, "UTF-8"), (LATIN, "UTF-8"), (b"[Unit", "section")]
)
def test_a_line_that_ends_the_reading(line: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"x\.service:3.*{why}.*systemd refuses"):
        read_unit("x", root=image(tmp_path / "1", {"x.service": b"[Service]\nExecStart=/bin/x\n" + line}))
    late = b"[Service]\nEnvironment=B=before\n" + line + b"\nEnvironment=B=behind\n"
    root = image(tmp_path / "2", {"x.service": "[Service]\nExecStart=/bin/x\n", f"{ETC}/x.service.d/a.conf": late})
    found = read_unit("x", root=root)
    assert found.variables.values["B"] == "before"
    assert re.search(rf"a\.conf:3.*{why}.*nothing of this drop-in from there on", found.notes[0])


def test_an_environment_file_with_a_value_of_other_bytes_is_an_error(tmp_path: Path) -> None:
    image(tmp_path, {"srv/a.env": b"A=1\nB=" + LATIN})
    with pytest.raises(InputError, match=r"a\.env is no text"):
        unit(tmp_path, "EnvironmentFile=/srv/a.env\nExecStart=/bin/x\n")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n\r"])
def test_lines_end_as_systemd_ends_them(end: str, tmp_path: Path) -> None:
    text = end.join(["[Service]", "ExecStart=/bin/x a \\", "  b", "Nice=5", "wrong", ""])
    found = read_unit("x", root=image(tmp_path, {"x.service": text}))
    assert found.execs[0].argv == ["/bin/x", "a", "b"]
    assert "x.service:5" in found.notes[0]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "srv").mkdir()
    os.mkfifo(tmp_path / "srv/a.env")
    with pytest.raises(InputError, match="no plain file"):
        unit(tmp_path, "EnvironmentFile=-/srv/a.env\nExecStart=/bin/x\n")


def test_a_setting_before_any_section_is_passed_over(tmp_path: Path) -> None:
    found = read_unit("x", root=image(tmp_path, {"x.service": "User=a\n[Service]\nExecStart=/bin/x\n"}))
    assert found.runs_as is None
    assert "before any section" in found.notes[0]


@pytest.mark.parametrize("name", ["a/b.service", "x.socket", "x@.service", "a b", "x" * 300, ""])
def test_a_name_that_is_none_is_a_usage_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read_unit(name, root=tmp_path)


def test_a_misspelt_name_gets_a_hint_and_a_masked_unit_is_said(tmp_path: Path) -> None:
    image(tmp_path, {"serving.service": "[Service]\nExecStart=/bin/x\n", "empty.service": ""})
    (tmp_path / ETC / "off.service").symlink_to("/dev/null")
    with pytest.raises(InputError, match=r"did you mean 'serving'"):
        read_unit("servign", root=tmp_path)
    for name in ("off", "empty"):
        with pytest.raises(InputError, match="masked"):
            read_unit(name, root=tmp_path)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")), st.booleans())
def test_an_argument_spelt_out_is_read_back_unchanged(value: str, dollar: bool) -> None:
    from attnfit.inputs.units.commands import commands
    from attnfit.inputs.units.lines import parse
    from attnfit.inputs.units.specifiers import Naming

    line = f"[Service]\nExecStart={'' if dollar else ':'}/bin/x {spell(value, variables=dollar)} end\n"
    [setting] = parse(line, "x.service")
    assert commands(setting, Naming("x.service"), {"A": "b"})[0].argv == ["/bin/x", value, "end"]


@given(st.text(max_size=200))
def test_no_text_of_a_unit_ends_in_anything_but_an_answer_or_one_error(text: str) -> None:
    from attnfit.inputs.units.lines import parse
    from attnfit.inputs.units.specifiers import Naming
    from attnfit.inputs.units.unit import _unit

    for body in (text, f"[Service]\nExecStart=/bin/x {text}", f"[Service]\nEnvironment={text}\nExecStart=/bin/x"):
        with suppress(AttnfitError):
            _unit("x.service", Naming("x.service", root=Path("/none")), "x.service", (), parse(body, "x.service"))


def test_the_server_is_found_among_several_commands_with_its_variables(tmp_path: Path) -> None:
    text = (
        "Type=oneshot\nEnvironment=CUDA_VISIBLE_DEVICES=0,1 HF_TOKEN=hf_abcdefghijklmnopqrst\n"
        "ExecStart=/bin/mkdir -p /run/x\nExecStart=/opt/v/bin/vllm serve /srv/m -tp 2\n"
    )
    launch = server_of(unit(tmp_path, text))
    assert launch.index == 1
    assert launch.command.prefix == "/opt/v"
    assert launch.command.visible_gpus == ("0", "1")
    assert launch.argv == ("/opt/v/bin/vllm", "serve", "/srv/m", "-tp", "2")


def test_a_unit_that_starts_no_server_says_what_it_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x\.service: no server is started by '/bin/sleep'"):
        server_of(unit(tmp_path, "ExecStart=/bin/sleep 1\n"))


def test_variables_of_a_file_that_may_not_be_read_are_unknown_and_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnfit.inputs.units import environ

    def refuse(path: Path, root: Path | None = None) -> dict[str, str]:
        raise PermissionError

    monkeypatch.setattr(environ, "read_file", refuse)
    image(tmp_path, {"srv/key.env": "K=1\n"})
    with pytest.raises(UnknownAnswer, match="run again as root"):
        server_of(unit(tmp_path, "EnvironmentFile=/srv/key.env\nExecStart=/opt/v/bin/vllm serve /srv/m\n"))
