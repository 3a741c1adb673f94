"""The fit machine: what a kernel is said to need is what it needs, and nothing that goes wrong passes for an answer.

Everything runs in the machine's own child process, without TRITON_INTERPRET.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnfit.inputs import kernel_fit
from attnfit.inputs.kernel_rows import Answer, Row
from attnfit.kernels.fit import cubin

LIMITS = {
    "7.0": 98304,
    "7.5": 65536,
    "8.0": 166912,
    "8.6": 101376,
    "8.9": 101376,
    "9.0": 232448,
    "12.0": 101376,
    "10.0": 232448,
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the file: tests that ask the same kernel compile it once."""
    return tmp_path_factory.mktemp("kept")


def ask(
    kept: Path | None, *cases: str, on: str = "8.6", limit: int | None = None, home: Path | None = None, **job: Any
) -> Answer:
    """The answer to made-up cases, from a child that was given this job."""
    matmul = job.pop("matmul", None)
    whole = {
        "capabilities": on.split(),
        "limits": LIMITS if limit is None else dict.fromkeys(on.split(), limit),
        "module": "fit_cases",
        "ask": {"cases": cases, "matmul": matmul},
        **({"cache": str(kept)} if kept else {}),
        **job,
    }
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    if home:
        environment["HOME"] = str(home)
    assert environment["TRITON_INTERPRET"] == "1", "which the child must not heed"
    done = subprocess.run(
        [sys.executable, str(kernel_fit.CHILD)],
        input=json.dumps(whole).encode(),
        capture_output=True,
        env=environment,
        timeout=500,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]  # nothing but JSON may stand there
    assert lines, done.stderr.decode()[-2000:]
    assert "error" not in lines[-1], lines[-1]
    return msgspec.convert(lines[-1], Answer, strict=False)


def one(answer: Answer) -> Row:
    assert not answer.failures
    (row,) = answer.rows
    return row


@pytest.mark.parametrize("on", ["8.6", "12.0"])
@pytest.mark.parametrize(("m", "k", "stages"), [(64, 64, 2), (64, 64, 3), (128, 64, 2)])
def test_shared_memory_is_what_the_tiles_take(kept: Path, on: str, m: int, k: int, stages: int) -> None:
    row = one(ask(kept, "matmul", on=on, matmul=(m, k, stages)))
    assert row.shared == (stages - 1) * 2 * m * k * 2  # buffers, of A and B, of two bytes a value
    assert (row.verdict, row.threads, row.num_stages) == ("fits", 128, stages)
    assert row.registers is not None
    assert 32 <= row.registers <= 255


def test_a_block_may_have_the_limit_and_not_a_byte_more(kept: Path) -> None:
    exact = one(ask(kept, "matmul", limit=16384, matmul=(64, 64, 2)))
    assert exact.verdict == "fits"
    over = one(ask(kept, "matmul", limit=16383, matmul=(64, 64, 2)))
    assert (over.verdict, over.exception) == ("does not fit", "OutOfResources")
    assert over.message.startswith("out of resource: shared memory, Required: 16384, Hardware limit: 16383.")
    assert over.occupancy is None


@pytest.mark.parametrize(
    ("on", "instruction"), [("8.6", "HMMA"), ("9.0", "HGMMA"), ("10.0", "UTCHMMA"), ("12.0", "HMMA"), ("7.5", None)]
)
def test_the_tensor_core_instructions_are_those_of_the_gpu(kept: Path, on: str, instruction: str | None) -> None:
    row = one(ask(kept, "matmul", on=on, matmul=(64, 32, 2)))
    assert row.instructions is not None
    found = {opcode.partition(".")[0] for opcode in row.instructions.tensor}
    assert found == ({instruction} if instruction else set()), "Triton has no tensor cores below 8.0"
    assert (row.tensor_memory is not None) == (on == "10.0")


def test_what_the_disassembler_does_not_know_is_left_open(kept: Path) -> None:
    row = one(ask(kept, "strided", on="7.0"))
    assert (row.verdict, row.instructions, row.occupancy) == ("fits", None, None)
    assert row.registers


def test_a_kernel_that_spills_says_how_much(kept: Path) -> None:
    row = one(ask(kept, "matmul", on="8.6", limit=1 << 20, matmul=(256, 32, 2)))
    assert row.instructions is not None
    assert row.registers == 255
    assert row.spill_stores
    assert row.spill_loads
    assert row.stack
    assert row.instructions.local["STL"]
    assert row.instructions.local["LDL"]


def test_an_autotuner_s_configurations_are_those_its_own_pruning_leaves(kept: Path) -> None:
    answer = ask(kept, "tuned", on="8.6")
    metas = [(row.tuned.meta["BLOCK_M"], row.tuned.meta["num_stages"]) for row in answer.rows if row.tuned]
    assert metas == [(64, 2), (128, 2), (128, 3)]
    assert all(row.tuned and (row.tuned.of, row.tuned.declared) == (3, 4) for row in answer.rows)
    assert [row.verdict for row in answer.rows] == ["fits", "fits", "does not fit"]
    assert [row.grid for row in answer.rows] == [(64, 2, 1), (128, 2, 1), (128, 2, 1)]
    (launch,) = answer.outcomes()
    assert launch.verdict == "fits", "the autotuner passes over what is out of resources"


def test_a_launch_whose_configurations_are_all_too_large_does_not_fit(kept: Path) -> None:
    (launch,) = ask(kept, "all large", on="8.6").outcomes()
    assert [row.verdict for row in launch.rows] == ["does not fit"] * 2
    assert launch.verdict == "does not fit"
    (larger,) = ask(kept, "all large", on="9.0").outcomes()
    assert larger.verdict == "fits"


def test_an_exception_that_an_autotuner_does_not_expect_ends_the_launch(kept: Path) -> None:
    (launch,) = ask(kept, "clusters", on="8.6").outcomes()
    assert [row.verdict for row in launch.rows] == ["fits", "does not compile"]
    assert launch.rows[1].exception == "ValueError"
    assert "SM90" in launch.rows[1].message
    assert launch.verdict == "does not compile"


def test_heuristics_see_the_arguments(kept: Path) -> None:
    assert one(ask(kept, "heuristic")).constexprs == {"BLOCK_M": 64, "BLOCK_K": 32}


def test_alignment_strides_and_ones_are_specialised_as_a_launch_does(kept: Path) -> None:
    answer = ask(kept, "aligned", "misaligned", "strided", "twice")
    loads = {}
    for row in answer.rows:
        assert row.instructions is not None
        loads[row.case] = sum(row.instructions.global_loads.values())
        assert row.grid == (7, 3, 1)
    assert loads["aligned"] < loads["misaligned"], "wide loads need an address divisible by 16"
    assert len({row.key for row in answer.rows}) == 3
    assert [row.launch for row in answer.rows if row.case == "twice"] == [0, 1]


def test_tensors_without_memory_are_specialised_as_real_ones(kept: Path) -> None:
    answer = ask(kept, "aligned", "misaligned", "strided", "on the CPU")
    assert [row.key for row in answer.rows[:3]] == [row.key for row in answer.rows[3:]]


def test_what_the_compiler_refuses_is_told_in_its_words(kept: Path) -> None:
    answer = ask(kept, "e4m3", "asserting", "python function", on="8.6 8.9")
    found = {(row.case, row.capability): (row.verdict, row.exception) for row in answer.rows}
    assert found == {
        ("e4m3", "8.6"): ("does not compile", "CompilationError"),
        ("asserting", "8.6"): ("does not compile", "CompileTimeAssertionFailure"),
        ("python function", "8.6"): ("does not compile", "RuntimeError"),
        ("python function", "8.9"): ("does not compile", "RuntimeError"),
        ("e4m3", "8.9"): ("fits", ""),
        ("asserting", "8.9"): ("does not compile", "CompileTimeAssertionFailure"),
    }
    assert "type fp8e4nv not supported in this architecture" in answer.rows[0].message
    assert "N is too small" in answer.rows[1].message
    assert answer.rows[2].message.startswith("Unsupported function referenced: <built-in function time>")


def test_a_compiler_that_dies_or_hangs_is_unknown_and_takes_nothing_with_it(kept: Path) -> None:
    started = time.monotonic()
    answer = ask(kept, "deadly", "killed", "slow", "aligned", seconds=20)
    assert time.monotonic() - started < 60
    found = {row.case: (row.verdict, row.message) for row in answer.rows}
    assert found["deadly"] == ("unknown", "the compiler died (SIGSEGV)")
    assert found["killed"] == ("unknown", "the compiler died (SIGKILL)")
    assert found["slow"] == ("unknown", "the compiler took longer than 20 s and was stopped")
    assert found["aligned"] == ("fits", "")


def test_host_code_sees_the_gpu_it_is_asked_about(kept: Path) -> None:
    answer = ask(kept, "by capability", on="8.6 9.0")
    assert {row.capability: row.constexprs["BLOCK_M"] for row in answer.rows} == {"8.6": 32, "9.0": 64}


def test_a_launch_that_never_came_about_is_a_failure_with_its_reason(kept: Path) -> None:
    answer = ask(kept, "lacks", "breaks", "nothing", "aligned")
    assert [row.case for row in answer.rows] == ["aligned"]
    messages = {failure.case: failure.message for failure in answer.failures}
    assert messages["lacks"] == "the model has no head size"
    assert messages["nothing"] == "it launched no Triton kernel"
    assert messages["breaks"].startswith("the launch function failed before Triton was asked: a fault of the adapter (")


def test_what_differs_between_gpus_of_one_capability_is_not_guessed(kept: Path) -> None:
    (failure,) = ask(kept, "multiprocessors").failures
    assert "multi_processor_count of a GPU that is not there is not known" in failure.message
    known = one(ask(kept, "multiprocessors", properties={"8.6": {"multiprocessor_count": 84}}))
    assert known.grid == (84, 1, 1)


def test_a_second_ask_compiles_nothing_and_a_broken_cache_is_no_harm(tmp_path: Path) -> None:
    cache = tmp_path / "new" / "kept"
    first = one(ask(cache, "strided"))
    (file,) = cache.iterdir()
    assert json.loads(file.read_bytes())["shared"] == first.shared
    stamped = file.stat().st_mtime_ns
    assert one(ask(cache, "strided")) == first
    assert file.stat().st_mtime_ns == stamped
    for broken in ("{", "5", '{"verdict": "fits"}', '{"verdict": [1]}'):
        file.write_text(broken)
        assert msgspec.structs.replace(one(ask(cache, "strided")), seconds=first.seconds) == first


def test_nothing_is_left_in_the_user_s_home(tmp_path: Path) -> None:
    one(ask(None, "strided", home=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_module_that_cannot_be_asked_is_unknown(kept: Path) -> None:
    answer = ask(kept, module="no_such_module")
    assert answer.rows == ()
    assert answer.failures[0].message.startswith("the launches could not be listed: No module named 'no_such_module'")


def test_the_house_asks_and_hears_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path))
    heard: list[tuple[int, int]] = []
    answer = kernel_fit.ask(
        ["12.0"],
        wanted="sparse_mla float16 576 H=16 split",
        python=sys.executable,
        progress=lambda done, of: heard.append((done, of)),
    )
    assert [row.kernel for row in answer.rows] == ["sparse_mla_latent_kernel", "merge_splits_kernel"]
    assert {row.verdict for row in answer.rows} == {"fits"}
    assert heard == [(1, 2), (2, 2)]
    assert len(list((tmp_path / "kernel-fit").iterdir())) == 2


def test_turing_is_refused_by_what_the_kernels_need_there(kept: Path) -> None:
    answer = ask(kept, on="7.5", module="attnfit.kernels.fit.ours", wanted="virtual_blocks float16 576 H=16")
    row = answer.rows[0]
    assert (row.kernel, row.verdict) == ("paged_mla_decode_kernel", "does not fit")
    assert row.shared is not None
    assert row.shared > row.limit == 65536
    assert row.note == "no configuration for 7.5; tried with that of 8.6"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_compilers_and_folders_go_with_the_one_who_asked(tmp_path: Path, number: signal.Signals) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    code = (
        "from attnfit.inputs import kernel_fit\n"
        "kernel_fit.ask(['8.6', '9.0'], module='fit_cases', about={'cases': ['slow']}, cache=False)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    asking = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": path}
    )

    def started() -> list[Path]:
        """Processes whose temporary folder is below ours: the child, one for each capability, their compilers."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"TMPDIR={temporary}/attnfit-kernels-".encode() in (process / "environ").read_bytes():
                    found.append(process)
        return found

    until, most = time.monotonic() + 60, 0
    while most < 4 and time.monotonic() < until:
        most = max(most, len(started()))  # a compiler comes and goes
        time.sleep(0.1)
    assert most >= 4, "with one CPU, one compiler at a time"
    asking.send_signal(number)
    assert asking.wait(20) == -number
    time.sleep(1)
    assert started() == []
    assert list(temporary.iterdir()) == []


def test_the_page_s_module_is_asked_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "kernel-fit.md").read_text("utf-8")
    (tmp_path / "my_cases.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    (tmp_path / "my_kernels.py").write_text(
        "import fit_cases\n"
        "def decode_attention(q, rest):\n"
        "    assert q.shape == (4, 16, 576)\n"
        "    next(iter(fit_cases.cases({'cases': ['strided'], 'matmul': None}, '12.0'))).call()\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parent), *sys.path]))
    row = one(kernel_fit.ask(["12.0"], module="my_cases", about={"heads": 16}, cache=False))
    assert (row.case, row.verdict) == ("decode", "fits")
    (failure,) = kernel_fit.ask(["12.0"], module="my_cases", cache=False).failures
    assert failure.message == "the number of heads is not given"


@pytest.mark.parametrize(("capability", "own"), [("7.5", 2048), ("8.9", 2048), ("9.0", 1024), ("12.1", 1024)])
def test_the_system_s_share_is_taken_off_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, capability: str, own: int
) -> None:
    monkeypatch.setattr(cubin, "_run", lambda *_: "REG:40 STACK:0 SHARED:2048 LOCAL:0")
    assert cubin.resources(Path("a.cubin"), capability).static_shared == own
