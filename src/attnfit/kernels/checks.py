"""What public functions ask of their arguments, and which implementation answers."""

from __future__ import annotations

import torch

from attnfit.kernels import interpreter

IMPLEMENTATIONS = ("triton", "reference")
HALVES = (torch.float16, torch.bfloat16)
OLDEST = (8, 0)


def is_codes(values: torch.Tensor) -> bool:
    """Whether it holds e4m3 codes. Raises TypeError for a one-byte type that is no e4m3."""
    if values.element_size() != 1:
        return False
    if values.dtype not in (torch.uint8, torch.int8, torch.float8_e4m3fn):
        raise TypeError(f"one-byte values are e4m3 codes (uint8 or float8_e4m3fn), not {values.dtype}")
    return True


def choose(implementation: str | None, device: torch.device, names: tuple[str, ...] = IMPLEMENTATIONS) -> str:
    """The reference for CPU tensors, the first of `names` otherwise, unless one is named. Raises ValueError."""
    if implementation is None:
        implementation = "reference" if device.type == "cpu" else names[0]
    if implementation not in names:
        raise ValueError(f"implementation is one of {', '.join(names)}, not {implementation!r}")
    in_triton = implementation != "reference"
    if in_triton and device.type == "cpu" and not interpreter.interpreting():
        raise ValueError(
            "CPU tensors go through the reference; for Triton's interpreter set TRITON_INTERPRET=1 before the import"
        )
    if in_triton and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < OLDEST:
            raise ValueError(
                f"compute capability {capability[0]}.{capability[1]}: the kernels need {OLDEST[0]}.{OLDEST[1]} or newer"
                ' (bfloat16, maxima that keep NaN); implementation="reference" runs anywhere'
            )
    return implementation


def dot_dtype(q: torch.Tensor, k: torch.Tensor) -> torch.dtype:
    """In which 16-bit type q and k meet: codes fit both exactly. Raises TypeError where there is no common one."""
    native = [values.dtype for values in (q, k) if not is_codes(values)]
    if any(dtype not in HALVES for dtype in native):
        raise TypeError(f"the kernel takes float16, bfloat16 or e4m3 codes; q is {q.dtype}, the keys are {k.dtype}")
    if len(set(native)) > 1:
        raise TypeError(f"q and the keys are of one 16-bit type; they are {q.dtype} and {k.dtype}")
    dtype = native[0] if native else torch.float16
    interpreter.require_bf16(dtype)
    return dtype


def shaped(name: str, tensor: torch.Tensor, *shape: int | None) -> None:
    """Raises ValueError unless it has that shape (None: any length) and lies contiguous along its last dimension."""
    fits = tensor.dim() == len(shape) and all(n is None or n == m for n, m in zip(shape, tensor.shape, strict=True))
    if not fits:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} is {list(tensor.shape)}, not [{wanted}]")
    if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} must be contiguous along its last dimension; its strides are {tensor.stride()}")


def integers(name: str, tensor: torch.Tensor, *dtypes: torch.dtype) -> None:
    """Raises TypeError unless it has one of the dtypes (int32 if none is given)."""
    dtypes = dtypes or (torch.int32,)
    if tensor.dtype not in dtypes:
        raise TypeError(f"{name} is {tensor.dtype}, not {' or '.join(str(d) for d in dtypes)}")


def floats(name: str, tensor: torch.Tensor, *dtypes: torch.dtype) -> None:
    """Raises TypeError unless it has one of the dtypes (any float of 16 bits or more if none is given)."""
    if tensor.dtype not in (dtypes or (torch.float32, *HALVES, torch.float64)):
        raise TypeError(f"{name} is {tensor.dtype}, not {' or '.join(str(d) for d in dtypes) or 'a float'}")


def on_one_device(**tensors: torch.Tensor | None) -> None:
    """Raises ValueError if the tensors lie on different devices."""
    where = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    if len(set(where.values())) > 1:
        raise ValueError("tensors on different devices: " + ", ".join(f"{n} on {d}" for n, d in where.items()))
