"""What people put in front of a server: which options take a value, and what else is not the command yet."""

from __future__ import annotations

from typing import NamedTuple


class Wrapper(NamedTuple):
    values: frozenset[str] = frozenset()  # options followed by a value of their own
    positional: int = 0  # words of its own before the command
    runs_python: bool = False  # its argument may be a script or `-m module`, as python's


def _w(values: str = "", positional: int = 0, runs_python: bool = False) -> Wrapper:
    return Wrapper(frozenset(values.split()), positional, runs_python)


WRAPPERS: dict[str, Wrapper] = {
    "env": _w("-u --unset -C --chdir -S --split-string"),
    "sudo": _w("-u --user -g --group -h --host -p --prompt -C -D -R -T -U"),
    "doas": _w("-u -C"),
    "nohup": _w(),
    "setsid": _w(),
    "exec": _w("-a"),
    "command": _w(),
    "time": _w("-f --format -o --output"),
    "nice": _w("-n --adjustment"),
    "ionice": _w("-c --class -n --classdata -p"),
    "chrt": _w("-T -P -D", 1),
    "stdbuf": _w("-i -o -e --input --output --error"),
    "unbuffer": _w(),
    "timeout": _w("-s --signal -k --kill-after", 1),
    "taskset": _w("-c --cpu-list", 1),
    "numactl": _w("-N --cpunodebind -m --membind -C --physcpubind -i --interleave -p --preferred"),
    "prlimit": _w(),
    "flock": _w("-w -E --timeout", 1),
    "tini": _w("-p -e"),
    "dumb-init": _w("-r"),
    "catchsegv": _w(),
    "gosu": _w("", 1),
    "su-exec": _w("", 1),
    "systemd-run": _w("-u --unit -p --property -E --setenv -d --working-directory --uid --gid"),
    "caffeinate": _w("-t -w"),
    "xvfb-run": _w("-s -n"),
    "uv": _w(
        "--with --with-editable --with-requirements --python -p --project --directory --extra --group "
        "--env-file --index-url --index --extra-index-url --package --isolated-from --config-file"
    ),
    "uvx": _w("--from --with --python -p --with-editable --with-requirements --index-url --extra-index-url --index"),
    "pipx": _w("--spec --python --pip-args"),
    "poetry": _w("-C --directory -P --project"),
    "pdm": _w("-p --project"),
    "hatch": _w("-e --env"),
    "pixi": _w("-e --environment --manifest-path"),
    "rye": _w(),
    "pipenv": _w(),
    "conda": _w("-n --name -p --prefix --cwd"),
    "mamba": _w("-n --name -p --prefix --cwd"),
    "micromamba": _w("-n --name -p --prefix -r --root-prefix --cwd"),
    "direnv": _w(),
    "srun": _w(
        "-N --nodes -n --ntasks -p --partition -A --account -t --time -J --job-name -w --nodelist -G --gpus "
        "-c --cpus-per-task -o --output -e --error -x --exclude -D --chdir -q --qos -C --constraint --gres "
        "--ntasks-per-node --gpus-per-node --gpus-per-task --mem --export --mpi --container-image "
        "--container-mounts --container-name --container-workdir --jobid -r --relative"
    ),
    "mpirun": _w(
        "-np -n -c -N -npernode --npernode -H --host -hostfile --hostfile -x -bind-to --bind-to -map-by "
        "--map-by -wdir --wdir"
    ),
    "mpiexec": _w("-np -n -c -N -H --host -hostfile --hostfile -x -genv -ppn -wdir --wdir"),
    "torchrun": _w(
        "--nnodes --nproc-per-node --nproc_per_node --node-rank --node_rank --rdzv-id --rdzv_id "
        "--rdzv-backend --rdzv_backend --rdzv-endpoint --rdzv_endpoint --master-addr --master_addr "
        "--master-port --master_port --max-restarts --max_restarts",
        runs_python=True,
    ),
    "accelerate": _w("--num_processes --num_machines --config_file --main_process_port", runs_python=True),
    "deepspeed": _w("--num_gpus --num_nodes --master_port --hostfile --include", runs_python=True),
    "coverage": _w("--source --rcfile", runs_python=True),
    "nsys": _w(
        "-o --output -t --trace -w -d --duration -y --delay -s --sample -c --capture-range --stats --force-overwrite -f"
    ),
    "ncu": _w("-o --export -k --kernel-name -c --launch-count -s --launch-skip --set --section --metrics"),
    "py-spy": _w("-o --output -d --duration -r --rate -f --format"),
    "compute-sanitizer": _w("--tool"),
    "strace": _w("-o -e -s -p"),
    "ray": _w("--address --working-dir --runtime-env-json --runtime-env --submission-id"),
    "apptainer": _w("-B --bind --env --env-file -H --home --pwd -W --workdir --overlay", 1),
    "singularity": _w("-B --bind --env --env-file -H --home --pwd -W --workdir --overlay", 1),
    "screen": _w("-S -c -L"),
    "watch": _w("-n --interval"),
    "supervise": _w(),
}
# `python -m X`, where X starts another program or module
MODULE_WRAPPERS: dict[str, str] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "uv": "uv",
    "pipx": "pipx",
    "coverage": "coverage",
    "debugpy": "coverage",
    "cProfile": "coverage",
    "pdb": "coverage",
    "viztracer": "coverage",
}
OWN_ENVIRONMENT = frozenset(("sudo", "doas"))  # what is set in front of them does not reach the command by default
IMAGE_RUNNERS = frozenset(("apptainer", "singularity"))  # what is set there reaches these, unless asked to clean it
CLEANS_ENVIRONMENT = frozenset(("-e", "--cleanenv", "-C", "--containall"))
SHELLS = frozenset(("bash", "sh", "zsh", "dash", "ksh", "ash", "fish"))
CONTAINERS = frozenset(("docker", "podman", "nerdctl", "docker-compose", "podman-compose"))
PYTHON_VALUES = frozenset(("-X", "-W", "-Q", "--check-hash-based-pycs"))
CONTAINER_SWITCHES = frozenset(
    (
        "--rm",
        "--detach",
        "--interactive",
        "--tty",
        "--privileged",
        "--init",
        "--read-only",
        "--no-healthcheck",
        "--oom-kill-disable",
        "--publish-all",
        "--quiet",
        "--replace",
        "--tls-verify",
        "--no-hosts",
        "--rmi",
        "--systemd",
        "--http-proxy",
        "--env-host",
        "--sig-proxy",
        "--disable-content-trust",
        "--help",
        "--build",  # these are of compose
        "--no-deps",
        "--no-TTY",
        "--quiet-build",
        "--quiet-pull",
        "--remove-orphans",
        "--service-ports",
        "--use-aliases",
    )
)
CONTAINER_SWITCH_LETTERS = frozenset("ditPqT")
