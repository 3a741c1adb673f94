"""What host code asks torch about the GPU, answered for one that is not there.

Launch functions choose block sizes, and modules choose code paths when they are imported, by what `torch.cuda` says.
Only questions are answered; whatever would use a device still fails, as it should.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch


def pretend(capability: tuple[int, int], properties: dict[str, int], name: str = "") -> None:
    """From now on, in this process, torch sees one GPU of that capability. For a process that does nothing else."""
    major, minor = capability
    device = {
        "name": name or f"GPU of compute capability {major}.{minor}",
        "major": major,
        "minor": minor,
        "warp_size": 32,
        "shared_memory_per_block_optin": properties["max_shared_mem"],
        "regs_per_multiprocessor": 65536,
        "max_threads_per_block": 1024,
    }
    if "multiprocessor_count" in properties:  # it differs between GPUs of one capability
        device["multi_processor_count"] = properties["multiprocessor_count"]
    device_name = str(device["name"])
    properties_of = _Properties(device)
    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: capability,
        "get_device_name": lambda device=None: device_name,
        "get_device_properties": lambda device=None: properties_of,
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda device=None: None,
        "_exchange_device": lambda device: 0,  # `with torch.cuda.device(...)`
        "_maybe_exchange_device": lambda device: 0,
    }
    for question, answer in answers.items():
        mock.patch.object(torch.cuda, question, answer).start()


class _Properties:
    """What `torch.cuda.get_device_properties` returns, as far as it is known."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} of a GPU that is not there is not known")
