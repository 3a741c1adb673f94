"""The drop-in is minimal, starts exactly the command that is wanted, and shows no key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attnfit.deploy.dropin import FILE, dropin, holds_key, wanted
from attnfit.deploy.unitplan import Asked, diff, from_step, from_words, judge, step_of
from attnfit.errors import AttnfitError, InputError, UsageError
from attnfit.inputs.units import Unit, read_unit
from attnfit.inputs.units.launch import server_of
from test_units import ETC, image, unit

HERE = Path(__file__).resolve().parent
GLM = HERE.parent / "examples" / "glm-5"
KEY = "sk-a1b2c3d4e5f6a7b8c9d0"
ASKED = Asked(gpu="rtx-pro-6000-server", count=8, engine="vllm==0.33.0")
SERVE = f"/opt/v/bin/vllm serve {GLM} --tensor-parallel-size 8 --dtype float16"


def after(found: Unit, text: str) -> Unit:
    place = f"/{ETC}/x.service.d/{FILE}"
    return read_unit("x", root=found.root, instead={place: text})


def test_words_that_stay_keep_their_spelling_and_only_the_new_ones_are_spelt_out(tmp_path: Path) -> None:
    found = unit(
        tmp_path,
        'Environment=M=/srv/m "EXTRA=--tp 8 --seed 1"\n'
        "ExecStart=-:/bin/false\nExecStart=\n"
        "ExecStart=-/opt/v/bin/vllm serve ${M} $EXTRA --name '%p 50%%' --api-key ${KEY} --old x\n",
    )
    argv = ["/opt/v/bin/vllm", "serve", "/srv/m", "--tp", "8", "--seed", "1", "--name", "x 50%", "--api-key", ""]
    text = dropin(found, 0, [*argv, "--new", '$5 100% "q"'], {}, "because", None)
    line = text.partition("ExecStart=\nExecStart=")[2].replace(" \\\n   ", "").rstrip("\n")
    assert line == ('-/opt/v/bin/vllm serve ${M} $EXTRA --name \'%p 50%%\' --api-key ${KEY} --new "$$5 100%% \\"q\\""')
    assert after(found, text).execs[0].argv == [*argv, "--new", '$5 100% "q"']


def test_of_a_variable_that_became_several_words_the_others_are_written_out(tmp_path: Path) -> None:
    found = unit(tmp_path, 'Environment="ARGS=--tp 8 --dtype float16"\nExecStart=/opt/v/bin/vllm serve /srv/m $ARGS\n')
    text = dropin(found, 0, ["/opt/v/bin/vllm", "serve", "/srv/m", "--tp", "8"], {}, "because", None)
    assert "$ARGS" not in text.partition("[Service]")[2]
    assert after(found, text).execs[0].argv == ["/opt/v/bin/vllm", "serve", "/srv/m", "--tp", "8"]


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@given(st.lists(words, max_size=6), st.lists(words, max_size=6), st.booleans())
@example(["\x80", ""], ["\n", ""], False)
def test_whatever_is_wanted_is_what_systemd_would_start(old: list[str], new: list[str], dollar: bool) -> None:
    from attnfit.inputs.units.lines import parse
    from attnfit.inputs.units.specifiers import Naming
    from attnfit.inputs.units.unit import _unit
    from attnfit.inputs.units.words import spell

    flags = "" if dollar else ":"
    naming = Naming("x.service", root=Path("/none"))
    spelt = " ".join(spell(word, variables=dollar) for word in old)
    raw = f"[Service]\nEnvironment=A=b\nExecStart={flags}/bin/x %p $A $NOT {spelt}\n"
    found = _unit("x.service", naming, "x", (), parse(raw, "x"))
    head = found.execs[0].argv[:3] if dollar else found.execs[0].argv[:4]
    text = dropin(found, 0, [*head, *new], {}, "because", None)
    then = _unit("x.service", naming, "x", (), [*found.settings, *parse(text, "y")])
    assert then.execs[0].argv == [*head, *new]


def test_other_commands_of_a_oneshot_unit_stay_in_their_order(tmp_path: Path) -> None:
    found = unit(tmp_path, "Type=oneshot\nExecStart=/bin/a '%p' ; /opt/v/bin/vllm serve m\nExecStart=-/bin/c $X\n")
    text = dropin(found, 1, ["/opt/v/bin/vllm", "serve", "n"], {}, "because", None)
    assert [e.raw for e in after(found, text).execs] == ["/bin/a '%p'", "/opt/v/bin/vllm serve n", "-/bin/c $X"]


def test_the_planner_s_step_becomes_a_drop_in_that_passes(tmp_path: Path) -> None:
    found = unit(tmp_path, f"ExecStart={SERVE}\n")
    report = judge(found, ASKED)
    step = step_of(report)
    assert report.verdict == "refused"
    assert step is not None
    planned = from_step(found, report, step, ASKED)
    assert planned.after.verdict == "passes"
    assert "--dtype" not in planned.text.partition("[Service]")[2]
    assert planned.place.path == tmp_path / ETC / "x.service.d" / FILE


def test_a_key_in_clear_is_written_for_its_owner_alone_and_never_shown(tmp_path: Path) -> None:
    found = unit(tmp_path, f"Environment=HF_TOKEN=hf_abcdefghijklmnopqrst\nExecStart={SERVE} --api-key {KEY}\n")
    report = judge(found, ASKED)
    step = step_of(report)
    assert step is not None
    assert KEY not in " ".join(step.argv or ())
    planned = from_step(found, report, step, ASKED)
    assert f"--api-key {KEY}" in planned.text, "systemd needs it"
    assert holds_key(planned.text)
    assert KEY not in diff(planned)
    assert "hf_abc" not in diff(planned)


def test_a_key_in_a_file_of_variables_stays_there(tmp_path: Path) -> None:
    image(tmp_path, {"srv/key.env": f"API_KEY={KEY}\n"})
    found = unit(tmp_path, f"EnvironmentFile=/srv/key.env\nExecStart={SERVE} --api-key ${{API_KEY}}\n")
    step = step_of(judge(found, ASKED))
    assert step is not None
    planned = from_step(found, judge(found, ASKED), step, ASKED)
    assert "--api-key ${API_KEY}" in planned.text
    assert KEY not in planned.text
    assert not holds_key(planned.text)


def test_of_values_that_are_written_out_it_is_said_that_their_file_counts_no_more(tmp_path: Path) -> None:
    image(tmp_path, {"srv/v.env": "ARGS=--tensor-parallel-size 8 --dtype float16\nPORT=80\n"})
    start = f"/opt/v/bin/vllm serve {GLM} --port ${{PORT}} --served-model-name $$ARGS $ARGS"
    found = unit(tmp_path, f"EnvironmentFile=/srv/v.env\nExecStart={start}\n")
    step = step_of(judge(found, ASKED))
    assert step is not None
    planned = from_step(found, judge(found, ASKED), step, ASKED)
    comment = " ".join(planned.text.partition("[Service]")[0].replace("#", "").split())
    assert "$ARGS: what is changed in /srv/v.env does not reach it" in comment
    assert [note.partition("$")[2][:4] for note in planned.notes] == ["ARGS"]
    again = from_words(found, [*found.execs[0].argv, "--seed", "1"], ASKED)
    assert "no longer" not in again.text, "it is named still"
    assert again.notes == ()


@pytest.mark.parametrize(("user", "options"), [(True, "--user --root {}"), (False, "--root {}")])
def test_the_comment_takes_exactly_this_drop_in_away(user: bool, options: str, tmp_path: Path) -> None:
    root = image(tmp_path / "an image", {"x.service": f"[Service]\nExecStart={SERVE}\n"})
    if user:
        image(root, {"etc/systemd/user/x.service": f"[Service]\nExecStart={SERVE}\n"})
    text = dropin(read_unit("x", user=user, root=root), 0, SERVE.split()[:-2], {}, "because", None)
    line = next(line for line in text.splitlines() if "undo" in line)
    assert line.endswith(f"attnfit unit undo x.service {options.format(repr(str(root)))}")


def test_a_variable_of_a_file_cannot_be_changed_by_a_drop_in_and_that_is_said(tmp_path: Path) -> None:
    image(tmp_path, {"srv/v.env": "VLLM_USE_V1=0\n"})
    found = unit(tmp_path, f"EnvironmentFile=/srv/v.env\nEnvironment=A=1 B=2\nExecStart={SERVE}\n")
    argv = found.execs[0].argv
    with pytest.raises(UsageError, match=r"set in .*v\.env"):
        dropin(found, 0, argv, {"VLLM_USE_V1": "1"}, "because", None)
    text = dropin(found, 0, argv, {"A": "x $y 50%", "B": None}, "because", None)
    assert "ExecStart" not in text, "only the variable changes"
    then = after(found, text).variables.values
    assert (then["A"], "B" in then) == ("x $y 50%", False)


def test_a_drop_in_behind_ours_that_sets_the_command_is_named(tmp_path: Path) -> None:
    late = f"{ETC}/x.service.d/zzz.conf"
    image(tmp_path, {late: f"[Service]\nExecStart=\nExecStart={SERVE}\n"})
    found = unit(tmp_path, f"ExecStart={SERVE}\n")
    with pytest.raises(InputError, match=r"zzz\.conf"):
        from_words(found, SERVE.replace(" --dtype float16", "").split(), ASKED)


def test_a_step_gives_the_words_back_with_their_keys(tmp_path: Path) -> None:
    found = unit(tmp_path, f"Environment=A=1\nExecStart={SERVE} --api-key {KEY}\n")
    launch = server_of(found)
    argv, variables = wanted(launch, ["B=2", *SERVE.split(), "--api-key", "$API_KEY", "--x"])
    assert argv == [*SERVE.split(), "--api-key", KEY, "--x"]
    assert variables == {"A": None, "B": "2"}


@given(st.text(max_size=60))
def test_any_command_behind_the_dashes_is_an_answer_or_one_error(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        found = unit(Path(name), f"ExecStart={SERVE}\n")
        try:
            planned = from_words(found, text.split() or [""], ASKED)
        except AttnfitError:
            return
        assert after(found, planned.text).execs[0].argv


def test_of_a_shell_s_line_only_what_differs_is_written_anew(tmp_path: Path) -> None:
    image(tmp_path, {"srv/key.env": f"API_KEY={KEY}\n"})
    found = unit(
        tmp_path,
        "EnvironmentFile=/srv/key.env\nEnvironment=PORT=8001\n"
        f"ExecStart=/bin/bash -c 'source /opt/v/bin/activate && exec vllm serve {GLM} --port ${{PORT}} --dtype float16 "
        "--tensor-parallel-size 8 --api-key ${API_KEY} 2>>/var/log/%p.log'\n",
    )
    report = judge(found, ASKED)
    step = step_of(report)
    assert step is not None
    planned = from_step(found, report, step, ASKED)
    assert "--port ${PORT} --tensor-parallel-size 8 --api-key ${API_KEY} 2>>/var/log/%p.log'" in planned.text
    assert not holds_key(planned.text)


@given(st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=30), st.data())
def test_a_word_told_anew_becomes_what_was_wanted_or_is_spelt_out(old: str, data: st.DataObject) -> None:
    from attnfit.deploy.dropin import _becomes, retold
    from attnfit.inputs.units.lines import parse
    from attnfit.inputs.units.specifiers import Naming
    from attnfit.inputs.units.unit import _unit
    from attnfit.inputs.units.words import spell

    found = _unit("x.service", Naming("x.service"), "x", (), parse("[Service]\nExecStart=/bin/x\n", "x"))
    pieces = old.split(" ")
    new = " ".join(data.draw(st.lists(st.sampled_from([*pieces, "--new", "50%", "$x"]), max_size=6)))
    told = retold(found, spell(old), old, new, True)
    assert told is None or _becomes(found, told, True) == [new]
