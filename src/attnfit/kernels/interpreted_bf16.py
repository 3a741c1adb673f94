"""The repairs that interpreter.py describes, in place of what Triton's interpreter does with bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as _theirs

_Builder = _theirs.InterpreterBuilder
_Handle = _theirs.TensorHandle
_BUILDER = {name: vars(_Builder).get(name) for name in ("binary_op", "cast_impl", "create_dot", "create_fma",
                                                        "create_fp_to_fp", "get_bf16", "unary_op")}  # fmt: skip
_APPLY = _theirs.ReduceScanOpInterface.apply


def applied() -> bool:
    return _Builder.binary_op is _binary_op


def apply() -> None:
    for name in _BUILDER:
        setattr(_Builder, name, globals()[f"_{name}"])
    _theirs.ReduceScanOpInterface.apply = _apply


def remove() -> None:
    for name, original in _BUILDER.items():
        if original is not None:
            setattr(_Builder, name, original)
        elif name in vars(_Builder):
            delattr(_Builder, name)
    _theirs.ReduceScanOpInterface.apply = _APPLY


def widen(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bits, uint16 -> fp32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(values: np.ndarray) -> np.ndarray:
    """fp32 -> bfloat16 bits, uint16: to the nearest, ties to even; too large becomes infinity; NaN stays NaN."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + (np.uint32(0x7FFF) + odd)) >> np.uint32(16)
    return np.where(np.isnan(values), (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)


def _is_bf16(handle: Any) -> bool:
    return handle.dtype.scalar == tl.bfloat16 and handle.data.dtype == np.uint16


def _wide(handle: Any) -> Any:
    return _Handle(widen(handle.data), tl.float32) if _is_bf16(handle) else handle


def _narrow(handle: Any) -> Any:
    return _Handle(narrow(handle.data), tl.bfloat16)


def _binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
    if not (_is_bf16(lhs) or _is_bf16(rhs)):
        return _BUILDER["binary_op"](self, lhs, rhs, op)
    result = op(_wide(lhs).data, _wide(rhs).data)
    return _Handle(result, tl.int1) if result.dtype == np.bool_ else _narrow(_Handle(result, tl.float32))


def _unary_op(self: Any, arg: Any, op: Any) -> Any:
    done = _BUILDER["unary_op"](self, _wide(arg), op)
    return _narrow(done) if _is_bf16(arg) else done


def _create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
    done = _BUILDER["create_fma"](self, _wide(x), _wide(y), _wide(z))
    return _narrow(done) if _is_bf16(z) else done


def _create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any, **named: Any) -> Any:
    return _BUILDER["create_dot"](self, _wide(a), _wide(b), d, *rest, **named)


def _cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
    wide = _wide(src)
    if dst_type.scalar != tl.bfloat16:
        return _BUILDER["cast_impl"](self, wide, dst_type)
    return src if _is_bf16(src) else _Handle(narrow(wide.data.astype(np.float32)), tl.bfloat16)


def _create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
    standard = {tl.bfloat16, tl.float16, tl.float32, tl.float64}
    pair = {src.dtype.scalar, dst_type.scalar}
    if tl.bfloat16 in pair and pair <= standard and rounding_mode != _theirs._ir.ROUNDING_MODE.RTZ:
        return self.cast_impl(src, dst_type)
    return _BUILDER["create_fp_to_fp"](self, src, dst_type, rounding_mode)


def _get_bf16(self: Any, value: float) -> Any:
    return _narrow(_Handle(np.array([value], dtype=np.float32), tl.float32))


def _apply(self: Any, tensors: Any) -> Any:
    """Reductions and scans: bfloat16 goes in as fp32, and what came of it is rounded back."""
    if not isinstance(tensors, tuple):
        return _apply(self, (tensors,))[0]
    narrowed = [_is_bf16(tensor.handle) for tensor in tensors]
    if not any(narrowed):
        return _APPLY(self, tensors)
    done = _APPLY(self, tuple(_retyped(t, _wide(t.handle)) if n else t for t, n in zip(tensors, narrowed, strict=True)))
    return tuple(_retyped(t, _narrow(t.handle)) if n else t for t, n in zip(done, narrowed, strict=False))


def _retyped(tensor: Any, handle: Any) -> Any:
    dtype = handle.dtype.scalar
    return tl.tensor(handle, tl.block_type(dtype, tensor.type.shape) if tensor.type.is_block() else dtype)
