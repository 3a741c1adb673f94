"""Our reading of units held against systemd itself: random ExecStart= lines, as systemd starts them.

    python proofs/systemd.py [--lines 2000] [--seed N]

Needs Linux, root and an installed systemd; none needs to run. A user's manager of systemd is started in mount, process
and cgroup namespaces of its own, which end with it, and runs the lines for real: each starts a program that notes its
arguments and environment. Lines that we refuse are shown one by one to `systemd-analyze verify`, which must refuse them
too. Nothing outside a temporary folder is touched.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from attnfit.errors import AttnfitError
from attnfit.inputs.units import read_unit
from attnfit.inputs.units.words import spell

PIECES = [
    "a", "b-c", "--flag", "=", "é", "\\s", "\\x41", "\\xc3\\xa9", "\\u00e9", "\\101", "\\n", "\\t", "\\\\", '\\"',
    "\\'",
    "\\d", "\\x4", "\\777", '"', "'", " ", " ", " ", "\t", "%i", "%n", "%p", "%%", "%N", "%j", "%P", "%I", "%f", "$A",
    "${A}", "$$", "$", "${B}", "$B", "${NOT}", "$NOT", "$A-x", "{", "}", ";", "\\;", " ; ", " \\; ", "#", "|", "&", "*",
    "~", "$C", "${C}", "$D", "${E}", "%", "$1", "$ ", "\\x00", "${}", "$A ", '""', "''", "\\q", "${A", "$$A", "$${A}",
]  # fmt: skip
# without %S and %L, which differ by release for a user's units
PIECES += [f"%{letter}" for letter in "aAbBCdEgGhHjJlmMopqstTuUvVwWyY"]
VALUES = {"A": "one two", "B": 'it\'s "x y" z', "C": "", "D": "'q r' s\\ t \\n", "E": "$A %i ${B}"}
NOTE = """#!{python}
import json, os, sys
line = os.open({out!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(line, (json.dumps([sys.argv[1:], {{k: os.environ.get(k) for k in "ABCDEF"}}]) + "\\n").encode())
"""
INSIDE = """
mount -t tmpfs tmpfs /run
if [ -e /sys/fs/cgroup/unified ]; then
  umount /sys/fs/cgroup/unified /sys/fs/cgroup/systemd
  mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
  mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
else
  umount /sys/fs/cgroup
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
mkdir -p /run/systemd/system /run/user/0/systemd/units
ln -s /run/user/0/systemd/units /run/systemd/units  # where journald looks for the invocations of units at the top
exec 9>&1 >"$LAB/manager.log" 2>&1
/lib/systemd/systemd-journald &
for i in $(seq 50); do [ -S /run/systemd/journal/stdout ] && break; sleep 0.1; done
/lib/systemd/systemd --user --unit=basic.target &
for i in $(seq 100); do systemctl --user show -p Version >/dev/null 2>&1 && break; sleep 0.1; done
"$@" >&9
"""


def possible() -> bool:
    """Whether a systemd of its own can be started here; says so where not."""
    space = ["unshare", "-m", "-C", "-p", "-f", "--mount-proc", "true"]
    there = os.geteuid() == 0 and shutil.which("systemctl") and Path("/lib/systemd/systemd").exists()
    if there and shutil.which("unshare") and subprocess.run(space, capture_output=True).returncode == 0:
        return True
    print("not run: this proof needs root, an installed systemd, and namespaces")
    return False


def inside(lab: Path, argv: list[str], *, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    """Runs argv where a user's manager of systemd runs, which reads units in `lab`/config/systemd/user."""
    group = f"attnfit-{os.getpid()}"
    tops = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup"))
    folders = [top / group for top in tops if (top / "cgroup.procs").exists()]
    for each in folders:
        each.mkdir(exist_ok=True)
    enter = "".join(f"echo $$ >{folder}/cgroup.procs; " for folder in folders)
    script = enter + 'exec unshare -m -C -p -f --mount-proc --kill-child bash -c "$INSIDE" bash "$@"'
    env = {
        "PATH": os.environ["PATH"], "LAB": str(lab), "INSIDE": INSIDE, "HOME": str(lab / "home"),
        "XDG_RUNTIME_DIR": "/run/user/0", "XDG_CONFIG_HOME": str(lab / "config"), "SYSTEMD_LOG_TARGET": "console",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "XDG_STATE_HOME": str(lab / "state"), "USER": "root",
    }  # fmt: skip
    try:
        return subprocess.run(
            ["bash", "-c", script, "bash", *argv], env=env, capture_output=True, text=True, timeout=seconds, check=False
        )
    finally:
        for each in folders:
            for _ in range(50):
                try:
                    for inner in sorted(each.rglob("*"), reverse=True):
                        if inner.is_dir():
                            inner.rmdir()
                    each.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)


def lab_at(folder: Path) -> Path:
    for each in ("config/systemd/user", "home", "state"):
        (folder / each).mkdir(parents=True)
    return folder


def random_line(chance: random.Random) -> str:
    return "".join(chance.choice(PIECES) for _ in range(chance.randint(1, 12)))


def random_argument(chance: random.Random) -> str:
    letters = "ab -%$\"'\\\n\t;{}#=~é\u20ac\U0001f600\x01\x7f"
    return "".join(chance.choice(letters) for _ in range(chance.randint(0, 8)))


def unit_text(program: str, lines: list[str]) -> str:
    variables = "".join(f"Environment={spell(f'{n}={v}', variables=False)}\n" for n, v in VALUES.items())
    starts = "".join(f"ExecStart={program} {line}\n" for line in lines)
    return f"[Service]\nType=oneshot\n{variables}EnvironmentFile={{folder}}/env\n{starts}"


ENV_LINES = [
    "F=plain", 'F="a b" \'c\' d', "F=a\\\\b", "F=x\\ y", " F = v w ", "F='a'b", 'F="a\\$b\\c\\"d"', "export F=1",
    "# F=2",
    "F=a\\\nb", 'F="a\nb"', "F=", "F", "F=a # b", "F='x\\n'", "F=\\ta",
]  # fmt: skip


def run(folder: Path, count: int, seed: int) -> int:
    chance = random.Random(seed)
    lab = lab_at(folder)
    units, out = lab / "config/systemd/user", lab / "out.jsonl"
    program = lab / "note"
    program.write_text(NOTE.format(python=sys.executable, out=str(out)))
    program.chmod(0o755)
    environ = {"HOME": str(lab / "home"), "XDG_CONFIG_HOME": str(lab / "config"), "XDG_RUNTIME_DIR": "/run/user/0",
               "USER": "root"}  # fmt: skip
    accepted: list[str] = []
    refused: list[str] = []
    name = "pre-fix_x@in\\x2dst.service"
    (lab / "env").write_text("F=0\n")
    while len(accepted) < count:
        line = random_line(chance)
        (units / name).write_text(unit_text(str(program), [line]).replace("{folder}", str(lab)))
        try:
            unit = read_unit(name, user=True, environ=environ)
        except AttnfitError:
            refused.append(line)
            continue
        if all(each.argv[0] == str(program) for each in unit.execs):
            accepted.append(line)
    wanted: dict[str, list[str]] = {}  # lines that we wrote ourselves, as a drop-in would have them
    while len(wanted) < count // 4:
        words = [random_argument(chance) for _ in range(chance.randint(1, 5))]
        wanted[" ".join(spell(word) for word in words)] = words
    accepted += wanted
    chance.shuffle(accepted)
    wrong = 0
    for start in range(0, len(accepted), 200):
        some = accepted[start : start + 200]
        (lab / "env").write_text("\n".join(chance.sample(ENV_LINES, 5)) + "\n")
        (units / name).write_text(unit_text(str(program), some).replace("{folder}", str(lab)))
        ours = read_unit(name, user=True, environ=environ)
        out.unlink(missing_ok=True)
        answer = inside(lab, ["systemctl", "--user", "start", name])
        theirs = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        if len(theirs) != len(ours.execs):
            print(f"{len(theirs)} of {len(ours.execs)} commands were started: {answer.stderr[-500:]}")
            print((lab / "manager.log").read_text()[-1500:])
            return 1
        started = [argv for argv, _ in theirs]
        lost = [line for line in some if line in wanted and wanted[line] not in started]
        wrong += len(lost)
        print("".join(f"not started as wanted: {line}\n" for line in lost), end="")
        for mine, (argv, env) in zip(ours.execs, theirs, strict=True):
            said = {n: ours.variables.values.get(n) for n in "ABCDEF"}
            if mine.argv[1:] != argv or said != env:
                wrong += 1
                print(f"wrong: {mine.raw}\n  we say   {mine.argv[1:]} {said}\n  systemd  {argv} {env}")
    wrong += sum(not refused_too(units / name, str(program), lab, line) for line in refused[: count // 10])
    checked = min(len(refused), count // 10)
    print(
        f"{len(accepted)} lines started as we read them, {len(wanted)} of them written by us and started as wanted, "
        f"{checked} refused by both; {wrong} wrong (seed {seed})"
    )
    return 1 if wrong else 0


def refused_too(path: Path, program: str, lab: Path, line: str) -> bool:
    path.write_text(unit_text(program, [line]).replace("{folder}", str(lab)))
    answer = subprocess.run(
        ["systemd-analyze", "--user", "--man=no", "verify", str(path)],
        env={"PATH": os.environ["PATH"], "SYSTEMD_UNIT_PATH": f"{path.parent}:", "XDG_RUNTIME_DIR": str(lab),
             "HOME": str(lab)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "ignoring" in answer.stderr.lower() or "Failed to" in answer.stderr or "fatal" in answer.stderr:
        return True
    print(f"we refuse, systemd does not: ExecStart={program} {line}\n  {answer.stderr}")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    if not possible():
        return 0
    seed = options.seed if options.seed is not None else random.randrange(1 << 30)
    with tempfile.TemporaryDirectory(prefix="attnfit-systemd-") as name:
        return run(Path(name), options.lines, seed)


if __name__ == "__main__":
    sys.exit(main())
