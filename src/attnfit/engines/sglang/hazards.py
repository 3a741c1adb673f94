"""The engine's own holes: flags that do nothing, kernels that nothing checks, refusals that give bad advice.

hazards.json holds what stands in a line of each release; what an answer itself shows is worked out here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from attnfit.core import Choice, Hazard, Status, Verdict
from attnfit.engines.sglang import words
from attnfit.engines.sglang.answers import Answer, Case
from attnfit.engines.sglang.releases import nearest

TABLE = Path(__file__).with_name("hazards.json")

ATTENTION_FLAGS = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
SPARSE = ("dsa", "nsa")  # DeepSeek sparse attention, and its former name
_UNGATED = (*SPARSE, "dsv4", "compressed")  # DeepSeek-V4's, and its former name: no check looks at the GPU either
# Of other platforms: never an answer on an NVIDIA GPU, so never proposed.
FOREIGN = frozenset({"aiter", "wave", "intel_amx", "ascend", "intel_xpu"})


class Record(msgspec.Struct, frozen=True):
    """A hole of some releases: whether a launch falls into it says the predicate `when`."""

    code: str
    when: str
    text: str
    where: dict[str, str]  # release -> file:line below sglang/
    flag: str = ""  # that does nothing then
    record: str = ""  # of the catalogue: the launch may break so
    needs: str = ""  # what would make it sure


@functools.cache
def table() -> list[Record]:
    return msgspec.json.decode(TABLE.read_bytes(), type=list[Record])


def recorded(version: str, case: Case, answer: Answer) -> Iterator[Hazard]:
    """Records whose predicate holds for the launch."""
    release = nearest(version)
    for record in table():
        if release in record.where and _PREDICATES[record.when](case, answer):
            plain = Hazard(record.code, record.text, f"sglang/{record.where[release]}", record.flag)
            given = {word.partition("=")[0] for word in case["argv"] if word.startswith("--")} | case[
                "variables"
            ].keys()
            yield _of_catalogue(plain, record, release, given) if record.record else plain


def _of_catalogue(hazard: Hazard, record: Record, release: str, given: set[str]) -> Hazard:
    """With the kind, the stage and the remedies of the catalogue's record."""
    from attnfit.hazards.catalogue import records_of
    from attnfit.hazards.words import meant, remedy_line

    whole = records_of("sglang")[record.record]
    return msgspec.structs.replace(
        hazard,
        strength="may break",
        needs=record.needs,
        kind=whole.kind,
        stage=whole.stage,
        remedies=tuple(map(remedy_line, meant(whole, "sglang", release, record.when, given))),
    )


def shown(answer: Answer) -> Iterator[Hazard]:
    """What the answer itself shows: a crash where a check should be."""
    if answer.get("ok") is False and answer.get("stage") == "backend-init" and _crash(answer):
        backend = answer.get("prefill") or "the backend"
        text = f"no check refuses {backend} for this model: it is built, and fails on something the model has not"
        yield Hazard("no-gate", text, place(answer))


def of_candidates(answer: Answer, choice: Choice, plainest: Answer) -> Iterator[Hazard]:
    """What asking every backend shows: a default that is refused, advice that does not help on this GPU."""
    if answer.get("ok") is not False:
        return
    verdicts = {verdict.backend: verdict for verdict in choice.verdicts}
    helped = any(verdict.status is Status.ACCEPTS for verdict in verdicts.values())  # else it is not the backend
    if helped and plainest.get("ok") is False and plainest.get("message") == answer.get("message"):
        picked = plainest.get("prefill")
        named = f", {picked}," if picked else ""
        text = f"with no flag at all it fails in the same way: the release's own default here{named} is refused"
        yield Hazard("default-refused", text, place(plainest))
    advised = [name for name in advice(str(answer.get("message")), list(verdicts)) if name not in FOREIGN]
    wrong = [verdicts[name] for name in advised if verdicts[name].status is Status.REFUSES]
    right = [name for name in advised if verdicts[name].status is Status.ACCEPTS]
    passes = f"; of those it names {' and '.join(right)} {'passes' if len(right) == 1 else 'pass'}" if right else ""
    for verdict in wrong:
        if verdict.backend not in (answer.get("prefill"), answer.get("decode")):
            text = f"the message recommends {verdict.backend}, which is refused here too{_why(verdict)}{passes}"
            yield Hazard("bad-advice", text, verdict.reasons[0].where if verdict.reasons else "")


def advice(message: str, names: Sequence[str]) -> list[str]:
    """The backends that a message names as those to use, in its order: not the ones it complains of."""
    found: list[tuple[int, str]] = []
    for name in names:
        for match in re.finditer(rf"(?<![\w-]){re.escape(name)}(?![\w-])", message):
            before, after = message[: match.start()].lower(), message[match.end() :]
            if not _COMPLAINT.search(before) and not _LIMIT.match(after):
                found.append((match.start(), name))
                break
    return [name for _, name in sorted(found)]


# what stands right before the name of a backend that was given, not recommended
_COMPLAINT = re.compile(
    r"(?:\bgot\b[^.]*|=|prefill: |decode: |specified '|does not support |not supported in the "
    r"|--(?!attention-backend)[a-z-]+[ =])$"  # the value of another option
)
_LIMIT = re.compile(r"\s+(?:attention )?backend (?:can only|is only|does not|requires)")  # and what stands behind one


def place(answer: Answer) -> str:
    """ "sglang/srt/...py:205", or "" where the engine's own code is not what stops it."""
    where = answer.get("where")
    return f"sglang/{where['file']}:{where['line']}" if where else ""


def _crash(answer: Answer) -> bool:
    return answer.get("error_type") == "AttributeError" or " object has no attribute " in str(answer.get("message"))


def _why(verdict: Verdict) -> str:
    text = verdict.reasons[0].text.partition(": ")[2] if verdict.reasons else ""
    return f" ({text.rstrip('.')})" if text else ""


# ---- predicates, by the name that hazards.json gives them ---------------------------------------------------------


def _major(case: Case) -> int:
    return int(case["capability"].partition(".")[0])


def _fusion_without_kernel(case: Case, answer: Answer) -> bool:
    given = words.last(case["argv"], "--enable-flashinfer-allreduce-fusion") is not None
    return given and _major(case) not in (9, 10)


def _dsa_without_gate(case: Case, answer: Answer) -> bool:
    if answer.get("ok") is not True or not {answer.get("prefill"), answer.get("decode")} & set(_UNGATED):
        return False
    if _major(case) != 12:
        return _major(case) not in (9, 10)
    resolved = answer.get("resolved") or {}
    fields = [f"{family}_{phase}_backend" for family in ("dsa", "nsa") for phase in ("prefill", "decode")]
    kernels = {resolved.get(field) for field in fields} - {None}
    return not kernels or bool(kernels - set(_FOR_SM12X))


_FOR_SM12X = ("flashinfer_sparse_mla", "triton_sparse_mla")  # written for compute capability 12.x


def _fp8_kv_past_the_gate(case: Case, answer: Answer) -> bool:
    if answer.get("ok") is not True or answer.get("prefill") != "trtllm_mha" or _major(case) != 12:
        return False
    return words.value_of(case["argv"], "--kv-cache-dtype") in (None, "auto") and declares_fp8_kv(case)


def declares_fp8_kv(case: Case) -> bool:
    """Whether the checkpoint says that its KV cache is FP8 (hf_quant_config.json, or quantization_config)."""
    quant = (case["hf_quant"] or {}).get("quantization")
    if isinstance(quant, Mapping) and str(quant.get("kv_cache_quant_algo")).upper() == "FP8":
        return True
    config = case["config"]
    for holder in (config, config.get("text_config")):
        found = holder.get("quantization_config") if isinstance(holder, Mapping) else None
        scheme = found.get("kv_cache_scheme") if isinstance(found, Mapping) else None
        if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 and scheme.get("type") == "float":
            return True
    return False


_INDEXED = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "Glm5NextForConditionalGeneration")
_OWN_INDEXER = (*_UNGATED, "qsa")  # the backends that answer an indexer, or hand it on


def indexed(config: Mapping[str, object]) -> bool:
    """Whether an indexer picks the keys of the model's attention (DSA)."""
    architectures = config.get("architectures")
    return isinstance(architectures, list) and any(name in _INDEXED for name in architectures)


def dense(*backends: object) -> bool:
    """Whether these backends have nothing for an indexer (base_attn_backend.py answers None), which then picks none."""
    return bool(set(backends) - {None}) and not set(backends) & set(_OWN_INDEXER)


def _dense_instead_of_sparse(case: Case, answer: Answer) -> bool:
    passes = answer.get("ok") is True and indexed(case["config"])
    return passes and dense(answer.get("prefill"), answer.get("decode"))


def _dsa_in_float16(case: Case, answer: Answer) -> bool:
    if answer.get("ok") is not True or not {answer.get("prefill"), answer.get("decode")} & set(SPARSE):
        return False
    return words.value_of(case["argv"], "--dtype") in ("float16", "half")


def _scales_of_deep_gemm(case: Case, answer: Answer) -> bool:
    """FP8 in blocks whose scales nothing says to be UE8M0, on a GPU where DeepGEMM takes only those."""
    if answer.get("ok") is not True or _major(case) != 10:
        return False
    if words.value_of(case["argv"], "--fp8-gemm-backend") not in (None, "auto", "deep_gemm"):
        return False
    quant = case["config"].get("quantization_config")
    blocks = isinstance(quant, Mapping) and quant.get("quant_method") == "fp8" and quant.get("weight_block_size")
    return bool(blocks) and isinstance(quant, Mapping) and quant.get("scale_fmt") != "ue8m0"


def _v4(case: Case, answer: Answer, major: int) -> bool:
    serves = {answer.get("prefill"), answer.get("decode")} & {"dsv4", "compressed"}
    return answer.get("ok") is True and bool(serves) and _major(case) == major


def _dsa_trtllm_on_12(case: Case, answer: Answer) -> bool:
    if answer.get("ok") is not True or _major(case) != 12:
        return False
    if not {answer.get("prefill"), answer.get("decode")} & set(SPARSE):
        return False
    resolved = answer.get("resolved") or {}
    fields = [f"{family}_{phase}_backend" for family in ("dsa", "nsa") for phase in ("prefill", "decode")]
    return "trtllm" in {resolved.get(field) for field in fields}


_PREDICATES: Mapping[str, Callable[[Case, Answer], bool]] = {
    "fusion_without_kernel": _fusion_without_kernel,
    "dsa_without_gate": _dsa_without_gate,
    "fp8_kv_past_the_gate": _fp8_kv_past_the_gate,
    "dsa_in_float16": _dsa_in_float16,
    "dense_instead_of_sparse": _dense_instead_of_sparse,
    "v4_on_8": lambda case, answer: _v4(case, answer, 8),
    "v4_on_12": lambda case, answer: _v4(case, answer, 12),
    "dsa_trtllm_on_12": _dsa_trtllm_on_12,
    "scales_of_deep_gemm": _scales_of_deep_gemm,
}
