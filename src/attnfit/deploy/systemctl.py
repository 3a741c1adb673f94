"""Speaking with systemd: systemctl, journalctl and systemd-analyze, each with a list of arguments, by no shell."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from attnfit.deploy import tree
from attnfit.errors import AttnfitError, UsageError
from attnfit.inputs.units import paths
from attnfit.inputs.units.unit import Unit

SECONDS = 90.0  # for an answer that should come at once
_STATE = (
    "LoadState", "ActiveState", "SubState", "Result", "MainPID", "NRestarts", "InvocationID", "ControlGroup",
    "ExecMainCode", "ExecMainStatus", "NeedDaemonReload", "FragmentPath", "DropInPaths", "UnitFileState",
)  # fmt: skip
# what the unit printed, and what its manager says of it
_INVOCATION = ("_SYSTEMD_INVOCATION_ID", "INVOCATION_ID", "USER_INVOCATION_ID")


class Refused(AttnfitError):
    """systemd did not do what it was asked."""


class State(msgspec.Struct, frozen=True):
    """What systemd says of a unit now."""

    load: str
    active: str
    sub: str
    result: str
    pid: int
    restarts: int
    invocation: str
    cgroup: str
    status: str  # of the last main process: "1", "" while it runs
    stale: bool  # its files were changed since systemd read them

    @property
    def on(self) -> bool:
        return self.active in ("active", "activating", "reloading")


class Systemd:
    """One manager: the system's, or this user's."""

    def __init__(self, *, user: bool = False, environ: Mapping[str, str] | None = None) -> None:
        self.user = user
        self._environ = dict(os.environ if environ is None else environ) | {"SYSTEMD_PAGER": "", "LC_ALL": "C.UTF-8"}
        self._scope = ["--user"] if user else []

    def why_not(self) -> str:
        """Why it cannot be asked; "" where it can."""
        if shutil.which("systemctl", path=self._environ.get("PATH")) is None:
            return "systemctl is not installed here"
        answer = self._run(["systemctl", *self._scope, "show", "--property=Version", "--value"])
        if answer.returncode == 0 and answer.stdout.strip():
            return ""
        said = answer.stderr.strip().splitlines()
        return (
            f"systemd is not running here{' for this user' if self.user else ''} ({said[0] if said else 'no answer'})"
        )

    def state(self, name: str) -> State:
        """Raises Refused."""
        text = self.do("show", name, f"--property={','.join(_STATE)}")
        found = dict(line.partition("=")[::2] for line in text.splitlines())
        running = found.get("ExecMainCode", "0") == "0"
        return State(
            load=found.get("LoadState", ""),
            active=found.get("ActiveState", ""),
            sub=found.get("SubState", ""),
            result=found.get("Result", ""),
            pid=_number(found.get("MainPID")),
            restarts=_number(found.get("NRestarts")),
            invocation=found.get("InvocationID", ""),
            cgroup=found.get("ControlGroup", ""),
            status="" if running else found.get("ExecMainStatus", ""),
            stale=found.get("NeedDaemonReload") == "yes",
        )

    def do(self, verb: str, *args: str) -> str:
        """What systemctl prints. Raises Refused with its words."""
        answer = self._run(["systemctl", *self._scope, "--no-ask-password", verb, *args])
        if answer.returncode != 0:
            said = " ".join(answer.stderr.split()) or f"exit status {answer.returncode}"
            raise Refused(f"systemctl {verb} {args[0] if args else ''}".rstrip() + f": {said}")
        return answer.stdout

    def follow(self, name: str, invocation: str) -> subprocess.Popen[bytes] | None:
        """journalctl, printing what the start of that id says, from its first line on; None where there is none."""
        if shutil.which("journalctl", path=self._environ.get("PATH")) is None or not invocation:
            return None
        argv = ["journalctl", "--no-pager", "-q", "-o", "cat", "-n", "all", "-f",
                *" + ".join(f"{field}={invocation}" for field in _INVOCATION).split()]  # fmt: skip
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self._environ,
            preexec_fn=lambda: tree.prctl(tree.PR_SET_PDEATHSIG, signal.SIGKILL),  # it would follow for ever without us
        )  # fmt: skip

    def complaints(self, unit: Unit, files: Mapping[str, str]) -> list[str] | None:
        """What `systemd-analyze verify` says of the unit with `files` that it does not say without; None: not there."""
        if shutil.which("systemd-analyze", path=self._environ.get("PATH")) is None:
            return None
        before, after = (self._verified(unit, each) for each in ({}, files))
        return [line for line in after if line not in before]

    def _verified(self, unit: Unit, files: Mapping[str, str]) -> list[str]:
        """The unit and its drop-ins, copied to a folder of their own and looked at there."""
        with tempfile.TemporaryDirectory(prefix="attnfit-verify-") as name:
            folder = Path(name)
            fragment = unit.name if paths.template(unit.name) is None else paths.template(unit.name)
            data = {f: paths.within(unit.root, f).read_bytes() for f in (unit.fragment, *unit.dropins)}
            dropins = folder / f"{unit.name}.d"
            dropins.mkdir()
            (folder / str(fragment)).write_bytes(data.pop(unit.fragment))
            data |= {path: text.encode("utf-8", "surrogateescape") for path, text in files.items()}
            for path, each in data.items():
                (dropins / path.rpartition("/")[2]).write_bytes(each)
            answer = self._run(
                ["systemd-analyze", *self._scope, "--man=no", "verify", str(folder / unit.name)],
                {"SYSTEMD_UNIT_PATH": f"{folder}:"},
            )
            lines = (answer.stdout + answer.stderr).replace(f"{folder}/", "").splitlines()
        return [line for line in lines if unit.name in line or line.startswith(str(fragment))]

    def _run(self, argv: Sequence[str], more: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=SECONDS,
                env={**self._environ, **more}, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise UsageError(f"{argv[0]} did not answer within {SECONDS:.0f} s; look at it by hand") from None
        except OSError as error:
            raise UsageError(f"{argv[0]} cannot be started ({error.strerror})") from None


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
