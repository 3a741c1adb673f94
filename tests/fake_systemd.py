"""Plays systemctl, journalctl and systemd-analyze for one user's units, as the real ones answer.

A unit's command is what it was at the last daemon-reload. It is started with its variables, started again when it
fails (Restart=on-failure), and its output is kept by invocation. `proofs/systemd_story.py` does the same with the real
systemd. $FAKE_SYSTEMD is the folder of all state; `off` in it: systemd does not run; `complaint`: what verify says.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import psutil

HOME = Path(os.environ.get("FAKE_SYSTEMD", "/nowhere"))


def state(name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((HOME / f"{name}.json").read_text())
        return found
    except FileNotFoundError:
        return {"active": "inactive", "sub": "dead", "result": "success", "pid": 0, "restarts": 0, "invocation": "",
                "code": 0, "status": 0}  # fmt: skip


def put(name: str, **what: Any) -> None:
    path = HOME / f"{name}.json"
    path.with_suffix(".new").write_text(json.dumps({**state(name), **what}))
    os.replace(path.with_suffix(".new"), path)


def reload() -> None:
    from attnfit.inputs.units import read_unit  # the others need not wait for it

    for file in sorted((Path(os.environ["XDG_CONFIG_HOME"]) / "systemd/user").glob("*.service")):
        unit = read_unit(file.name, user=True)
        values = {name: unit.variables.values[name] for name in unit.variables.origin}
        text = json.dumps({"argv": unit.execs[0].argv, "env": values, "restart": unit.last("Restart"),
                           "file": unit.last("StandardOutput").partition(":")[2]})  # fmt: skip
        (HOME / f"{file.name}.loaded").write_text(text)


def stale(name: str) -> bool:
    """Whether a file of the unit was changed since it was read."""
    units, read = Path(os.environ["XDG_CONFIG_HOME"]) / "systemd/user", HOME / f"{name}.loaded"
    files = (units / name, *(units / f"{name}.d").glob("*.conf"))
    return read.exists() and any(file.stat().st_mtime_ns > read.stat().st_mtime_ns for file in files)


def supervise(name: str) -> None:
    """The manager's part of one unit's life, from start to stop."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    loaded = json.loads((HOME / f"{name}.loaded").read_text())
    restarts = 0
    while not asked and (HOME / "asked").exists():  # the test's folder is there
        invocation = uuid.uuid4().hex
        output = Path(loaded["file"]) if loaded["file"] else HOME / f"{invocation}.log"
        with output.open("ab") as log:
            child = subprocess.Popen(
                loaded["argv"], env={**os.environ, **loaded["env"]}, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        put(name, active="active", sub="running", result="success", pid=child.pid, restarts=restarts, code=0, status=0,
            invocation=invocation)  # fmt: skip
        while child.poll() is None and not asked:
            time.sleep(0.01)
        if asked:
            child.terminate()
            child.wait()
            break
        failed = child.returncode != 0
        result = "exit-code" if failed else "success"
        if not failed or loaded["restart"] != "on-failure":
            put(name, active="failed" if failed else "inactive", sub="failed" if failed else "dead", result=result,
                pid=0, code=1, status=child.returncode)  # fmt: skip
            return
        restarts += 1
        put(name, active="activating", sub="auto-restart", result=result, pid=0, restarts=restarts, code=1,
            status=child.returncode)  # fmt: skip
        time.sleep(0.2)
    put(name, active="inactive", sub="dead", result="success", pid=0, code=1, status=0)


def stop(name: str) -> None:
    try:
        pid = int((HOME / f"{name}.pid").read_text())
    except FileNotFoundError:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        supervisor = psutil.Process(pid)
        supervisor.terminate()
        while supervisor.status() != psutil.STATUS_ZOMBIE:  # not every first process of a machine collects them
            time.sleep(0.01)
    (HOME / f"{name}.pid").unlink(missing_ok=True)


def start(name: str) -> None:
    """By a process that ends at once: the supervisor is nobody's child, and keeps nobody's pipes open."""
    code = (
        "import subprocess as s; print(s.Popen("
        f"{[sys.executable, __file__, 'supervise', name]!r}, stdin=s.DEVNULL, stdout=s.DEVNULL, stderr=s.DEVNULL, "
        "start_new_session=True).pid)"
    )
    pid = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=30).stdout
    (HOME / f"{name}.pid").write_text(pid)


def systemctl(words: list[str]) -> None:
    with (HOME / "asked").open("a") as file:
        file.write(" ".join(words) + "\n")
    if (HOME / "off").exists():
        sys.exit("System has not been booted with systemd as init system (PID 1). Can't operate.")
    verb, *rest = [word for word in words if word not in ("--user", "--no-ask-password", "--no-block")]
    if verb == "show" and rest == ["--property=Version", "--value"]:
        print("252")
    elif verb == "show":
        now = state(rest[0])
        print(f"LoadState=loaded\nActiveState={now['active']}\nSubState={now['sub']}\nResult={now['result']}")
        print(f"MainPID={now['pid']}\nNRestarts={now['restarts']}\nInvocationID={now['invocation']}\nControlGroup=")
        print(f"ExecMainCode={now['code']}\nExecMainStatus={now['status']}")
        print(f"NeedDaemonReload={'yes' if stale(rest[0]) else 'no'}")
    elif verb == "daemon-reload":
        reload()
    elif verb in ("stop", "restart", "start"):
        if (HOME / f"refuses-{verb}").exists():
            sys.exit(f"Failed to {verb} {rest[0]}: Access denied")
        stop(rest[0])
        if verb != "stop":
            start(rest[0])
    elif verb == "reset-failed":
        put(rest[0], restarts=0)
    else:
        sys.exit(f"Unknown command verb {verb}.")


def journalctl(words: list[str]) -> None:
    """What one invocation printed, and then what it goes on printing."""
    ids = {word.partition("=")[2] for word in words if "INVOCATION_ID=" in word}
    assert len(ids) == 1
    assert "-f" in words
    with (HOME / f"{ids.pop()}.log").open("rb") as log:
        while True:
            os.write(1, log.read())
            time.sleep(0.02)


def analyze(words: list[str]) -> None:
    name = words[-1].rpartition("/")[2]
    conf = Path(words[-1] + ".d") / "zz-attnfit.conf"
    if (HOME / "complaint").exists() and conf.exists():
        sys.exit(f"{conf}:3: {(HOME / 'complaint').read_text()} ({name})")


if __name__ == "__main__":
    called, *arguments = sys.argv[1:]
    {"systemctl": systemctl, "journalctl": journalctl, "systemd-analyze": analyze,
     "supervise": lambda words: supervise(words[0])}[called](arguments)  # fmt: skip
