"""A made-up engine with SGLang's outline and none of its code: arguments that resolve themselves, two backends.

Just enough for the witness to walk every stage: a parser, a resolution, a check, a model config, backend constructors.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

VERSION = "0.0.7"
METADATA = f"""
    Metadata-Version: 2.1
    Name: sglang
    Version: {VERSION}
    Requires-Dist: transformers==4.57.1
    Requires-Dist: torch==2.9.1
    """
ARGS = '''
    import argparse, dataclasses, logging, os, sys
    from typing import ClassVar, Optional
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.utils import newest, room
    logger = logging.getLogger(__name__)
    NAMES = {"fast", "slow", "probe"}

    class Old(argparse.Action):
        def __call__(self, parser, namespace, values, option_string=None):
            import torch
            logger.warning("%s is deprecated on %d.", option_string, torch.cuda.get_device_capability()[0])

    @dataclasses.dataclass
    class ServerArgs:
        model_path: str
        attention_backend: Optional[str] = None
        page_size: Optional[int] = None
        kv_cache_dtype: str = "auto"
        mem_fraction_static: Optional[float] = None
        tp_size: int = 1
        pp_size: int = 1
        dp_size: int = 1
        ep_size: int = 1
        speculative_algorithm: Optional[str] = None

        def __post_init__(self):
            """Resolution."""
            if self.page_size == 7:
                raise ValueError(f"no page of {self.page_size}, take one of { {'thirty', 'one', 'two'} }")
            if self.attention_backend is None:
                self.attention_backend = "fast" if newest() else "slow"
                logger.warning("Nothing was asked for: %s is taken.", self.attention_backend)
            if self.page_size is None:
                self.page_size = int(os.environ.get("TINY_PAGE", "1"))
            if self.mem_fraction_static is None:
                self.mem_fraction_static = round(1 - 8 / room(), 3)

        @staticmethod
        def add_cli_args(parser):
            parser.add_argument("--model-path", required=True)
            parser.add_argument("--attention-backend", choices=sorted(NAMES))
            parser.add_argument("--old", action=Old, nargs=0, default=argparse.SUPPRESS)
            parser.add_argument("--tp-size", "--tp", type=int, default=1)
            for name, kind in {"page-size": int, "kv-cache-dtype": str, "speculative-algorithm": str}.items():
                parser.add_argument("--" + name, type=kind, default=getattr(ServerArgs, name.replace("-", "_")))

        @classmethod
        def from_cli_args(cls, args):
            return cls(**{key: value for key, value in vars(args).items()})

        def check_server_args(self):
            assert self.tp_size != 3, "three do not divide"

        def get_model_config(self):
            return ModelConfig(self)

        def get_attention_backends(self):
            return self.attention_backend, self.attention_backend

    def prepare_server_args(argv):
        parser = argparse.ArgumentParser()
        ServerArgs.add_cli_args(parser)
        return ServerArgs.from_cli_args(parser.parse_args(argv))

    def set_global_server_args_for_scheduler(args):
        global _published
        _published = args

    _published = None
    '''
FILES = {
    f"sglang-{VERSION}.dist-info/METADATA": METADATA,
    "sglang/__init__.py": "from sglang.everything import Engine",  # not to be loaded: there is no such module
    "sglang/srt/__init__.py": "",
    "sglang/srt/server_args.py": ARGS,
    "sglang/srt/utils/__init__.py": '''
        import subprocess
        import torch

        def newest():
            return torch.cuda.get_device_capability()[0] >= 9

        def room():
            """GiB of one GPU, as nvidia-smi prints it."""
            shown = subprocess.run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv"], stdout=-1, text=True)
            return min(float(line) for line in shown.stdout.strip().split("\\n")) / 1024
        ''',
    "sglang/srt/configs/model_config.py": """
        import enum
        import torch
        from transformers import AutoConfig

        class AttentionArch(enum.Enum):
            MLA = enum.auto()
            MHA = enum.auto()

        class ModelConfig:
            def __init__(self, args):
                self.hf_config = AutoConfig.from_pretrained(args.model_path)
                self.hf_text_config = self.hf_config.get_text_config()
                self.attention_arch = AttentionArch.MHA
                self.head_dim = self.hf_config.hidden_size // self.hf_config.num_attention_heads
                if self.head_dim > 512:
                    raise ValueError("heads too large")
                self.num_hidden_layers = self.hf_config.num_hidden_layers
                self.context_len = self.hf_config.max_position_embeddings
                self.dtype = self.hf_config.dtype or torch.bfloat16
        """,
    "sglang/srt/speculative/spec_info.py": """
        class SpeculativeAlgorithm:
            @staticmethod
            def from_string(name):
                return name
        """,
    "sglang/srt/distributed/parallel_state.py": "_TP = _PP = _WORLD = None",
    "sglang/srt/layers/dp_attention.py": "_ATTN_TP_SIZE = None",
    "sglang/srt/model_executor/model_runner.py": """
        from sglang.srt.layers.attention.attention_registry import BACKENDS

        class ModelRunner:
            def _get_attention_backend(self):
                return self._get_attention_backend_from_str(self.server_args.attention_backend)

            def _get_attention_backend_from_str(self, name):
                return BACKENDS[name](self)
        """,
    "sglang/srt/layers/attention/attention_registry.py": """
        BACKENDS = {}

        def register_backend(name):
            def put(make):
                BACKENDS[name] = make
                return make
            return put

        @register_backend("fast")
        def create_fast(runner):
            from sglang.srt.layers.attention.fast import Fast
            return Fast(runner)

        @register_backend("slow")
        def create_slow(runner):
            from sglang.srt.layers.attention.slow import Slow
            return Slow(runner)

        @register_backend("probe")
        def create_probe(runner):
            from sglang.srt.layers.attention.probe import Probe
            return Probe(runner)
        """,
    "sglang/srt/layers/attention/fast.py": """
        from flashinfer import Wrapper
        import torch

        class Fast:
            def __init__(self, runner):
                assert torch.cuda.get_device_capability() != (12, 0), (
                    "fast does not run here")
                self.wrapper = Wrapper(torch.empty(8, dtype=runner.dtype), "NHD")
        """,
    "sglang/srt/layers/attention/slow.py": """
        class Slow:
            def __init__(self, runner):
                self.inner = Inner(runner.model_config.head_dim)
                self.full_attn_backend = self.inner

        class Inner:
            def __init__(self, size):
                self.size = size
        """,
}
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 4,
    "max_position_embeddings": 8192,
    "torch_dtype": "float16",
}


def write(root: Path, probe: str = "pass", **changed: str) -> Path:
    """Write the engine under `root`. `probe`: the body of the third backend's constructor; `changed`: file -> text."""
    body = textwrap.indent(textwrap.dedent(probe), " " * 8)
    own = {"sglang/srt/layers/attention/probe.py": f"class Probe:\n    def __init__(self, runner):\n{body}\n"}
    for name, text in {**FILES, **own, **changed}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"), "utf-8")
    return root


def case(*argv: str, **changed: Any) -> Any:
    """A launch of that engine on one GPU of capability 9.0 with 80 GiB."""
    return {
        "model": "/m/tiny",
        "config": CONFIG,
        "hf_quant": None,
        "files": ["config.json"],
        "capability": "9.0",
        "gpu_name": "H100",
        "gpu_mem_gb": 80.0,
        "gpus": 1,
        "argv": ["--model-path", "/m/tiny", *argv],
        "variables": {},
        "facts": {},
        **changed,
    }
