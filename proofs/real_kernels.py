"""What one release's Triton kernels are handed to the compiler as: loaded by attnfit, or by the engine itself.

Run with the python of a venv that has vLLM, one job as JSON on stdin, JSON lines on stdout:

    LD_LIBRARY_PATH=STUB CUDA_VISIBLE_DEVICES= venv/bin/python proofs/real_kernels.py < job.json > rows.jsonl

The job: "capability" ("12.0"), "limit" (bytes of shared memory), "real" (true: the installed engine's own modules,
imported as the engine imports them; false: its files with attnfit's stand-ins around them), and "asks", each as
`engines/vllm/triton_kernels` takes it. The platform is pretended either way; the calls are those of the adapters. A row
per ask: every launch with its kernel, constexprs, options and the digest of all that Triton would compile, or what
failed. Equal digests are equal programs, down to the text of every function and the divisibility of every argument.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SMS = 132  # of fake_gpu.py's device


def main() -> None:
    job = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _only_attnfit()
    import torch

    from attnfit.kernels.fit.driver import NoGpuDriver, active, parse
    from attnfit.kernels.fit.recorder import recording

    torch.set_num_threads(1)
    capability, limit = job["capability"], job["limit"]
    properties = {"max_shared_mem": limit, "multiprocessor_count": SMS}
    with active(NoGpuDriver(capability, properties, device=0)):
        release = _real(parse(capability)) if job["real"] else _stood_in(capability, properties)
        for ask in job["asks"]:
            try:
                cases = list(release(ask))
            except Exception as raised:
                traceback.print_exc()
                _say(out, {"failed": f"{type(raised).__name__}: {raised}", "launches": []})
                continue
            row: dict[str, Any] = {"failed": "", "launches": []}
            for case in cases:
                with recording(capability, limit, case=case.name, properties=properties) as launches:
                    try:
                        case.call()
                    except Exception as raised:
                        traceback.print_exc()
                        row["failed"] += f"{case.name}: {type(raised).__name__}: {raised}; "
                row["launches"] += [_plain(launch) for launch in launches]
            _say(out, row)


def _say(out: Any, row: dict[str, Any]) -> None:
    out.write(json.dumps(row) + "\n")
    out.flush()


def _plain(launch: Any) -> dict[str, Any]:
    handed = launch.source
    return {
        "case": launch.case,
        "kernel": launch.kernel,
        "line": launch.line,
        "constexprs": {name: str(value) for name, value in launch.constexprs.items()},
        "options": {name: str(value) for name, value in handed.options.items()} if handed else None,
        "digest": handed.digest if handed else str(launch.refusal),
    }


def _only_attnfit() -> None:
    """`attnfit` from this checkout, beside what the venv has."""
    package = HERE.parent / "src" / "attnfit"
    where = [str(package)]
    spec = importlib.util.spec_from_file_location("attnfit", package / "__init__.py", submodule_search_locations=where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["attnfit"] = module
    spec.loader.exec_module(module)


def _stood_in(capability: str, properties: dict[str, int]) -> Any:
    from attnfit.engines.vllm.triton_kernels import cases
    from attnfit.kernels.fit import torch_cuda
    from attnfit.kernels.fit.driver import parse

    torch_cuda.pretend(parse(capability), properties)
    return lambda ask: cases(ask, capability)


def _real(capability: tuple[int, int]) -> Any:
    """The installed engine under a pretended platform, in the place of the adapters' own `Release`."""
    sys.path.insert(0, str(HERE))
    import fake_gpu
    import torch

    platform = fake_gpu.install(capability)
    platform.is_pin_memory_available = classmethod(lambda cls: False)
    vars(importlib.import_module("vllm.utils.torch_utils"))["PIN_MEMORY"] = False  # was read while it was imported
    torch.accelerator.device_index = lambda index: contextlib.nullcontext()  # asks the driver
    from attnfit.engines.vllm.triton_kernels import KERNELS
    from attnfit.engines.vllm.triton_kernels.release import Ask

    class Installed:
        def __init__(self, ask: dict[str, Any]) -> None:
            self.ask = Ask(ask)
            self.overrides: dict[str, dict[str, Any]] = {}

        def has(self, name: str) -> bool:
            try:
                return importlib.util.find_spec(name) is not None
            except ModuleNotFoundError:
                return False

        def source(self, *names: str) -> Any:
            name = next(name for name in names if self.has(name))
            with fake_gpu.OnCpu():
                module = importlib.import_module(name)
            for where, fixed in self.overrides.items():
                for each in {module, *([importlib.import_module(where)] if self.has(where) else [])}:
                    for attribute, value in fixed.items():
                        if hasattr(each, attribute):
                            setattr(each, attribute, value)
            return module

    def cases(ask: dict[str, Any]) -> Any:
        return KERNELS[ask["kernel"]](Installed({**ask, "capability": list(capability)}))

    return cases


if __name__ == "__main__":
    main()
