"""Attention kernels on the GPU of this machine, against its roofline and against what else is installed here.

    python benchmarks/kernels.py [--out result.json]        # needs a GPU: 3 and a sentence where there is none
    python benchmarks/kernels.py --static                   # what is known without one: bytes by design, occupancy
    python benchmarks/kernels.py --self-test                # every step but the GPU's, on a CPU; times nothing

Measured: `attnfit.kernels` (sparse_mla's latent kernel and its baseline over virtual blocks, index logits, top-k) and,
each only if it can be imported and takes the launch, vLLM's Triton kernel, FlashMLA, FlashInfer, vLLM's FlashAttention
and DeepGEMM. Every result is held against float64 before it is timed; a wrong one is not timed.

Time: CUDA events around one call, L2 flushed before each, median and deciles; up to 64 tokens in a CUDA graph.
Roofline: the larger of the bytes that must move over the memory bandwidth (--bandwidth-gbs, else as the GPU states it)
and, with --tflops, the operations over that. Needs attnfit[kernels]; exit code 1 if one of attnfit's own is
wrong, or the run ended early (`ended` says why; what was measured until then is kept).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SCHEMA = 1
KINDS = ("sparse_mla", "index_logits", "index_topk")
TOKENS, HEADS = [1, 8, 64, 1024, 4096], [16, 64, 128]
VERSIONS = ("attnfit", "torch", "triton", "vllm", "flash_mla", "flashinfer-python", "deep_gemm")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--static", action="store_true", help="static figures only; compiles, which takes minutes")
    how.add_argument("--self-test", action="store_true", help="tiny shapes on a CPU, in Triton's interpreter")
    parser.add_argument("--table", action="store_true", help="--static: only docs/kernels.md's table of bytes")
    parser.add_argument("--out", type=Path, help="where the JSON goes; default: stdout")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--heads", type=int, nargs="+", default=HEADS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--cc", nargs="+", help="--static: compute capabilities; default: all that have kernels")
    parser.add_argument("--runs", type=int, default=50, help="timed calls of each")
    parser.add_argument("--bandwidth-gbs", type=float, help="memory bandwidth for the roofline")
    parser.add_argument("--tflops", type=float, help="dense 16-bit tensor-core peak for the roofline")
    args = parser.parse_args()
    if min(*args.tokens, *args.heads, args.runs) < 1:
        parser.error("--tokens, --heads and --runs are at least 1")
    if args.self_test:
        os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated: before the first import
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as why:
        print(f"not measured: {why.name} is missing; pip install 'attnfit[kernels]'", file=sys.stderr)
        return 3
    if args.static:
        from kernel_static import bytes_table, static

        if args.table:
            print(bytes_table())
            return 0
        return write({"schema": SCHEMA, "measured": False, "versions": versions(), **static(args)}, args.out)
    if not args.self_test and not torch.cuda.is_available():
        print("not measured: no CUDA device; --static gives what is known without one", file=sys.stderr)
        return 3
    answer = measure(args)
    status = write(answer, args.out)
    bad = any(row["who"].startswith("attnfit") and row["status"] in BAD for row in answer["rows"])
    return status or int(bad or "ended" in answer)


BAD = ("wrong", "refused")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Every contender on every case. Without a GPU (--self-test) the same steps, and no times."""
    import torch
    from gpu_clock import CudaClock, NoClock, first_line, gpu_facts
    from kernel_cases import cases, described, tiny
    from kernel_contenders import CONTENDERS

    torch.manual_seed(0)
    answer: dict[str, Any] = {"schema": SCHEMA, "measured": not args.self_test, "versions": versions()}
    if args.self_test:
        from attnfit.kernels import interpreter

        interpreter.patch()
        device, clock, facts = torch.device("cpu"), NoClock(), {"capability": "12.0", "sms": 8}
        asked = list(tiny())
    else:
        device = torch.device("cuda", torch.cuda.current_device())
        clock, facts = CudaClock(device, args.runs), gpu_facts(device)
        asked = list(cases(args.tokens, args.heads, args.kinds))
        answer["device"] = facts
        answer["floor_us"] = clock.floor().median
        answer["copy_gbs"] = round(clock.copy_gbs(), 1)
    bandwidth = args.bandwidth_gbs or facts.get("stated_bandwidth_gbs")
    answer["roofline"] = {"bandwidth_gbs": bandwidth, "tflops": args.tflops}
    answer["rows"] = []
    for case in asked:
        given = None
        for contender in CONTENDERS:
            if contender.kind != case.kind:
                continue
            try:
                given = case.inputs(device) if given is None else given
                row = one(contender, case, given, clock, facts)
                clock.settle()
            except (
                RuntimeError
            ) as why:  # no memory for the inputs, or a launch that broke the context for all that follow
                answer["ended"] = f"{contender.who} {contender.name}, {described(case)}: {first_line(why)}"
                print(f"ended: {answer['ended']}", file=sys.stderr)
                return answer
            answer["rows"].append(row | rates(row, bandwidth, args.tflops))
            print(line(answer["rows"][-1]), file=sys.stderr)
        del given
        clock.free()
    return answer


def one(contender: Any, case: Any, given: dict[str, Any], clock: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """One contender on one case: served, prepared, right, timed, in that order; the first that fails is the status."""
    from gpu_clock import first_line
    from kernel_cases import DECODE, described

    capability = tuple(int(part) for part in facts["capability"].split("."))
    row = {**described(case), "implementation": contender.name, "who": contender.who, "bytes_least": case.least,
           "bytes_moved": contender.moved(case, capability, facts["sms"]), "flops": case.flops}  # fmt: skip
    if why := contender.serves(case, capability):
        return {**row, "status": "not for this case", "reason": why}
    try:
        call = contender.prepare(case, given)
    except (ImportError, AttributeError) as why:
        return {**row, "status": "not here", "reason": first_line(why)}
    except Exception as why:
        return {**row, "status": "refused", "reason": first_line(why)}
    try:
        wrong, error = case.wrong(contender.finish(case, call()), given)
    except Exception as why:
        return {**row, "status": "refused", "reason": first_line(why)}
    row["error"] = error
    if wrong:
        return {**row, "status": "wrong", "reason": wrong}
    try:
        timing = clock.time(call, graph=case.tokens <= DECODE)
    except Exception as why:
        return {**row, "status": "refused", "reason": first_line(why)}
    return {**row, "status": "right" if timing is None else "timed", "time_us": timing and timing._asdict()}


def rates(row: dict[str, Any], bandwidth: float | None, tflops: float | None) -> dict[str, Any]:
    """GB/s of what must move, TFLOP/s, and how much of the roofline that is."""
    if not row.get("time_us"):
        return {}
    us = row["time_us"]["median"]
    limits = {"bandwidth": row["bytes_least"] / bandwidth / 1e3} if bandwidth else {}
    if tflops and row["flops"]:
        limits["compute"] = row["flops"] / tflops / 1e6
    bound = max(limits, key=lambda name: limits[name]) if limits else None
    found = {"gbs": round(row["bytes_least"] / us / 1e3, 1), "tflops": round(row["flops"] / us / 1e6, 2)}
    if bound:
        found |= {"roofline_us": round(limits[bound], 2), "bound": bound, "share": round(limits[bound] / us, 3)}
    return found


def line(row: dict[str, Any]) -> str:
    """One row for people, on stderr."""
    shape = " ".join(f"{k}={row[k]}" for k in ("tokens", "heads", "dtype", "cache", "d_r", "keys", "paged") if k in row)
    said = row["status"] + (f": {row['reason']}" if "reason" in row else "")
    if row.get("time_us"):
        took = row["time_us"]
        said = f"{took['median']:.1f} us ({took['p10']:.1f} to {took['p90']:.1f})"
        said += f", {row['share']:.0%} of the roofline" if "share" in row else ""
    return f"{row['kind']} {shape}: {row['who']} {row['implementation']}: {said}"


def versions() -> dict[str, str | None]:
    """Of everything that may take part; None for what is not installed. CUDA is the one torch was built with."""
    found: dict[str, str | None] = {}
    for name in VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    import torch

    return {**found, "cuda": torch.version.cuda}


def write(answer: dict[str, Any], out: Path | None) -> int:
    """The JSON to a file or stdout."""
    text = json.dumps(answer, indent=1) + "\n"
    if out is None:
        sys.stdout.write(text)
        return 0
    try:
        out.write_text(text, "utf-8")
    except OSError as why:
        print(f"cannot write {out}: {why.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
