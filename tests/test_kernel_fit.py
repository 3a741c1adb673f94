"""`attnfit kernels fit` without torch: recorded answers of real children are read, judged and printed as promised."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnfit import gpus
from attnfit.inputs import kernel_fit, scratch
from attnfit.inputs.kernel_rows import Answer, Row
from attnfit.kernels.fit import kept, occupancy
from attnfit.report import kernels as report
from test_cli import Run, _at_the_root, attnfit, same_as_snapshot  # noqa: F401 (fixtures)

DATA = Path(__file__).parent / "data" / "kernel_fit"


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(kernel_fit.VARIABLE, raising=False)


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_bytes())
    return found


def answer(name: str) -> Answer:
    return msgspec.convert(recorded(name), Answer, strict=False)


@pytest.fixture
def python(tmp_path: Path) -> Any:
    """Makes a program that takes the place of a Python with torch: it keeps its job and says what it is told."""

    def make(*lines: object, status: int = 0, stderr: str = "") -> str:
        said = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        (tmp_path / "said").write_text(said)
        program = tmp_path / "python"
        program.write_text(
            f"#!{sys.executable}\nimport sys, pathlib, os\n"
            f"pathlib.Path({str(tmp_path / 'job')!r}).write_text(sys.stdin.read())\n"
            f"pathlib.Path({str(tmp_path / 'words')!r}).write_text(' '.join(sys.argv[1:]))\n"
            f"pathlib.Path({str(tmp_path / 'interpret')!r}).write_text(os.environ.get('TRITON_INTERPRET', ''))\n"
            f"sys.stdout.write(pathlib.Path({str(tmp_path / 'said')!r}).read_text())\n"
            f"sys.stderr.write({stderr!r})\nsys.exit({status})\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return str(program)

    return make


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("ours", ["--cc", "9.0", "--cc", "12.0"], 0),
        ("ours", ["--cc", "12.0", "--all"], 0),
        ("turing", ["--cc", "7.5"], 1),
        ("made-up", ["--gpu", "rtx-3090"], 1),
        ("ours", ["--cc", "9.0", "--quiet"], 0),
        ("turing", ["--cc", "7.5", "--quiet"], 1),
    ],
)
def test_text_is_what_it_was(attnfit: Run, python: Any, name: str, words: list[str], code: int) -> None:  # noqa: F811
    got, out, err = attnfit("kernels", "fit", *words, "--python", python({"progress": [1, 2]}, recorded(name)))
    assert (got, err) == (code, "")
    assert not [line for line in out.splitlines() if len(line) > 80]
    flags = "".join(word for word in words if word in ("--all", "--quiet"))
    same_as_snapshot(f"kernels-{name}{flags}.txt", out)


def test_json_is_the_child_s_answer_and_the_verdict(attnfit: Run, python: Any) -> None:  # noqa: F811
    got, out, _ = attnfit("kernels", "fit", "--cc", "7.5", "--json", "--python", python(recorded("turing")))
    found = json.loads(out)
    assert (got, found["exit_code"], found["verdict"], found["schema"]) == (1, 1, "does not fit", 1)
    assert found["capabilities"] == ["7.5"]
    assert found["rows"][0]["shared"] == recorded("turing")["rows"][0]["shared"]


def test_the_child_is_told_the_catalogue_s_limits_and_nothing_interprets(
    attnfit: Run,  # noqa: F811
    python: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    attnfit("kernels", "fit", "--python", python(recorded("ours")))
    job = json.loads((tmp_path / "job").read_text())
    assert job["capabilities"] == list(kernel_fit.CAPABILITIES)
    assert job["limits"]["12.0"] == 101376
    assert job["limits"]["9.0"] == 232448
    assert job["module"] == kernel_fit.OURS
    assert job["cache"] == str(tmp_path / "cache" / "kernel-fit")
    assert (tmp_path / "words").read_text() == str(kernel_fit.CHILD)
    assert kernel_fit.CHILD.is_file()
    assert (tmp_path / "interpret").read_text() == ""


def test_an_engine_that_is_always_meant_does_not_stand_in_the_way(
    attnfit: Run,  # noqa: F811
    python: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ATTNFIT_ENGINE", "vllm==0.33.0")
    assert attnfit("kernels", "fit", "--cc", "9.0", "--python", python(recorded("ours")))[0] == 0


def test_a_python_that_is_too_old_is_told_which_is_needed(attnfit: Run, python: Any, tmp_path: Path) -> None:  # noqa: F811
    needed = "and kernels are compiled under 3.11 or newer"
    says_so = python({"error": {"kind": "python", "message": "3.8"}})
    code, _, err = attnfit("kernels", "fit", "--cc", "9.0", "--python", says_so)
    assert (code, f"is Python 3.8, {needed}" in err) == (2, True)
    ancient = tmp_path / "ancient"
    ancient.write_text('#!/bin/sh\nif [ "$1" = -c ]; then printf 2.7; else echo SyntaxError: invalid >&2; exit 1; fi\n')
    ancient.chmod(0o755)
    code, _, err = attnfit("kernels", "fit", "--cc", "9.0", "--python", str(ancient))
    assert (code, f"is Python 2.7, {needed}" in err) == (2, True)


def test_the_child_itself_says_that_its_python_is_too_old() -> None:
    child = kernel_fit.CHILD.read_text("utf-8").replace("NEEDED = (3, 11)", "NEEDED = (3, 99)")
    done = subprocess.run([sys.executable, "-c", child.replace("__file__", repr(str(kernel_fit.CHILD)))],
                          input="{}", capture_output=True, text=True, check=True)  # fmt: skip
    assert json.loads(done.stdout)["error"]["kind"] == "python"


def test_gpus_of_one_capability_are_asked_once(attnfit: Run, python: Any, tmp_path: Path) -> None:  # noqa: F811
    attnfit("kernels", "fit", "--gpu", "rtx-5090,rtx-pro-6000x4,h100", "--python", python(recorded("ours")))
    assert json.loads((tmp_path / "job").read_text())["capabilities"] == ["12.0", "9.0"]


def test_the_python_is_the_flag_s_then_the_variable_s(
    attnfit: Run,  # noqa: F811
    python: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(kernel_fit.VARIABLE, "/no/such/python")
    assert attnfit("kernels", "fit", "--cc", "9.0", "--python", python(recorded("ours")))[0] == 0
    code, _, err = attnfit("kernels", "fit", "--cc", "9.0")
    assert code == 2
    assert "ATTNFIT_KERNELS_PYTHON /no/such/python: there is no such program" in err


def test_without_torch_the_extra_is_named_and_the_answer_is_unknown(attnfit: Run, python: Any) -> None:  # noqa: F811
    missing = {"error": {"kind": "missing", "message": "torch and triton"}}
    code, out, err = attnfit("kernels", "fit", "--cc", "9.0", "--python", python(missing))
    assert (code, out) == (3, "")
    assert "has no torch and triton: pip install 'attnfit[kernels]'" in err


@pytest.mark.parametrize(
    ("lines", "status", "stderr", "said"),
    [
        ([{"error": {"kind": "ImportError", "message": "Triton 3.1.0 is too old"}}], 0, "", "Triton 3.1.0 is too old"),
        ([{"progress": [1, 9]}], 1, "Traceback\nMemoryError: no more\n", "ended without an answer"),
        ([{"progress": [1, 9]}], 1, "Traceback\nMemoryError: no more\n", "MemoryError: no more"),
        (["not JSON"], 0, "", "ended without an answer"),
    ],
)
def test_a_child_that_cannot_answer_is_unknown_in_one_sentence(
    attnfit: Run,  # noqa: F811
    python: Any,
    lines: list[object],
    status: int,
    stderr: str,
    said: str,
) -> None:
    code, out, err = attnfit("kernels", "fit", "--cc", "9.0", "--python", python(*lines, status=status, stderr=stderr))
    assert (code, out) == (3, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--cc", "12"], 2, "'12' is no compute capability; write one as 12.0"),
        (["--cc", "13.0"], 2, "no GPU has compute capability 13.0; known: "),
        (["--gpu", "h100", "--cc", "9.0"], 2, "give one of them"),
        (["--json", "--quiet"], 2, "give one of them"),
        (["--cc", "9.0", "--engine", "vllm==0.33.0"], 2, "give MODEL, or the launch command behind --"),
        (["--gpu", "rtx-5009"], 2, "did you mean"),
        (["--gpu", "mi300x"], 3, "has no CUDA compute capability"),
    ],
)
def test_what_cannot_be_asked_is_told(attnfit: Run, words: list[str], code: int, said: str) -> None:  # noqa: F811
    got, out, err = attnfit("kernels", "fit", *words)
    assert (got, out) == (code, "")
    assert said in err


def test_the_variable_for_the_gpu_gives_way_to_a_capability(
    attnfit: Run,  # noqa: F811
    python: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ATTNFIT_GPU", "h100")
    attnfit("kernels", "fit", "--python", python(recorded("ours")))
    assert json.loads((tmp_path / "job").read_text())["capabilities"] == ["9.0"]
    attnfit("kernels", "fit", "--cc", "12.0", "--python", python(recorded("ours")))
    assert json.loads((tmp_path / "job").read_text())["capabilities"] == ["12.0"]


def rows(name: str, case: str) -> list[Row]:
    return [row for row in answer(name).rows if row.case == case]


def test_an_autotuned_launch_fits_while_one_configuration_does() -> None:
    outcomes = {outcome.rows[0].case: outcome for outcome in answer("made-up").outcomes()}
    assert outcomes["tuned"].verdict == "fits"
    assert [row.verdict for row in outcomes["tuned"].rows] == ["fits", "fits", "does not fit"]
    assert outcomes["all large"].verdict == "does not fit"
    assert outcomes["clusters"].verdict == "does not compile", "an autotuner expects no ValueError"
    assert outcomes["deadly"].verdict == "unknown"


@pytest.mark.parametrize(
    ("cases", "failures", "code"),
    [
        (["tuned"], False, 0),
        (["tuned", "deadly"], False, 3),
        (["tuned"], True, 3),
        (["tuned", "deadly", "all large"], True, 1),
        ([], False, 3),
    ],
)
def test_the_exit_code_is_the_worst_that_is_known(cases: list[str], failures: bool, code: int) -> None:
    whole = answer("made-up")
    kept = tuple(row for row in whole.rows if row.case in cases)
    some = msgspec.structs.replace(whole, rows=kept, failures=whole.failures if failures else ())
    assert report.exit_code(some) == code


def test_a_spilling_kernel_that_fits_is_told() -> None:
    whole = answer("ours")
    spilled = msgspec.structs.replace(whole.rows[0], spill_stores=8)
    assert "none spills registers" in report.verdict_line(whole)
    assert "1 of them spill registers" in report.verdict_line(msgspec.structs.replace(whole, rows=(spilled,)))


def test_check_pays_nothing_for_it() -> None:
    code = "import sys, attnfit.cli; print([m for m in sys.modules if 'kernel' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]"


def test_the_occupancy_table_covers_what_we_compile_for() -> None:
    assert {*kernel_fit.CAPABILITIES, "7.5"} <= set(occupancy.LIMITS)
    for capability, sm in occupancy.LIMITS.items():
        block = kernel_fit.limit_of(capability) // 1024
        assert sm.shared_kib - block == (0 if capability == "7.5" else 1), "1 KiB of each block is the driver's"
    assert set(occupancy.LIMITS) <= {str(capability) for capability in gpus.capabilities()}


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks", "limited_by"),
    [
        # CUDA C++ Best Practices Guide, "Calculating Occupancy" (7.0 there; the same limits as 8.0)
        ("8.0", 128, 37, 0, 12, ("registers",)),
        ("8.0", 320, 37, 0, 4, ("registers",)),
        ("8.0", 1024, 32, 0, 2, ("warps", "registers")),
        # NVIDIA Ampere GPU Architecture Tuning Guide, "Occupancy": 32 blocks and 64 warps; 16 and 48 on 8.6
        ("8.0", 32, 16, 0, 32, ("blocks",)),
        ("8.6", 32, 16, 0, 16, ("blocks",)),
        ("8.6", 1024, 32, 0, 1, ("warps",)),
        # 163 KB to one block of 164, 227 of 228, 99 of 100
        ("8.0", 256, 32, 166912, 1, ("shared memory",)),
        ("9.0", 256, 32, 232448, 1, ("shared memory",)),
        ("12.0", 256, 32, 101376, 1, ("shared memory",)),
        ("9.0", 256, 32, 232449, 0, ("shared memory",)),
        # twice 50 KiB less the driver's share of each
        ("12.0", 256, 32, 50176, 2, ("shared memory",)),
        ("12.0", 256, 32, 50177, 1, ("shared memory",)),
    ],
)
def test_occupancy_is_the_published_one(
    capability: str, threads: int, registers: int, shared: int, blocks: int, limited_by: tuple[str, ...]
) -> None:
    found = occupancy.estimate(capability, threads, registers, shared)
    assert found is not None
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.warps == blocks * threads // 32


def test_tensor_memory_holds_blocks_back_and_registers_bound_a_block() -> None:
    found = occupancy.estimate("10.0", 128, 32, 0, columns=256)
    assert found is not None
    assert (found.blocks, found.limited_by) == (2, ("tensor memory",))
    assert [occupancy.most_threads(registers) for registers in (32, 64, 65, 128, 255)] == [1024, 1024, 896, 512, 256]
    assert occupancy.estimate("13.0", 128, 32, 0) is None


SLOW = """#!{python}
import json, os, pathlib, subprocess, sys, time
from attnfit.kernels.fit.lifeline import Lifeline, follow
job = json.loads(sys.stdin.read())
lifeline, me = Lifeline(job), os.getpid()
if (worker := os.fork()) == 0:
    follow(me)
    time.sleep(60)
compiler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
(pathlib.Path(job["scratch"]) / "half").write_text("")
pathlib.Path({pids!r} + ".part").write_text(f"{{me}} {{worker}} {{compiler.pid}}")
os.rename({pids!r} + ".part", {pids!r})
while not lifeline.cut():
    time.sleep(0.05)
lifeline.end()
"""


def eventually(true: Callable[[], bool], seconds: float = 20) -> bool:
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.02)
    return true()


def running(pid: int) -> bool:
    """Whether it runs; one that nobody has waited for yet does not."""
    try:
        said = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return Path(f"/proc/{pid}").exists() and ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    return bool(said.stdout.strip()) and not said.stdout.startswith("Z")


@pytest.mark.parametrize("between", [False, True], ids=["directly", "through a script"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_the_ask_ends_all_that_it_started(tmp_path: Path, number: signal.Signals, between: bool) -> None:
    program, pids, temporary = tmp_path / "python", tmp_path / "pids", tmp_path / "tmp"
    temporary.mkdir()
    program.write_text(SLOW.format(python=sys.executable, pids=str(pids)))
    program.chmod(0o755)
    if between:
        script = tmp_path / "script"
        script.write_text(f'#!/bin/sh\n{program} "$@"\nexit $?\n')
        script.chmod(0o755)
        program = script
    asking = subprocess.Popen(
        [sys.executable, "-m", "attnfit", "kernels", "fit", "--cc", "9.0", "--python", str(program)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.DEVNULL,
    )
    assert eventually(pids.exists)
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 3
    assert all(running(pid) for pid in started)
    assert [folder.name.startswith(scratch.PREFIX) for folder in temporary.iterdir()] == [True]
    asking.send_signal(number)
    assert asking.wait(20) == (130 if number == signal.SIGINT else -number)
    assert eventually(lambda: not any(running(pid) for pid in started), 5)
    assert eventually(lambda: list(temporary.iterdir()) == [], 5)


def test_folders_of_the_dead_are_swept_and_those_of_the_living_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead, fresh, other = (tmp_path / name for name in (f"{scratch.PREFIX}a", f"{scratch.PREFIX}b", "other"))
    for folder in (dead, fresh, other):
        folder.mkdir()
    with scratch.scratch() as living:
        for folder in (dead, other, Path(living)):
            os.utime(folder, (0, 0))
        with scratch.scratch():
            assert not dead.exists()
            assert {fresh, other, Path(living)} <= set(tmp_path.iterdir())
    assert set(tmp_path.iterdir()) == {fresh, other}


def test_a_signal_that_is_ignored_or_handled_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with scratch.unwinding():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


KEPT = {
    "verdict": "fits", "num_warps": 4, "num_stages": 3, "num_ctas": 1, "threads": 128, "shared": 16, "registers": 40,
    "tensor_memory": None, "stack": 0, "spill_stores": 0, "spill_loads": 0, "seconds": 0.3,
    "instructions": {"total": 90, "tensor": {}, "global_loads": {"LDG": 2}, "local": {}},
    "occupancy": {"blocks": 12, "warps": 48, "most": 48, "limited_by": ["warps"]},
}  # fmt: skip
REFUSAL = {"verdict": "does not compile", "exception": "CompilationError", "message": "", "num_warps": None}


@pytest.mark.parametrize("result", [KEPT, REFUSAL, {**KEPT, "instructions": None, "occupancy": None}])
def test_a_result_that_was_kept_is_the_result(tmp_path: Path, result: dict[str, Any]) -> None:
    kept.keep(tmp_path, "k", result)
    assert kept.kept(tmp_path, "k") == result
    assert [file.name for file in tmp_path.iterdir()] == ["k.json"]


@pytest.mark.parametrize(
    "content",
    [
        "5", "null", "[]", '"fits"', "{", "[" * 100_000, "\x00", '{"verdict":"fits"}', '{"verdict":[1]}',
        '{"verdict":"unknown"}', '{"verdict":"does not compile"}',
        *(json.dumps({**KEPT, **wrong}) for wrong in (
            {"verdict": "fit"}, {"verdict": "does not fit"}, {"shared": "16"}, {"shared": -1}, {"shared": None},
            {"registers": True}, {"message": 5}, {"seconds": "1"}, {"surprise": 1}, {"instructions": 5},
            {"instructions": {"total": 90}}, {"occupancy": {"blocks": 12}}, {"occupancy": []},
            {"occupancy": {**KEPT["occupancy"], "limited_by": "warps"}},  # type: ignore[dict-item]
        )),
    ],
)  # fmt: skip
def test_what_is_not_a_whole_result_was_not_kept(tmp_path: Path, content: str) -> None:
    (tmp_path / "k.json").write_text(content)
    assert kept.kept(tmp_path, "k") is None


def test_a_full_disk_keeps_nothing_not_even_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dump", full)
    kept.keep(tmp_path, "k", KEPT)
    assert list(tmp_path.iterdir()) == []
