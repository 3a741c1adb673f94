"""SGLang's distribution: pure Python, from the index (wheels; sdists up to 0.5.10.post1) or its repository."""

from __future__ import annotations

from attnfit.witness.distribution import Distribution

DISTRIBUTION = Distribution(
    name="sglang",
    package="sglang",
    holds="sglang/srt",
    folders=("", "python"),  # its repository has the package under python/
)
