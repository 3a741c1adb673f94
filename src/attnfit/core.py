"""The nouns. Plain frozen data: no I/O, no torch, nothing that decides.

A *launch* (a model, GPUs, an engine release, flags) asks one selector `Question` per kind of attention layer.
Every backend answers a `Verdict`; a `Selection` is what the engine does with them all; a `Launch` is the whole answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from attnfit.fit.answer import Fit as Fit
from attnfit.steps import FlagChange as FlagChange
from attnfit.steps import Plan as Plan
from attnfit.steps import Step as Step
from attnfit.verdicts import Change as Change
from attnfit.verdicts import Choice as Choice
from attnfit.verdicts import Hazard as Hazard
from attnfit.verdicts import KernelFact as KernelFact
from attnfit.verdicts import Reason as Reason
from attnfit.verdicts import Status as Status
from attnfit.verdicts import Verdict as Verdict


class Capability(NamedTuple):
    """CUDA compute capability, e.g. (12, 0)."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Capability:
        """ "12.0" -> (12, 0). Raises ValueError for anything else."""
        major, dot, minor = text.partition(".")
        if not (dot and major.isdecimal() and minor.isdecimal()):
            raise ValueError(f"not a compute capability: {text!r}")
        return cls(int(major), int(minor))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU model as the catalogue or NVML knows it. Sizes are None where no source gave them."""

    name: str
    vendor: str = "nvidia"
    capability: Capability | None = None  # None: not covered (AMD, Intel) -> every verdict is unknown
    memory_gib: float | None = None  # as the driver reports it, else as sold
    cuda_gib: tuple[float, float] | None = None  # as a CUDA program sees it, at least and at most; None: memory_gib
    bandwidth_gbs: float | None = None
    smem_per_block_kib: float | None = None  # opt-in maximum of shared memory per thread block


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model as its files say it, before any engine has made something of it."""

    path: str
    config: dict[str, Any]  # config.json
    hf_quant: dict[str, Any] | None = None  # hf_quant_config.json
    files: frozenset[str] | None = None  # names of the files beside config.json; None: not known
    weight_dtypes: frozenset[str] | None = None  # as safetensors names them; read only where config.json names none
    hub: bool = False  # `path` is a hub id
    gguf: Any = None  # inputs.gguf.traits.GgufModel, where the model is a GGUF file; then `config` is what its keys say


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of attention layer asks the engine's backend selector.

    Field names are those of the first engine's own selector, plus the context its predicates read. A field a release
    does not know is ignored for that release.
    """

    capability: Capability
    head_size: int
    dtype: str  # "float16" | "bfloat16" | "float32"
    kv_cache_dtype: str | None = "auto"
    block_size: int | None = None  # only if the user gave it
    use_mla: bool = False
    has_sink: bool = False
    use_sparse: bool = False
    use_mm_prefix: bool = False
    use_per_head_quant_scales: bool = False
    attn_type: str = "decoder"
    has_sliding_window: bool = False
    use_non_causal: bool = False
    use_batch_invariant: bool = False
    use_kv_connector: bool = False
    use_pcp: bool = False
    use_adaptive_verification: bool = False
    use_dcp: bool = False
    use_rswa: bool = False
    num_heads: int | None = None  # query heads per rank, as handed to the selector
    backend: str | None = None  # --attention-backend, upper case; None: automatic
    # context, not handed to the selector but read by its predicates:
    num_kv_heads: int | None = None
    hf: dict[str, Any] | None = None  # hf_text_config attributes; None: no model config at all
    model_head_size: int | None = None  # model_config.get_head_size(); None: same as head_size
    model_num_heads: int | None = None  # model_config.get_num_attention_heads(); None: num_heads or 16
    run_kv_cache_dtype: str | None = None  # cache_config.cache_dtype; None: same as kv_cache_dtype
    flash_attn_version: int | None = None  # attention_config.flash_attn_version
    dcp_size: int = 1  # decode context parallel size
    pcp_size: int = 1  # prefill context parallel size
    rswa_window: int | None = None  # model_config.rswa_window
    is_diffusion: bool = False  # model_config.is_diffusion
    use_trtllm_attention: bool | None = None  # attention_config.use_trtllm_attention


class Selection(msgspec.Struct, frozen=True, gc=False):
    """The engine's answer to one question. `refused` and `verdicts` keep the engine's own order."""

    chosen: str | None  # None: refused, or unknown (then `unknown` says why)
    valid: tuple[str, ...]
    verdicts: tuple[Verdict, ...]  # every CUDA backend of the release, candidate or not
    error: str | None = None  # what the engine raises, exception name first
    unknown: str = ""
    automatic: str | None = None  # what it would choose without the user's --attention-backend
    # the question exactly as given, where the release drops a field (block_size up to 0.17) before it validates
    direct: tuple[Verdict, ...] = ()


class LayerQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question, and for which layers of the model it is asked."""

    question: Question
    selection: Selection
    role: str = "target"  # "target" | "draft"
    layer_class: str = "Attention"
    count: int = 1


class Launch(msgspec.Struct, kw_only=True):
    """The whole answer for one launch. `ok` None means unknown; `unknown` then names what is missing."""

    ok: bool | None
    # where it ended: parse_flags | create_engine_config | init_device | selector | model_init | draft_init |
    # load_weights | update_block_size | done; other engines have stages of their own, and say them in `when`
    stage: str
    error: str | None = None  # the engine's words, exception name first
    unknown: tuple[str, ...] = ()
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    kv_cache_dtype_after_init: str | None = None
    block_size: int | None = None
    block_size_after_load: int | None = None
    layers: tuple[LayerQuestion, ...] = ()
    hypothetical: bool = False  # the engine refuses before it asks; `layers` is what it would have asked
    notes: tuple[str, ...] = ()
    where: str = ""  # engine file:line that refuses
    detail: str = ""  # what the engine printed before `error`, where that says more
    fit: Fit | None = None  # None: not asked, or nothing is known of the sizes
    # of engines that resolve their settings in a procedure instead of asking a selector:
    when: str = ""  # the stage in words: "after the weights have loaded"
    chosen: tuple[tuple[str, str], ...] = ()  # ("prefill", "trtllm_mha"), ("decode", "triton"), ...
    changes: tuple[Change, ...] = ()
    choices: tuple[Choice, ...] = ()  # asked only for a report
    hazards: tuple[Hazard, ...] = ()
    kernels: tuple[KernelFact, ...] = ()  # only where they were asked about
    kernels_unknown: tuple[str, ...] = ()  # why one of them, or all, could not be asked about; `notes` have it too
    reply: dict[str, Any] = {}  # the answer in the engine's own words, for --batch and --json


class Report(msgspec.Struct, kw_only=True):
    """What `attnfit check` answers: the launch, the circumstances it was answered for, and the next step."""

    verdict: str  # "passes" | "refused" | "breaks" | "unknown"
    launch: Launch
    engine: str
    release: str  # the release answered for
    exact: bool  # False: only the nearest book's opinion -> exit 3 whatever the verdict
    model: str
    gpus: tuple[tuple[Gpu, int], ...]
    said: tuple[str, ...] = ()  # assumptions, defaults taken, where facts come from
    steps: tuple[Step, ...] = ()
    plan: Plan = Plan()  # where those come from: what would not help, what conflicts, how much was tried
    command: tuple[str, ...] = ()  # the launch that was checked, keys and tokens shown as $NAME

    @property
    def may_break(self) -> bool:
        """It passes; its memory, a kernel under the Triton that the release brings, or a known hazard may stop it."""
        return self.may_run_out or self.kernel_may_break or self.hazard_may_break

    @property
    def hazard_may_break(self) -> bool:
        """It passes, and meets a hazard of which something that decides is not known."""
        return self.verdict == "passes" and any(hazard.may_break for hazard in self.launch.hazards)

    @property
    def may_run_out(self) -> bool:
        """It passes, and only the GPU can tell whether its memory does."""
        return self.verdict == "passes" and self.launch.fit is not None and self.launch.fit.verdict == "may break"

    @property
    def kernel_may_break(self) -> bool:
        """It passes, and a kernel cannot run with a Triton that is not known to be the release's."""
        return self.verdict == "passes" and any(kernel.may_break for kernel in self.launch.kernels)

    @property
    def exit_code(self) -> int:
        if not self.exact:
            return 3
        return {"passes": 0, "refused": 1, "breaks": 1, "unknown": 3}[self.verdict]
