"""benchmarks/kernels.py runs end to end but for the GPU, and says nothing of a speed that it did not measure."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FACTS = {"capability": "12.0", "sms": 8}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script and its modules, as imported from its own folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_clock
    import kernel_cases
    import kernel_contenders

    # By its path: this folder, and packages of other people, are called `kernels` too.
    spec = importlib.util.spec_from_file_location("benchmark_of_kernels", BENCHMARKS / "kernels.py")
    assert spec is not None
    assert spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    return type("Bench", (), {"main": kernels, "cases": kernel_cases, "who": kernel_contenders, "clock": gpu_clock})


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TRITON_INTERPRET", None)
    argv = [sys.executable, str(BENCHMARKS / "kernels.py"), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=300, check=False)


def test_the_self_test_holds_ours_right_and_times_nothing() -> None:
    done = run("--self-test")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    ours = [row for row in answer["rows"] if row["who"].startswith("attnfit")]
    right = [row for row in ours if row["status"] == "right"]
    assert {row["kind"] for row in right} == {"sparse_mla", "index_logits", "index_topk"}
    assert {row["implementation"] for row in right} >= {"latent", "virtual_blocks"}
    assert {row["cache"] for row in right if "cache" in row} == {"native", "fp8_ds_mla"}
    assert {row["status"] for row in ours} <= {"right", "not for this case"}
    assert not answer["measured"]
    assert not any(row.get("time_us") or "gbs" in row or "share" in row for row in answer["rows"])


def test_without_a_gpu_nothing_is_measured() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("not measured: no CUDA device")


def test_a_wrong_result_is_not_timed(bench: Any) -> None:
    case = next(bench.cases.tiny())
    given = case.inputs(torch.device("cpu"))

    def prepare(case: Any, given: Any) -> Any:
        found = bench.who.CONTENDERS[0].prepare(case, given)()
        return lambda: (found[0] * 1.01, found[1])

    row = bench.main.one(replace(bench.who.CONTENDERS[0], prepare=prepare), case, given, bench.clock.NoClock(), FACTS)
    assert row["status"] == "wrong"
    assert "against float64" in row["reason"]
    assert "time_us" not in row


def test_an_lse_in_another_base_is_wrong(bench: Any) -> None:
    case = next(bench.cases.tiny())
    given = case.inputs(torch.device("cpu"))
    out, lse = bench.who.CONTENDERS[0].prepare(case, given)()
    assert case.wrong((out, lse), given)[0] == ""
    assert case.wrong((out, lse * 1.4427), given)[0].startswith("LSE is off")
    assert case.wrong((out * float("nan"), lse), given)[0]


def test_a_contender_that_cannot_be_had_is_a_row_with_its_reason(bench: Any) -> None:
    case = next(bench.cases.tiny())
    given = case.inputs(torch.device("cpu"))

    def missing(case: Any, given: Any) -> Any:
        raise ModuleNotFoundError("No module named 'somebody'")

    def refusing(case: Any, given: Any) -> Any:
        def call() -> None:
            raise RuntimeError("unsupported architecture\nand more")

        return call

    rows = [
        bench.main.one(replace(bench.who.CONTENDERS[0], prepare=how), case, given, bench.clock.NoClock(), FACTS)
        for how in (missing, refusing)
    ]
    assert [row["status"] for row in rows] == ["not here", "refused"]
    assert rows[1]["reason"] == "RuntimeError: unsupported architecture"


def test_a_run_that_breaks_keeps_what_it_has(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    args = bench.main.argparse.Namespace(self_test=True, bandwidth_gbs=None, tflops=None)
    settled: list[int] = []

    def broken(self: Any) -> None:
        settled.append(1)
        if len(settled) == 2:
            raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(bench.clock.NoClock, "settle", broken)
    answer = bench.main.measure(args)
    assert len(answer["rows"]) == 1
    assert "virtual_blocks" in answer["ended"]
    assert answer["ended"].endswith("RuntimeError: an illegal memory access was encountered")


def test_a_gpu_without_a_configuration_has_no_bytes_by_design(bench: Any) -> None:
    case = next(bench.cases.tiny())
    assert bench.who.CONTENDERS[0].moved(case, (12, 0), 188) >= case.least
    assert bench.who.CONTENDERS[0].moved(case, (7, 5), 72) is None


def test_rates_are_of_what_must_move(bench: Any) -> None:
    row = {"time_us": {"median": 10.0}, "bytes_least": 10_000_000, "flops": 4_000_000_000}
    found = bench.main.rates(row, bandwidth=2000.0, tflops=None)
    assert found == {"gbs": 1000.0, "tflops": 400.0, "roofline_us": 5.0, "bound": "bandwidth", "share": 0.5}
    found = bench.main.rates(row, bandwidth=2000.0, tflops=500.0)
    assert (found["bound"], found["roofline_us"], found["share"]) == ("compute", 8.0, 0.8)
    assert "share" not in bench.main.rates(row, bandwidth=None, tflops=None)
    assert bench.main.rates({"status": "right"}, bandwidth=2000.0, tflops=None) == {}


def test_the_indices_of_a_case_are_distinct_rows(bench: Any) -> None:
    found = bench.cases.spread_out(5, 64, 256, torch.device("cpu"))
    assert found.min() >= 0
    assert found.max() < 256
    assert all(len(set(row)) == 64 for row in found.tolist())


def test_every_shape_that_is_asked_for_comes(bench: Any) -> None:
    asked = list(bench.cases.cases([1, 64, 4096], [16, 128], ["sparse_mla", "index_logits", "index_topk"]))
    mla = [case for case in asked if case.kind == "sparse_mla"]
    assert {(c.tokens, c.heads, c.dtype, c.cache, c.d_r) for c in mla} == {
        (t, h, dtype, cache, d_r)
        for t in (1, 64, 4096)
        for h in (16, 128)
        for dtype in ("float16", "bfloat16")
        for cache, d_r in (("native", 64), ("native", 0), ("fp8_ds_mla", 64))
    }
    assert {(c.tokens, c.paged) for c in asked if c.kind == "index_logits"} == {
        (1, True),
        (64, True),
        (64, False),
        (4096, False),
    }
    assert all(case.least > 0 for case in asked)


def test_deciles_enclose_the_median(bench: Any) -> None:
    found = bench.clock.spread([float(n) for n in range(1, 101)], "graph")
    assert (found.median, found.p10, found.p90, found.runs) == (50.5, 10.1, 90.9, 100)
    assert bench.clock.spread([3.0], "eager")[:3] == (3.0, 3.0, 3.0)


class MadeUpGpu:
    """torch.cuda, as far as the clock asks: events a made-up time apart, graphs that replay what they captured."""

    def __init__(self, capture: bool) -> None:
        self.now, self.capture, self.flushed = 0.0, capture, 0

    def __getattr__(self, name: str) -> Any:  # streams, synchronize: nothing to do
        return lambda *given: contextlib.nullcontext()

    def get_device_properties(self, device: Any) -> Any:
        return SimpleNamespace(L2_cache_size=1 << 20)

    def Event(self, enable_timing: bool) -> Any:
        event = SimpleNamespace(at=0.0)
        event.record = lambda: setattr(event, "at", self.now)
        event.elapsed_time = lambda end: end.at - event.at
        return event

    def CUDAGraph(self) -> Any:
        return SimpleNamespace(replay=self.work)

    def graph(self, graph: Any) -> Any:
        if not self.capture:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return contextlib.nullcontext()

    def Stream(self) -> Any:
        return SimpleNamespace(wait_stream=lambda other: None)

    def current_stream(self) -> Any:
        return self.Stream()

    def work(self) -> None:
        self.now += 0.02  # ms


@pytest.mark.parametrize(("graph", "capture", "mode"), [
    (True, True, "graph"),
    (False, True, "eager"),
    (True, False, "eager; no CUDA graph: RuntimeError: operation not permitted when stream is capturing"),
])  # fmt: skip
def test_the_clock_takes_what_lies_between_the_events(
    bench: Any, monkeypatch: pytest.MonkeyPatch, graph: bool, capture: bool, mode: str
) -> None:
    gpu = MadeUpGpu(capture)
    monkeypatch.setattr(bench.clock.torch, "cuda", gpu)
    clock = bench.clock.CudaClock(torch.device("cpu"), runs=5)
    flush = clock._waste.zero_
    monkeypatch.setattr(clock, "_waste", SimpleNamespace(zero_=lambda: (flush(), setattr(gpu, "now", gpu.now + 1.0))))
    found = clock.time(gpu.work, graph=graph)
    assert found == (20.0, 20.0, 20.0, 5, mode), "the flush of a millisecond is not counted"
