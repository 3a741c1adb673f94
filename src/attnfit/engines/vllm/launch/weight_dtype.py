"""The dtype a release reads off the weights where config.json names none.

vllm/transformers_utils/model_arch_config_convertor.py:221 (0.33.0) collects the dtypes of all tensors from the headers
of the safetensors files; vllm/utils/torch_utils.py:358 takes the one that most of them cast to without loss. Up to
0.17 only hub ids are looked at, a directory counts as float32.
"""

from __future__ import annotations

from collections.abc import Iterable

from attnfit.engines.vllm.launch.state import Unknown

#: safetensors' name -> torch's; the engine passes over those that its safetensors package does not list
TORCH = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "C64": "complex64",
}  # fmt: skip
#: torch.finfo: largest value, resolution
_FLOATS = {
    "float64": (1.8e308, 1e-15), "float32": (3.4028e38, 1e-6), "bfloat16": (3.3895e38, 1e-2), "float16": (65504, 1e-3),
    "float8_e5m2": (57344, 1.0), "float8_e5m2fnuz": (57344, 1.0), "float8_e4m3fn": (448, 1.0),
    "float8_e4m3fnuz": (240, 1.0),
}  # fmt: skip
_LOCAL_SINCE = 18  # 0.18 reads the headers of a directory too


def dtype_of_weights(found: Iterable[str] | None, release: str, *, hub: bool) -> str | None:
    """The dtype the engine reads off tensors of these safetensors dtypes. None: the headers are not at hand.

    Raises Unknown where two dtypes win and the engine's choice hangs on the order of a set.
    """
    if not hub and int(release.split(".")[1]) < _LOCAL_SINCE:
        return "float32"
    if found is None:
        return None
    known = {TORCH[name] for name in found if name in TORCH}
    if not known:
        return "float32"
    fits = {target: sum(lossless(source, target) for source in known) for target in known}
    best = max(fits.values())
    winners = sorted(name for name, count in fits.items() if count == best)
    if len(winners) > 1:
        raise Unknown(
            f"dtype: config.json names none, and the weights are {' and '.join(winners)}; which of them the engine "
            "takes changes from start to start; give --dtype"
        )
    return winners[0]


def lossless(source: str, target: str) -> bool:
    """Whether the engine holds a cast from one torch dtype to another for lossless."""
    if source == target:
        return True
    levels = _level(source), _level(target)
    if levels[0] != levels[1]:
        return levels[0] < levels[1]
    if levels[0] == 1:
        low, high = _whole(source)
        least, most = _whole(target)
        return low >= least and high <= most
    if source in _FLOATS and target in _FLOATS:
        return _FLOATS[source][0] <= _FLOATS[target][0] and _FLOATS[source][1] >= _FLOATS[target][1]
    return False


def _level(dtype: str) -> int:
    return 0 if dtype == "bool" else 3 if dtype.startswith("complex") else 2 if dtype in _FLOATS else 1


def _whole(dtype: str) -> tuple[int, int]:
    bits = int(dtype.lstrip("uint"))
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
