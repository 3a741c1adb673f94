"""`attnfit explain`: the user's own command is found where it stands in the log, and nothing is taken for one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

import pytest

from attnfit.errors import UsageError
from attnfit.report.explain import render
from explain_logs import answer, sglang, vllm

MAMBA = (
    "(EngineCore_DP0 pid=1) ERROR 11-20 10:00:00 [core.py:1] ValueError: max_num_seqs (512) exceeds available Mamba "
)
MAMBA += "cache blocks (301).\n"


def corrected(log: str, command: Sequence[str] = ()) -> list[str]:
    return [" ".join(way.command) for way in answer(log, command).ways if way.command]


WANT = "vllm serve org/m --max-num-seqs 301"
IN_ONE_LINE = {  # line -> the corrected command, None where it is the line's end with the new figure
    "vllm serve org/m --max-num-seqs 512": None,
    "HF_HOME=/x vllm serve org/m --max-num-seqs 512": "HF_HOME=/x " + WANT,
    "/opt/venv/bin/vllm serve org/m --max-num-seqs 512": "/opt/venv/bin/" + WANT,
    "nohup vllm serve org/m --max-num-seqs 512": "nohup " + WANT,
    "python3 -m vllm.entrypoints.openai.api_server --model org/m --max-num-seqs 512": (
        "python3 -m vllm.entrypoints.openai.api_server --model org/m --max-num-seqs 301"
    ),
    "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.28.0 --model org/m --max-num-seqs 512": (
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.28.0 --model org/m --max-num-seqs 301"
    ),
    "$ vllm serve org/m --max-num-seqs 512": None,
    "+ vllm serve org/m --max-num-seqs 512": None,
    "++ exec vllm serve org/m --max-num-seqs 512": "exec " + WANT,
    "root@3f2a9c:/workspace# vllm serve org/m --max-num-seqs 512": None,
    "(venv) ada@gpu-1:~/llm$ vllm serve org/m --max-num-seqs 512": None,
    "[ada@gpu-1 llm]$ vllm serve org/m --max-num-seqs 512": None,
    "bash-5.1# vllm serve org/m --max-num-seqs 512": None,
    "# vllm serve org/m --max-num-seqs 512": None,
    "INFO: Running command: vllm serve org/m --max-num-seqs 512": None,
    "2026-11-20 10:00:00 - launcher - INFO - Command: vllm serve org/m --max-num-seqs 512": None,
    "ExecStart=/opt/venv/bin/vllm serve org/m --max-num-seqs 512": "/opt/venv/bin/" + WANT,
    "Executing: ['vllm', 'serve', 'org/m', '--max-num-seqs', '512']": None,
    'command: ["vllm", "serve", "org/m", "--max-num-seqs", "512"]': None,
    '"Cmd": ["vllm", "serve", "org/m", "--max-num-seqs", "512"],': None,
    'CMD ["vllm", "serve", "org/m", "--max-num-seqs", "512"]': None,
    "INFO:root:cmd = ['vllm', 'serve', 'org/m', '--max-num-seqs', '512']": None,
    "Launching server: vllm serve org/m --max-num-seqs 512": None,
    "❯ vllm serve org/m --max-num-seqs 512": None,
    "➜  ~ vllm serve org/m --max-num-seqs 512": None,
    "ada@gpu-1 ~ % vllm serve org/m --max-num-seqs 512  # two GPUs, slow": None,
    "+ bash -c 'vllm serve org/m --max-num-seqs 512'": f"bash -c {WANT}",
    "srun --gres=gpu:8 vllm serve org/m --max-num-seqs 512": f"srun --gres=gpu:8 {WANT}",
    "    Process: 4711 ExecStart=/venv/bin/vllm serve org/m --max-num-seqs 512 (code=exited, status=1/FAILURE)": (
        "/venv/bin/" + WANT
    ),
    "llm-1  | + vllm serve org/m --max-num-seqs 512": None,
}  # fmt: skip


@pytest.mark.parametrize("line", IN_ONE_LINE)
def test_a_command_is_found_in_the_forms_people_s_logs_show_it(line: str) -> None:
    source = "llm-1  | " if line.startswith("llm-1") else ""
    assert corrected(f"{line}\n{source}{MAMBA}")[0] == (IN_ONE_LINE[line] or WANT)


IN_SEVERAL = {
    "backslashes": "vllm serve org/m \\\n  --max-num-seqs 512 \\\n  --port 8000\n",
    "a prompt": "root@3f2a9c:~# vllm serve org/m \\\n> --max-num-seqs 512 \\\n> --port 8000\n",
    "variables first": "$ HF_HOME=/x \\\n  vllm serve org/m \\\n    --max-num-seqs 512 --port 8000\n",
    "a quote": "+ vllm serve org/m --max-num-seqs 512 --override-generation-config '{\n  \"a\": 1\n}' --port 8000\n",
}


@pytest.mark.parametrize("form", IN_SEVERAL)
def test_so_is_one_that_goes_on_over_several_lines(form: str) -> None:
    found = corrected(IN_SEVERAL[form] + MAMBA)[0]
    assert "serve org/m --max-num-seqs 301 " in found
    assert found.endswith("--port 8000")


def test_a_container_s_command_over_several_lines_is_one() -> None:
    run = "docker run --rm --gpus all \\\n  -v ~/.cache:/cache \\\n  vllm/vllm-openai:v0.28.0 \\\n  --model org/m\n"
    found = corrected(run + MAMBA)[0]
    assert found.startswith("docker run --rm --gpus all -v ~/.cache:/cache vllm/vllm-openai:v0.28.0 --model org/m")
    assert found.endswith("--max-num-seqs 301")


@pytest.mark.parametrize(
    "line",
    [
        "To reproduce, run vllm serve org/m with a small GPU",
        "vllm serve fails on this machine since the update",
        "vllm serve org/m crashes with the error that follows",
        "vllm serve org/m --max-num-seqs 512 fails on this GPU",
        "vllm serve org/m --max-num-seqs 512 and it dies.",
        "We run vllm serve org/m --max-num-seqs 512",
        "I started it with: vllm serve org/m --max-num-seqs 512",
        "`vllm serve org/m --max-num-seqs 512`",
        "vllm bench serve --model org/m",
        "Please try running: vllm serve org/m --max-num-seqs 512",
        "usage: vllm serve [model_tag] [options]",
        "vllm serve [model_tag] [options]",
        "Example: vllm serve org/m --max-num-seqs 512",
        "hint: the command is `vllm serve MODEL ...`",
        "Nov 20 10:00:00 gpu-1 systemd[1]: Starting vllm serve org/m",
        "Started vllm serve org/m as a service",
        "see https://docs.vllm.ai/en/latest/cli/serve/ for vllm serve",
        '(APIServer pid=1) ERROR 11-20 12:00:00 [app.py:5] user prompt: "vllm serve org/m --max-num-seqs 512"',
        "INFO: pip install vllm and then vllm serve",
    ],
)  # fmt: skip
def test_a_command_that_is_only_spoken_of_is_not_taken(line: str) -> None:
    assert corrected(f"{line}\n{MAMBA}") == []


def test_a_command_of_another_model_or_engine_than_the_log_s_is_not_taken() -> None:
    log = vllm("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (524).")
    for other in ("vllm serve org/other --port 9", "python -m sglang.launch_server --model-path org/model --port 9"):
        assert corrected(f"$ {other}\n{log}")[0].startswith("vllm serve org/model --tensor-parallel-size 2")
    assert corrected(f"$ vllm serve /models/org/model --port 9\n{log}")[0].startswith("vllm serve /models/org/model")


def test_each_start_has_its_own_command() -> None:
    """A terminal's log: one launch after the other, of different models."""

    def start(model: str, message: str) -> str:
        return f"root@gpu-1:~# vllm serve {model} --port 9\n" + vllm(message).replace("org/model", model)

    mamba = "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (524)."
    odd = "OddError: x"
    first, second = start("org/one", mamba), start("org/two", mamba)
    assert corrected(first + second)[0] == "vllm serve org/two --port 9 --max-num-seqs 524"
    assert corrected(second + first)[0] == "vllm serve org/one --port 9 --max-num-seqs 524"
    going = start("org/two", odd).split("(Worker")[0]  # it has not failed yet
    found = answer(first + going)
    assert found.facts["model"] == "org/one"
    assert corrected(first + going)[0] == "vllm serve org/one --port 9 --max-num-seqs 524"


def test_a_command_far_into_a_long_log_is_found() -> None:
    noise = "booting the machine, nothing to see\n" * 3000
    assert corrected(noise + "+ vllm serve org/m --max-num-seqs 512 --port 7\n" + MAMBA)[0] == WANT + " --port 7"


# ---- put together from what the engine prints ---------------------------------------------------------------------


def test_it_is_put_together_from_the_arguments_of_older_releases() -> None:
    log = (
        "INFO 08-01 10:00:00 api_server.py:229] vLLM API server version 0.6.3\n"
        "INFO 08-01 10:00:00 api_server.py:230] args: Namespace(subparser='serve', model_tag='org/m', host=None, "
        "port=8000, allowed_origins=['*'], api_key=None, model='org/m', dtype='bfloat16', kv_cache_dtype='auto', "
        "tensor_parallel_size=2, block_size=16, gpu_memory_utilization=0.95, max_num_seqs=512, enforce_eager=True, "
        "dispatch_function=<function serve at 0x7f0>)\n"
    )
    assert corrected(log + MAMBA)[0] == (
        "vllm serve org/m --dtype bfloat16 --tensor-parallel-size 2 --gpu-memory-utilization 0.95 --max-num-seqs 301 "
        "--enforce-eager"
    )


def test_an_argument_that_is_printed_as_no_value_is_named_and_the_others_are_kept() -> None:
    log = (
        "(APIServer pid=1) INFO 11-20 10:00:01 [utils.py:233] non-default args: {'model_tag': 'org/m', "
        "'compilation_config': {'mode': <CompilationMode.VLLM_COMPILE: 3>}, 'dtype': torch.bfloat16, 'seed': 7}\n"
    )
    assert corrected(log + MAMBA)[0] == "vllm serve org/m --dtype bfloat16 --seed 7 --max-num-seqs 301"
    assert "compilation_config" in render(answer(log + MAMBA))
    cut = log[: log.index("'seed'")] + "'max_num_se"  # a line that a collector cut off
    assert corrected(f"{cut}\n{MAMBA}")[0] == "vllm serve org/m --dtype bfloat16 --max-num-seqs 301"


def test_what_stands_within_an_argument_is_no_argument() -> None:
    log = sglang("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.").replace(
        "tp_size=2", "lora_paths=[LoRARef(lora_name='x', dtype='float32')], json_model_override_args='{}', tp_size=2"
    )
    found = answer(log)
    assert found.facts["args"]["tp_size"] == 2
    assert "dtype" not in found.facts["args"]


# ---- given behind -- ----------------------------------------------------------------------------------------------


def test_a_given_command_of_another_engine_is_said_to_be_one() -> None:
    log = vllm("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (524).")
    given = shlex.split("python -m sglang.launch_server --model-path org/model --tp-size 3")
    found = answer(log, given)
    assert found.cause is not None
    assert any("starts sglang" in note and "of vllm" in note for note in found.notes)
    assert corrected(log, given)[0].startswith("vllm serve org/model --tensor-parallel-size 2")
    assert "launch_server" not in json.dumps([way.command for way in found.ways])
    assert not any("starts" in note for note in answer(log, shlex.split("vllm serve org/model")).notes)


def test_that_is_said_whatever_the_log_shows() -> None:
    given = shlex.split("python -m sglang.launch_server --model-path org/model")
    served = vllm("OddError: x").partition("\n")[0] + "\nINFO:     Application startup complete.\n"
    for log in (vllm("OddError: x"), served, vllm("OddError: x").partition("\n")[0]):
        assert any("starts sglang" in note for note in answer(log, given).notes)


@pytest.mark.parametrize("log", [vllm("OddError: x"), "", "nothing here\n"])
def test_a_given_command_that_starts_no_server_is_refused_whatever_the_log_holds(log: str) -> None:
    with pytest.raises(UsageError):
        answer(log, ["ls", "-l"])
