"""`attnfit where`: every cell is what `check` says; GPUs that are seen alike answer alike; the table and its JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import msgspec
import pytest

from attnfit import cli
from attnfit.core import Capability, Gpu
from attnfit.engines import Circumstances, engine
from attnfit.engines.sglang.answers import choose
from attnfit.errors import UsageError
from attnfit.fleet.cell import Cell
from attnfit.fleet.where import Row, sensible
from attnfit.fleet.where import where as walk
from attnfit.gpus import catalogue, matching
from attnfit.inputs.command import parse_command
from attnfit.report.where import render
from attnfit.subject import Where, read
from fleet_cases import ENGINE, asked, check, differences, sample, subject, whole, write
from test_cli import Run, same_as_snapshot
from test_readme import commands

ROOT = Path(__file__).parent.parent
MODEL = "zai-org__GLM-5"


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("NO_COLOR", "TERM", "ATTNFIT_GPU", "ATTNFIT_ENGINE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def attnfit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(monkeypatch, capsys)


@pytest.mark.parametrize("seed", range(8))
def test_a_cell_is_what_check_says_of_that_gpu(seed: int, tmp_path: Path) -> None:
    releases = engine(ENGINE).releases()
    assert sample(Random(seed), tmp_path, releases, gpus=12, cells=6) == []


def test_a_cell_that_differs_is_found(tmp_path: Path) -> None:
    place = write(tmp_path / MODEL, MODEL)
    found = asked(subject(place), "0.33.0", matching("h200")).rows[0].cells[0]
    report = check(place, "H200 SXM 141GB", found.count, "0.33.0")
    assert differences(found, report) == []
    for wrong in ({"serves": "X"}, {"memory": "fits"}, {"answer": "no"}, {"verdict": "breaks"}, {"doubts": ("AF1",)}):
        other = Cell(**{**{name: getattr(found, name) for name in found.__struct_fields__}, **wrong})
        assert differences(other, report), wrong


def test_with_the_weights_at_hand_a_cell_is_what_check_says_too(tmp_path: Path) -> None:
    model = "meta-llama__Llama-3.1-8B-Instruct"
    place = whole(tmp_path, model)
    fleet = asked(subject(place), "0.33.0", matching("4090,h200,t4,v100,rtx 3060 12gb,jetson agx orin 32gb"))
    assert "headers" in fleet.weights_from
    for row in fleet.rows:
        for found in row.cells:
            assert differences(found, check(place, row.gpu.name, found.count, "0.33.0")) == [], row.gpu.name
    card = next(row for row in fleet.rows if row.gpu.name == "GeForce RTX 4090")
    assert (card.cells[0].verdict, card.cells[0].answer) == ("breaks", "with a change")
    assert "changed 1" in render(fleet)


@pytest.mark.parametrize("spec", ["vllm==0.16.0", "vllm==0.33.0", "sglang==0.5.9", "sglang==0.5.23"])
@pytest.mark.parametrize("model", ["examples/glm-5", "examples/qwen3.5-397b-nvfp4"])
def test_gpus_that_a_release_sees_as_one_are_answered_alike(
    spec: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose.cache_clear()
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path))
    monkeypatch.setenv("ATTNFIT_OFFLINE", "1")
    name, _, version = spec.partition("==")
    release, this = engine(name).release(version), read(engine(name), None, model)
    alike: dict[object, set[bytes]] = {}
    for entry in catalogue():
        if entry.cc is not None:
            words = engine(name).default_command(this.files.served_as, 1, this.files.config)
            asked_ = Circumstances(this.model(), entry.gpu, parse_command(words).argv, gpus=1, variables={})
            launch = release.launch(asked_)
            told = msgspec.structs.asdict(launch)
            alike.setdefault(release.sees(entry.gpu), set()).add(msgspec.json.encode(told, order="deterministic"))
    choose.cache_clear()
    assert [key for key, answers in alike.items() if len(answers) > 1] == []
    assert len(alike) > 5


def test_gpus_that_are_seen_alike_are_asked_about_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    this = subject(write(tmp_path / MODEL, MODEL))
    kind = type(engine(ENGINE).release("0.33.0"))
    seen: list[Capability | None] = []
    launch = kind.launch
    monkeypatch.setattr(kind, "launch", lambda self, this: seen.append(this.gpu.capability) or launch(self, this))
    fleet = asked(this, "0.33.0", [entry for entry in catalogue() if entry.cc == "9.0"])
    assert len(fleet.rows) >= 10
    assert 0 < len(seen) <= 5, "once for each number of GPUs"


def test_more_gpus_are_asked_about_only_until_it_fits_for_sure(tmp_path: Path) -> None:
    row = asked(subject(write(tmp_path / MODEL, MODEL)), "0.33.0", matching("b300")).rows[0]
    assert [each.memory for each in row.cells][-1] == "fits"
    assert all(each.memory != "fits" for each in row.cells[:-1])
    assert row.fewest("fits") == row.cells[-1].count


def test_a_board_with_one_gpu_is_asked_about_one(tmp_path: Path) -> None:
    fleet = asked(subject(write(tmp_path / MODEL, MODEL)), "0.33.0", matching("embedded"))
    assert {len(row.cells) for row in fleet.rows} == {1}


def _cell(count: int, answer: str, memory: str = "", **more: str) -> Cell:
    return Cell(count=count, answer=answer, verdict="passes", memory=memory, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cells", "answer", "fits", "may"),
    [
        ([_cell(1, "as is", "may break"), _cell(2, "as is", "fits")], "as is", 2, 1),
        ([_cell(1, "with a change", "fits"), _cell(2, "as is", "fits")], "as is", 2, None),
        ([_cell(1, "as is", "too small"), _cell(2, "with a change", "may break")], "with a change", None, 2),
        ([_cell(1, "as is", "too small"), _cell(2, "no")], "too small", None, None),
        ([_cell(1, "no", "too small")], "too small", None, None),
        ([_cell(1, "unknown"), _cell(2, "no")], "no", None, None),
        ([_cell(1, "unknown")], "unknown", None, None),
        ([_cell(1, "as is", "unknown")], "as is", None, None),
    ],
)
def test_a_gpu_s_answer_is_the_best_that_has_the_memory(
    cells: list[Cell], answer: str, fits: int | None, may: int | None
) -> None:
    row = Row(gpu=Gpu(name="X"), cells=tuple(cells))
    assert (row.answer, row.fewest("fits"), row.fewest("may break")) == (answer, fits, may)


def test_text_is_what_it_was(attnfit: Run) -> None:
    code, out, err = attnfit("where", "examples/glm-5", "--engine", "vllm==0.33.0")
    assert (code, err) == (0, "")
    same_as_snapshot("where.txt", out)
    assert not [line for line in out.splitlines() if len(line) > 80]


def test_every_gpu_of_the_catalogue_is_in_the_table(attnfit: Run) -> None:
    _, out, _ = attnfit("where", "examples/glm-5", "--engine", "vllm==0.33.0", "--all")
    flat = " ".join(out.split())
    assert [entry.name for entry in catalogue() if entry.name not in flat] == []


def test_json_has_the_documented_keys(attnfit: Run) -> None:
    code, out, _ = attnfit("where", "examples/glm-5", "--engine", "vllm==0.33.0", "--gpu", "h200,t4,mi300x", "--json")
    answer = json.loads(out)
    assert (code, answer["schema"], answer["exit_code"]) == (0, 1, 0)
    documented = (ROOT / "docs" / "where.md").read_text("utf-8")
    for key in [*answer, *answer["gpus"][0], *answer["gpus"][0]["cells"][0]]:
        assert f"`{key}`" in documented, f"{key} is not documented"
    assert [(gpu["answer"], gpu["fits"]) for gpu in answer["gpus"]][-2:] == [("no", None), ("unknown", None)]


def test_a_command_is_asked_about_as_it_stands(attnfit: Run) -> None:
    launch = ["--", "vllm", "serve", "examples/glm-5", "--tensor-parallel-size", "8", "--dtype", "float16"]
    _, out, _ = attnfit(
        "where", "--engine", "vllm==0.33.0", "--gpu", "rtx-pro-6000-server", "-n", "8", "--json", *launch
    )
    cell = json.loads(out)["gpus"][0]["cells"][0]
    assert (cell["answer"], cell["verdict"], cell["change"]) == ("with a change", "refused", "drop --dtype float16")
    assert cell["command"] == launch[1:-2]


LLAMA = "meta-llama__Llama-3.1-8B-Instruct"


@pytest.mark.parametrize("wrong", [["--no-such-flag"], ["--attention-backend", "FLASHMLA"]])
def test_two_gpus_may_allow_a_change_that_one_does_not(wrong: list[str], tmp_path: Path) -> None:
    """One GPU and two refuse in the same words; what helps then is asked of each."""
    words = ["vllm", "serve", str(write(tmp_path / LLAMA, LLAMA)), "--data-parallel-size", "2"]
    this = read(engine("vllm"), parse_command([*words, *wrong]), None)
    gpu = next(entry.gpu for entry in matching("h100") if entry.gpu.name == "H100 SXM5 80GB")
    row = walk(this, Where(engine("vllm").release("0.33.0")), [(gpu, (1, 2, 4))]).rows[0]
    one, two = row.cells
    assert (one.answer, two.answer, one.why) == ("no", "with a change", two.why)
    assert (row.answer, list(two.command)) == ("with a change", words)


def test_no_number_that_was_passed_over_starts_it(tmp_path: Path) -> None:
    place = write(tmp_path, "nvidia__GLM-5-NVFP4")
    this, passed_over = subject(place), 0
    for row in asked(this, "0.33.0", matching("v100 pcie 16gb,t4,a30")).rows:
        for count in set(sensible(this, single=False)) - {each.count for each in row.cells}:
            report = check(place, row.gpu.name, count, "0.33.0")
            assert (report.verdict, [step.argv for step in report.steps if step.argv]) == ("refused", [])
            passed_over += 1
    assert passed_over


def test_the_backend_that_was_asked_for_is_the_reason_and_what_was_measured_is_said(
    attnfit: Run, tmp_path: Path
) -> None:
    place = str(write(tmp_path / LLAMA, LLAMA))
    launch = ["--", "vllm", "serve", place, "--attention-backend", "TRITON_MLA"]
    _, out, _ = attnfit("where", "--engine", "vllm==0.33.0", "--gpu", "h100,t4", *launch)
    assert "of 4 GPUs: 3 with a change, 1 has too little memory" in " ".join(out.split())
    assert "because: TRITON_MLA: non-MLA not supported" in out
    assert "memory  reckoned with weights from config.json" in out, "though only the changed launch was measured"


def test_what_a_change_gives_up_is_said_where_it_starts_and_nowhere_else(attnfit: Run) -> None:
    words = ("where", "examples/qwen3.5-397b-nvfp4", "--engine", "vllm==0.33.0", "--gpu", "7.5")
    _, out, _ = attnfit(*words)
    assert out.count("change: --kv-cache-dtype float16") == 2, "where it starts, and where it would but for the memory"
    assert out.count("gives up: ") == 1


def test_the_page_shows_what_is_printed(attnfit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path / "none"))
    shown = commands((ROOT / "docs" / "where.md").read_text("utf-8"))
    assert len(shown) >= 3
    for command, output in shown:
        assert attnfit(*command.split()[1:])[1] == output, command


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["where"], 2, "no model"),
        (["where", "no/such/dir/x"], 2, "no/such/dir/x"),
        (["where", "examples/glm-5", "--gpu", "h9000"], 2, "no GPU of the catalogue is 'h9000'"),
        (["where", "examples/glm-5", "--gpu", "h200x8"], 2, "without a number"),
        (["where", "examples/glm-5", "--gpu", "h200,"], 2, "empty"),
        (["where", "examples/glm-5", "--gpu", "9.1"], 2, "9.1"),
        (["where", "examples/glm-5", "--engine", "vllm==banana"], 2, "banana"),
        (["where", "examples/glm-5", "--engine", "vllm==0.9.0"], 3, "0.12.0"),
        (["where", "examples/glm-5", "--json", "--quiet"], 2, "give one of them"),
        (["where", "examples/glm-5", "--", "ls"], 2, "ls"),
    ],
)
def test_bad_input_is_one_error_with_the_right_exit_code(attnfit: Run, words: list[str], code: int, says: str) -> None:
    got, out, err = attnfit(*words)
    assert (got, out) == (code, "")
    assert says in err
    assert "Traceback" not in err


def test_what_is_known_of_no_gpu_exits_3(attnfit: Run) -> None:
    code, out, _ = attnfit("where", "examples/glm-5", "--engine", "vllm==0.33.0", "--gpu", "amd", "--quiet")
    assert (code, "unknown" in out) == (3, True)


def test_the_opinion_of_another_book_exits_3(attnfit: Run) -> None:
    code, out, _ = attnfit("where", "examples/glm-5", "--engine", "vllm==0.33.1.dev5", "--gpu", "h200", "--quiet")
    assert (code, "opinion" in out) == (3, True)


def test_names_kinds_and_capabilities_choose_gpus() -> None:
    assert {entry.cc for entry in matching("12.0,7.5")} == {"12.0", "7.5"}
    assert {entry.kind for entry in matching("embedded")} == {"embedded"}
    assert len(matching("h100")) > 1, "a name that fits several stands for all of them"
    assert [entry.name for entry in matching("t4,T4,7.5")].count("T4") == 1
    with pytest.raises(UsageError, match="did you mean"):
        matching("h20000")


def test_a_secret_in_the_command_is_not_printed(attnfit: Run) -> None:
    secret = "sEcReTvAlUe123456789"
    launch = ["--", "vllm", "serve", "examples/glm-5", "--dtype", "float16", "--api-key", secret]
    for form in ([], ["--json"]):
        _, out, err = attnfit("where", "--engine", "vllm==0.33.0", "--gpu", "h200,t4", *form, *launch)
        assert secret not in out + err


def test_it_imports_neither_torch_nor_an_engine() -> None:
    import subprocess

    code = (
        "import sys; sys.argv=['attnfit','where','examples/glm-5','--gpu','h200','--quiet']\nfrom attnfit import cli\n"
    )
    code += "try: cli.main()\nexcept SystemExit: pass\nassert not {'torch','transformers','vllm'} & set(sys.modules)\n"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


assert cli  # `Run` starts it
