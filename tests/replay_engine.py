"""Plays an engine: prints a log with its timing, spawns workers, serves, hangs, and exits as the scene says.

Started as the engine's own program by tests/replay.py. The model directory holds scenes.json: a list of
{"if": "text in the command", "do": [[verb, ...], ...]}; the first whose text is there is played.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SLEEPER = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


class Engine:
    def __init__(self, argv: list[str], model: Path) -> None:
        self.argv, self.model = argv, model
        self.workers: list[subprocess.Popen[bytes]] = []
        self.count = model / "starts.txt"
        with self.count.open("a") as file:
            file.write(f"{os.getpid()} {' '.join(' '.join(argv).splitlines())}\n")
        self.start = len(self.count.read_text().splitlines())

    def play(self) -> None:
        command = " ".join(self.argv)
        for scene in json.loads((self.model / "scenes.json").read_text()):
            if scene.get("if", "") in command and self.start <= scene.get("starts", 1 << 30):
                for verb, *rest in scene["do"]:
                    getattr(self, f"do_{verb}")(*rest)
                return
        sys.exit("no scene for " + command)

    def do_say(self, text: str, stream: str = "out") -> None:
        print(text, file=sys.stdout if stream == "out" else sys.stderr, flush=True)

    def do_log(self, name: str, seconds: float = 0.0) -> None:
        """A whole recorded log."""
        for line in Path(name).read_text("utf-8", "replace").splitlines():
            print(line, flush=True)
            time.sleep(seconds)

    def do_raw(self, numbers: list[int]) -> None:
        os.write(1, bytes(numbers))

    def do_env(self, name: str) -> None:
        print(f"{name}={os.environ.get(name)}", flush=True)

    def do_sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def do_writes(self, seconds: float) -> None:
        """Silently, and a lot, as a download does."""
        end = time.monotonic() + seconds
        with (self.model / "part").open("wb", buffering=0) as file:
            while time.monotonic() < end:
                file.write(bytes(1 << 20))
                time.sleep(0.1)
                file.truncate(0)

    def do_hang(self) -> None:
        while True:
            time.sleep(1)

    def do_deaf(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def do_worker(self, many: int = 1, stubborn: bool = False, own_session: bool = False) -> None:
        for _ in range(many):
            code = STUBBORN if stubborn else SLEEPER
            worker = subprocess.Popen(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=own_session
            )
            if stubborn:
                assert worker.stdout is not None
                worker.stdout.readline()
            self.workers.append(worker)
            with (self.model / "workers.txt").open("a") as file:
                file.write(f"{worker.pid}\n")

    def do_orphan(self) -> None:
        """A process whose parent is gone, in a session of its own, as resource trackers may be."""
        code = (
            "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', "
            f"{STUBBORN!r}], stdout=subprocess.DEVNULL, start_new_session=True).pid)"
        )
        said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False, timeout=20)
        with (self.model / "workers.txt").open("a") as file:
            file.write(said.stdout.decode().splitlines()[0] + "\n")

    def do_socket(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(path)
        self.socket.listen()

    def do_append(self, path: str) -> None:
        """As to a log, which stays open."""
        self.file = open(path, "a")  # noqa: SIM115
        self.file.write("more\n")
        self.file.flush()

    def do_shared(self, path: str) -> None:
        """Shared memory, as libraries make it: a file that is mapped, and closed."""
        self.memory = shared_memory(path)

    def do_worker_with(self, path: str) -> None:
        """A worker that holds such memory, and hears no signal but KILL."""
        here = str(Path(__file__).parent)
        code = f"import sys; sys.path.insert(0, {here!r}); from replay_engine import shared_memory; "
        self.code(f"{code}kept = shared_memory({path!r}); {STUBBORN}")

    def code(self, code: str) -> None:
        worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert worker.stdout is not None
        worker.stdout.readline()
        self.workers.append(worker)
        with (self.model / "workers.txt").open("a") as file:
            file.write(f"{worker.pid}\n")

    def do_ends_slowly(self, seconds: float) -> None:
        """As a server that lets its requests finish."""
        signal.signal(signal.SIGTERM, lambda *_: (time.sleep(seconds), os._exit(0)))

    def do_background(self, file: str) -> None:
        """The rest is played by a child; the first process ends once the file is there."""
        if child := os.fork():
            with (self.model / "workers.txt").open("a") as workers:
                workers.write(f"{child}\n")
            while not (self.model / file).exists():
                time.sleep(0.02)
            os._exit(0)

    def do_exit(self, code: int) -> None:
        os._exit(code)

    def do_killed(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def do_crash_when_worker_dies(self, text: str, code: int) -> None:
        """As engines do that watch their workers."""
        while all(worker.poll() is None for worker in self.workers):
            time.sleep(0.02)
        self.do_say(text)
        os._exit(code)

    def do_serve_so(self, how: dict[str, Any]) -> None:
        self.do_serve(**how)

    def do_serve(self, seconds: float = 600.0, **how: Any) -> None:
        """Health, models and requests, until SIGTERM; then it exits with 0, or as `exits` says."""
        code = how.pop("exits", 0)
        port = how.pop("port", 0) or int(self.argv[self.argv.index("--port") + 1])
        server = serve(port, **how)
        end = time.monotonic() + seconds
        signal.signal(signal.SIGTERM, lambda *_: os._exit(code))
        signal.signal(signal.SIGINT, lambda *_: os._exit(code))
        while time.monotonic() < end and all(worker.poll() is None for worker in self.workers):
            time.sleep(0.02)
        server.socket.close()


def shared_memory(path: str) -> mmap.mmap:
    with open(path, "w+b") as file:
        file.truncate(4096)
        return mmap.mmap(file.fileno(), 4096)


def serve(
    port: int,
    *,
    key: str = "",
    healthy_after: float = 0.0,
    answers: str = "/v1/completions",
    broken: int = 0,
    deep: bool = False,
) -> ThreadingHTTPServer:
    """broken: so many requests are answered with 500 first. deep: its list of models is nested beyond reading."""
    from threading import Thread

    begun = time.monotonic()
    failures = [broken]

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def say(self, status: int, body: object) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def allowed(self) -> bool:
            if key and self.headers.get("Authorization") != f"Bearer {key}":
                self.say(401, {"error": "Unauthorized"})
                return False
            return True

        def do_GET(self) -> None:
            if self.path == "/health":
                self.say(200 if time.monotonic() - begun >= healthy_after else 503, {})
            elif deep:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"[" * 200_000)
            elif self.allowed():
                self.say(200, {"data": [{"id": "tiny"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.allowed():
                return
            if self.path != answers or asked["model"] != "tiny":
                self.say(404, {})
            elif failures[0] > 0:
                failures[0] -= 1
                self.say(500, {})
            else:
                print(f"served {self.path}", flush=True)
                self.say(200, {})

    class Server(ThreadingHTTPServer):
        allow_reuse_address = True
        daemon_threads = True
        address_family = socket.AF_INET

    server = Server(("127.0.0.1", port), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def main() -> None:
    argv = sys.argv[1:]
    model = argv[argv.index("--model-path") + 1] if "--model-path" in argv else argv[1]
    engine = Engine(argv, Path(model))
    engine.play()


if __name__ == "__main__":
    main()
