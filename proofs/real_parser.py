"""Run under the Python of a real vLLM (no GPU needed): describe its parser, or parse flag lists with it.

    V/bin/python proofs/real_parser.py describe > parser.json
    V/bin/python proofs/real_parser.py parse < lists.jsonl > answers.jsonl

`parse` (`serve` for the whole `vllm serve` command line) reads one JSON list of arguments a line and writes
{"ok": bool, "error": text, "values": {dest: value}}.
Set LD_LIBRARY_PATH to a directory with a stub libcuda where the machine has none.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
SRC = Path(__file__).resolve().parent.parent / "src"
spec = importlib.util.spec_from_file_location("worker", SRC / "attnfit" / "learn" / "flagworker" / "__main__.py")
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
worker.bare_packages(SRC)


class Refused(Exception):
    pass


def make_parser():
    import vllm.platforms as platforms
    from vllm.platforms import cuda
    from vllm.platforms.interface import DeviceCapability

    class Fake(cuda.CudaPlatformBase):
        get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
        get_device_name = classmethod(lambda cls, device_id=0: "fake")
        get_device_total_memory = classmethod(lambda cls, device_id=0: 80 << 30)
        log_warnings = classmethod(lambda cls: None)

    platforms._current_platform = Fake()
    platforms.__dict__["current_platform"] = platforms._current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    for name in worker.CLI_ARGS:
        try:
            cli = importlib.import_module(name)
        except ModuleNotFoundError as e:
            if not name.startswith(e.name or "?"):
                raise
            continue
        if hasattr(cli, "make_arg_parser"):
            return cli.make_arg_parser(FlexibleArgumentParser(prog="vllm"))
    raise SystemExit("no make_arg_parser found")


def serve_parser():
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    parser.add_argument("-v", "--version", action="version", version="0")
    ServeSubcommand().subparser_init(parser.add_subparsers(required=False, dest="subparser"))
    return parser


def show(value):
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value):
        return {
            "object": type(value).__name__,
            "fields": {f.name: show(getattr(value, f.name, None)) for f in dataclasses.fields(value)},
        }
    if isinstance(value, dict):
        return {str(k): show(v) for k, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(show(v) for v in value)
    if isinstance(value, (list, tuple)):
        return [show(v) for v in value]
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    return {"repr": repr(value)}


def main():
    parser = make_parser()
    if sys.argv[1] == "describe":
        json.dump(importlib.import_module("attnfit.engines.vllm.learn.flagworker.describe").describe(parser), OUT)
    else:

        def error(self, message):
            raise Refused(message)

        type(parser).error = error
        head = []
        if sys.argv[1] == "serve":
            parser, head = serve_parser(), ["serve"]
        base = {k: show(v) for k, v in vars(parser.parse_args(head)).items()}
        for line in sys.stdin:
            argv = json.loads(line)
            try:
                got = {k: show(v) for k, v in vars(parser.parse_args(head + argv)).items()}
                row = {"ok": True, "values": {k: v for k, v in got.items() if v != base.get(k) or k not in base}}
            except Refused as e:
                row = {"ok": False, "error": str(e)}
            except SystemExit as e:
                row = {"ok": False, "error": f"exit {e.code}"}
            except BaseException as e:
                row = {"ok": False, "error": f"{type(e).__name__}: {e}"}
            OUT.write(json.dumps(row) + "\n")
    OUT.flush()


main()
