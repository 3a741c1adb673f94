"""What the books refer to by name: fields of a question, circumstances derived from it, how values are printed.

A closed vocabulary: a book that names anything else is refused on loading. `learn` writes these names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnfit.core import Question

# Fields a tree may ask about that are attributes of the question.
ASKED = (
    "head_size", "dtype", "kv_cache_dtype", "block_size", "use_mla", "has_sink", "use_sparse", "use_mm_prefix",
    "use_per_head_quant_scales", "attn_type", "has_sliding_window", "use_non_causal", "use_batch_invariant",
    "use_kv_connector",
    "use_pcp", "use_adaptive_verification", "use_dcp", "use_rswa", "num_heads", "flash_attn_version",
    "dcp_size", "pcp_size",
    "rswa_window", "is_diffusion", "use_trtllm_attention",
)  # fmt: skip


def model_num_heads(q: Question) -> int:
    """model_config.get_num_attention_heads(): as stated, else the layer's heads, else 16."""
    return q.model_num_heads if q.model_num_heads is not None else q.num_heads or 16


def num_kv_heads(q: Question) -> int:
    """model_config.get_num_kv_heads(): as stated, else 8."""
    return q.num_kv_heads or 8


def model_head_size(q: Question) -> int:
    """model_config.get_head_size(): as stated, else the layer's."""
    return q.head_size if q.model_head_size is None else q.model_head_size


def run_kv_cache_dtype(q: Question) -> str:
    """cache_config.cache_dtype: as stated, else the layer's, else auto."""
    return q.run_kv_cache_dtype if q.run_kv_cache_dtype is not None else q.kv_cache_dtype or "auto"


def queries_per_kv_head(q: Question) -> int | None:
    """Whole query heads per KV head; None without KV heads."""
    heads = num_kv_heads(q)
    return model_num_heads(q) // heads if heads else None


def queries_left_over(q: Question) -> int | None:
    """Query heads that do not divide among the KV heads; None without KV heads."""
    heads = num_kv_heads(q)
    return model_num_heads(q) % heads if heads else None


def gathered_heads(q: Question) -> int:
    """Query heads a kernel sees under decode context parallelism."""
    return model_num_heads(q) * q.dcp_size


CONTEXT: dict[str, Callable[[Question], Any]] = {
    f.__name__: f
    for f in (
        model_num_heads, num_kv_heads, model_head_size, run_kv_cache_dtype, queries_per_kv_head, queries_left_over,
        gathered_heads,
    )
}  # fmt: skip

NUMBERS = frozenset((int, float, type(None)))


class NoNumber(Exception):
    """A config attribute that a rule compares with numbers holds something else."""


class NotNumber:
    """Stands for such a value: nothing may be concluded from it."""

    def __init__(self, name: str, value: Any) -> None:
        self._text = f"hf.{name} is {type(value).__name__}, not a number"

    def _refuse(self, *_: Any) -> Any:
        raise NoNumber(self._text)

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __hash__ = _refuse
    __mod__ = __floordiv__ = __add__ = __sub__ = __mul__ = _refuse


def has_float(key: Any) -> bool:
    """Whether a key holds a float (equal to an integer, but printed differently)."""
    return any(part.__class__ is float for part in key) if key.__class__ is tuple else key.__class__ is float


class _Bare(str):
    """A name that also repr() shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def shown(name: str, value: Any) -> Any:
    """A field's value as the engine prints it."""
    return _Bare(f"torch.{value}") if name == "dtype" else value


def text(template: str, values: list[Any], numbers: Mapping[str, int]) -> str:
    """A reason with its fields filled in."""
    if "{" not in template and "}" not in template:
        return template
    return template.format_map(_Values(values, numbers))


class _Values(dict[str, Any]):
    def __init__(self, values: list[Any], numbers: Mapping[str, int]) -> None:
        self._values, self._numbers = values, numbers

    def __missing__(self, name: str) -> Any:
        return _Hf(self) if name == "hf" else shown(name, self._values[self._numbers[name]])


class _Hf:
    def __init__(self, values: _Values) -> None:
        self.__dict__["_all"] = values

    def __getattr__(self, name: str) -> Any:
        return self._all[f"hf.{name}"]


def fill(message: str, q: Question, more: Mapping[str, Any]) -> str:
    """An engine error with the question's fields and `more` filled in."""
    return message.format_map(_Fields(q, more))


class _Fields(dict[str, Any]):
    def __init__(self, q: Question, more: Mapping[str, Any]) -> None:
        super().__init__(more)
        self._q = q

    def __missing__(self, name: str) -> Any:
        return shown(name, getattr(self._q, name))
