"""A vLLM server of its own process group: started, asked over HTTP and through its metrics, and stopped for certain."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

STARTS_WITHIN = 300  # seconds
MAX_LEN = 512


class Answer(NamedTuple):
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]  # of each token but the first, or of the generated ones only

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.tokens


class Server:
    """`with Server(python, folder, log, [flags], {variables}) as server: server.complete(...)`."""

    def __init__(self, python: str, model: Path, log: Path, flags: list[str], variables: dict[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = log
        dropped = ("VLLM_", "ATTNFIT_", "TRITON_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        self._env = {**kept, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "2", **variables}
        self._command = [
            python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "tiny",
            "--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", str(MAX_LEN), "--enforce-eager", *flags,
        ]  # fmt: skip

    def __enter__(self) -> Server:
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                self._command, env=self._env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        end = time.monotonic() + STARTS_WITHIN
        try:
            while not self._healthy():
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the server did not start:\n{self.log.read_text()[-6000:]}")
                time.sleep(1)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _healthy(self) -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        """The server and all processes that it started, kindly first."""
        for signal_, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
            end = time.monotonic() + seconds
            try:
                os.killpg(self._process.pid, signal_)
                while time.monotonic() < end:
                    self._process.poll()
                    os.killpg(self._process.pid, 0)
                    time.sleep(0.2)
            except ProcessLookupError:
                break
        self._process.wait(5)

    def complete(self, prompt: list[int], tokens: int, *, of_prompt: bool = True) -> Answer:
        """Greedy, past any end of text. of_prompt: with the prompt's own logprobs, which turns the prefix cache off."""
        body: dict[str, Any] = {
            "model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 1,
            "return_tokens_as_token_ids": True, "ignore_eos": True, **({"prompt_logprobs": 0} if of_prompt else {}),
        }  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        try:
            answer = json.load(urllib.request.urlopen(request, timeout=600))
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{error.read().decode()}\n{self.log.read_text()[-6000:]}") from error
        (choice,) = answer["choices"]
        generated = [int(token.removeprefix("token_id:")) for token in choice["logprobs"]["tokens"]]
        of_each = choice["prompt_logprobs"][1:] if of_prompt else []
        own = [each[str(token)]["logprob"] for each, token in zip(of_each, prompt[1:], strict=False)]
        return Answer(prompt, generated, own + choice["logprobs"]["token_logprobs"])

    def together(self, prompts: list[list[int]], tokens: int, *, of_prompt: bool = True) -> list[Answer]:
        """All at once."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.complete(prompt, tokens, of_prompt=of_prompt), prompts))

    def metrics(self) -> dict[str, float]:
        """The counters, without their labels but `le`: {"vllm:num_preemptions_total": 0.0, ...}."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30).read().decode()
        found: dict[str, float] = {}
        for line in text.splitlines():
            if matched := re.fullmatch(r"(vllm:\w+)\{(.*)\} (\S+)", line):
                edge = re.search(r'le="([^"]+)"', matched[2])
                found[matched[1] + (f"<={edge[1]}" if edge else "")] = float(matched[3])
        return found

    def said(self, text: str) -> bool:
        return text in self.log.read_text()
