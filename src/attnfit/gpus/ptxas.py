"""Which architectures the ptxas that Triton brings can assemble for. Figures with their source, no I/O.

Read from Triton's own wheels for x86-64 (`ptxas --version`, `ptxas --help` of 3.5.1, 3.6.0, 3.7.1, 3.8.0). From 3.6 on
a second one, `ptxas-blackwell`, is run for compute capability 10.0 and newer (backends/nvidia/compiler.py, get_ptxas).
"""

from __future__ import annotations

from typing import NamedTuple

# torch -> the Triton it requires (Requires-Dist of its wheels)
TRITON_OF = {"2.9": "3.5", "2.10": "3.6", "2.11": "3.6", "2.12": "3.7", "2.13": "3.7", "2.14": "3.8"}


class Ptxas(NamedTuple):
    cuda: str  # the CUDA release it is from
    newest: frozenset[tuple[int, int]]  # compute capabilities of 10.0 and newer that it knows
    variable: str  # names another one for them


OLDER, NEWER = "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"  # NEWER: from 3.6 on, for 10.0 and newer
_129 = frozenset({(10, 0), (10, 1), (10, 3), (12, 0), (12, 1)})
_13 = frozenset({(10, 0), (10, 3), (11, 0), (12, 0), (12, 1)})
BROUGHT = {
    "3.5": Ptxas("12.8", frozenset({(10, 0), (10, 1), (12, 0)}), OLDER),
    "3.6": Ptxas("12.9", _129, NEWER),
    "3.7": Ptxas("13.1", _13, NEWER),
    "3.8": Ptxas("13.3", _13, NEWER),
}


def of_torch(version: str) -> tuple[str, Ptxas] | None:
    """(Triton, its ptxas) that a torch brings; None where that is not known. version: "2.9.1"."""
    triton = TRITON_OF.get(".".join(version.split(".")[:2]), "")
    return (triton, BROUGHT[triton]) if triton in BROUGHT else None


def variables(torch: str) -> tuple[str, ...]:
    """What names another ptxas for GPUs of 10.0 and newer under a torch's Triton; both, where that is not known."""
    brought = of_torch(torch)
    return (brought[1].variable,) if brought is not None else (OLDER, NEWER)


def knows(ptxas: Ptxas, capability: tuple[int, int]) -> bool:
    return capability < (10, 0) or capability in ptxas.newest
