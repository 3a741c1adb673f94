"""Plans of the multi-token-prediction drafts that come with a checkpoint.

Their layers are numbered from the target's last layer on, or from 0 where the class restarts; none is split over
pipeline ranks. `n` is how many MTP layers the checkpoint says it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attnfit.engines.vllm.launch import plans_bound, plans_mla, plans_other
from attnfit.engines.vllm.launch.plan import Ctx, Layer, Plan, attention
from attnfit.engines.vllm.launch.plans_hybrid import layer_list
from attnfit.engines.vllm.launch.state import Unknown

DraftLayer = Callable[[Ctx, Plan, int], Iterator[Layer]]


def _plain(c: Ctx, p: Plan, i: int) -> Iterator[Layer]:
    yield attention(c, {k: v for k, v in p.items() if k != "layers"}, i)


def _step3p5(c: Ctx, p: Plan, i: int) -> Iterator[Layer]:
    yield plans_other.step3p5_layer(c, p, i)


def _mimo_v2(c: Ctx, p: Plan, i: int) -> Iterator[Layer]:
    yield plans_bound.mimo_v2_layer(c, i, swa=True)


def _exaone_moe(c: Ctx, p: Plan, i: int) -> Iterator[Layer]:
    yield attention(c, p, i)._replace(window=plans_other.exaone_moe_window(c, i, mtp=True))


def _bailing(c: Ctx, p: Plan, i: int) -> Iterator[Layer]:
    yield plans_mla.bailing_latent(c, i)


def _kimi(c: Ctx, p: Plan, i: int) -> Iterator[Layer]:
    yield plans_mla.kimi_latent(c, i)


_LAYERS: dict[str, DraftLayer] = {
    "attention": _plain,
    "step3p5": _step3p5,
    "mimo_v2": _mimo_v2,
    "exaone_moe": _exaone_moe,
    "bailing": _bailing,
    "kimi": _kimi,
    "deepseek": lambda c, p, i: plans_mla.deepseek_layer(c, i),
    "deepseek_v32": lambda c, p, i: plans_mla.deepseek_v32_layer(c, i),
    "deepseek_v4": lambda c, p, i: plans_mla.deepseek_v4_layer(c, i),
    "glm5_next": lambda c, p, i: plans_mla.glm5_next_layer(c, i, mtp=True),
    "minimax_m3": lambda c, p, i: plans_bound.minimax_m3_sparse(c, i),
    "dots3": lambda c, p, i: plans_mla.dots3_layer(c, i),
    "openpangu": lambda c, p, i: plans_mla.openpangu_layer(c, i),
}


def mtp(c: Ctx, p: Plan) -> Iterator[Layer]:
    """`of` names the layer, `count` the key that says how many, `from` where their numbers start."""
    start = p.get("from", 0)
    first = int(start) if isinstance(start, int) else c.number(str(start)) * int(p.get("times", 1))
    count = c.get(p["count"], p.get("default")) if isinstance(p["count"], str) else p["count"]
    if not isinstance(count, int):
        raise Unknown(f"{p['count']} in config.json (the draft's layers)")
    layer = _LAYERS[p["of"]]
    for i in c.all(count):
        yield from layer(c, p, first + i)


def nemotron_h(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Attention where the MTP pattern has a star (nemotron_h_mtp.py:266)."""
    for i, kind in enumerate(layer_list(c, {"lists": ["mtp_hybrid_override_pattern", "mtp_layers_block_type"]})):
        if kind == "full_attention":
            yield attention(c, p, i)


PLANS = {"mtp": mtp, "nemotron_h_mtp": nemotron_h}
