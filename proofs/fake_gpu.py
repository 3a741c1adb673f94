"""A pretended GPU for a real vLLM: device queries, process groups and "cuda" tensors that need no driver.

Used by real_launch.py, inside a venv that has vLLM 0.33.0. Rank 0 of any world size; tensors go to the meta device.
"""

from __future__ import annotations

import collections
import types
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

DEVICES = 64
GIB = 1 << 30


def install(capability: tuple[int, int]) -> Any:
    """Fakes torch.cuda, the platform and the process groups; returns the platform class. Import vLLM only after it."""
    import torch._dynamo
    import torch._inductor  # noqa: F401  (both keep tables keyed by the functions replaced below)

    _fake_torch(capability)
    import vllm.platforms as platforms
    import vllm.platforms.cuda as cuda
    from vllm.platforms.interface import DeviceCapability

    class FakePlatform(cuda.CudaPlatformBase):
        get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(*capability))
        get_device_name = classmethod(lambda cls, device_id=0: "fake")
        get_device_uuid = classmethod(lambda cls, device_id=0: "GPU-fake")
        get_device_total_memory = classmethod(lambda cls, device_id=0: 80 * GIB)
        device_count = classmethod(lambda cls: DEVICES)
        num_compute_units = classmethod(lambda cls, device_id=0: 132)
        is_fully_connected = classmethod(lambda cls, ids: True)
        get_all_device_numa_nodes = classmethod(lambda cls: None)
        log_warnings = classmethod(lambda cls: None)

    platforms._current_platform = platforms.current_platform = FakePlatform()
    import vllm.distributed.parallel_state as parallel_state
    import vllm.model_executor.models.registry as registry
    import vllm.utils.flashinfer as flashinfer_utils

    flashinfer_utils.has_nvidia_artifactory = lambda: True
    # The engine inspects model classes in a subprocess, which would see no GPU.
    lazy = registry._LazyRegisteredModel
    lazy.inspect_model_cls = lambda self: registry._ModelInfo.from_model_cls(self.load_model_cls())
    parallel_state.GroupCoordinator.__init__ = _group(parallel_state)
    return FakePlatform


def _fake_torch(capability: tuple[int, int]) -> None:
    properties = types.SimpleNamespace(
        multi_processor_count=132, total_memory=80 * GIB, major=capability[0], minor=capability[1], name="fake",
        is_integrated=False, warp_size=32, max_threads_per_multi_processor=2048, gcnArchName="",
        shared_memory_per_block_optin=227 << 10, shared_memory_per_multiprocessor=228 << 10, L2_cache_size=50 << 20,
    )  # fmt: skip

    class Stream:
        cuda_stream = 0
        device = torch.device("cuda:0")

        def __init__(self, *_: Any, **__: Any) -> None: ...
        def __getattr__(self, _name: str) -> Any:
            return lambda *_, **__: None

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None: ...

    answers: dict[str, Any] = {
        "get_device_properties": properties, "get_device_capability": capability, "get_device_name": "fake",
        "is_available": False, "current_device": 0, "device_count": DEVICES, "synchronize": None, "empty_cache": None,
        "set_device": None, "mem_get_info": (79 * GIB, 80 * GIB),
    }  # fmt: skip
    for name, value in answers.items():
        setattr(torch.cuda, name, lambda *_, _value=value, **__: _value)
    torch.cuda.Stream = torch.cuda.Event = Stream
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *_, **__: Stream()
    generic = {"synchronize": None, "empty_cache": None, "current_device_index": 0, "device_count": DEVICES}
    for name, value in generic.items():
        setattr(torch.accelerator, name, lambda *_, _value=value, **__: _value)


def _group(parallel_state: Any) -> Any:
    def init(self: Any, group_ranks: Any, local_rank: int, *_: Any, group_name: str | None = None, **__: Any) -> None:
        self.unique_name = parallel_state._get_unique_name(group_name or "anonymous")
        parallel_state._register_group(self)
        self.rank = self.local_rank = self.device_index = 0
        self.ranks = next(ranks for ranks in group_ranks if 0 in ranks)
        self.world_size, self.rank_in_group = len(self.ranks), self.ranks.index(0)
        self.group_ranks, self.torch_distributed_backend = group_ranks, "fake"
        self.cpu_group = self.device_group = torch.distributed.group.WORLD
        self.device, self.use_device_communicator = torch.device("cuda:0"), False
        self.device_communicator = self.mq_broadcaster = None
        self.use_custom_op_call, self.use_cpu_custom_send_recv = True, False
        self._pending_isends = collections.deque()

    return init


def start_groups(config: Any, set_current: Any) -> None:
    """Rank 0 of the launch's whole world, without another process."""
    import torch.distributed as dist
    import vllm.distributed.parallel_state as parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.v1.worker.workspace import init_workspace_manager

    parallel = config.parallel_config
    world = parallel.world_size * parallel.data_parallel_size
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    with set_current(config):
        everyone = parallel_state.GroupCoordinator([list(range(world))], 0, group_name="world")
        parallel_state._WORLD = parallel_state._INNER_DP_WORLD = everyone
        parallel_state._NODE_COUNT = 1
        parallel_state.initialize_model_parallel(
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            parallel.prefill_context_parallel_size,
            parallel.decode_context_parallel_size,
            backend="fake",
        )
        init_workspace_manager(torch.device("meta"))


class OnMeta(TorchFunctionMode):
    """Every tensor asked for on "cuda" is made on the meta device."""

    def __torch_function__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0].to("meta")
        if func is torch.Tensor.pin_memory:
            return args[0]
        if "device" in kwargs:
            kwargs["device"] = _meta(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], *(a if type(a) is int else _meta(a) for a in args[1:]))
        return func(*args, **kwargs)


class OnCpu(TorchFunctionMode):
    """While backend modules are imported: what they allocate on "cuda" becomes one element on the CPU."""

    def __torch_function__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
            args = (1,) if func in (torch.empty, torch.zeros, torch.ones) else args
        return func(*args, **kwargs)


def _meta(device: Any) -> Any:
    if type(device) is int or (isinstance(device, torch.device) and device.type == "cuda"):
        return torch.device("meta")
    if isinstance(device, str) and (device == "cuda" or device.startswith("cuda:")):
        return "meta"
    return device
