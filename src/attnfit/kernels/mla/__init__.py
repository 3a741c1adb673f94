"""Sparse MLA: attention over the rows of a latent cache that top-k indices name."""

from __future__ import annotations

from attnfit.kernels.mla.api import Device as Device
from attnfit.kernels.mla.api import device_of as device_of
from attnfit.kernels.mla.api import sparse_mla as sparse_mla
from attnfit.kernels.mla.api import sparse_mla_workspace as sparse_mla_workspace
