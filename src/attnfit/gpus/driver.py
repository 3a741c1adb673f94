"""Which NVIDIA driver a CUDA needs, and which CUDA a torch is built for. Figures with their source, no I/O."""

from __future__ import annotations

import re

#: CUDA major -> oldest driver, https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
OLDEST = {13: 580, 12: 525, 11: 450}
#: the CUDA that torch's wheels on the package index are built for (torch/version.py)
CUDA_OF_TORCH = {"2.9": 12, "2.10": 12, "2.11": 13, "2.12": 13, "2.13": 13, "2.14": 13}


def of_torch(version: str) -> int | None:
    """The CUDA major of a torch ("2.14.0") as the package index has it; None where that is not known."""
    return CUDA_OF_TORCH.get(".".join(version.split(".")[:2]))


def needs(driver: str, cuda: int | None) -> int | None:
    """The oldest driver for that CUDA, where `driver` ("575.57.08") is older; None: it serves, or it is not known."""
    found = re.match(r"\d+", driver)
    oldest = OLDEST.get(cuda or 0)
    return oldest if found and oldest and int(found[0]) < oldest else None
