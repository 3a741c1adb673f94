"""What would not help, and why: the changes that people would try next, each of which was asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnfit.core import Launch, Status
from attnfit.engines import Cost, Move
from attnfit.plan.judge import Outcome

MOST = 3
_SAID = (  # class -> how a sentence on it begins
    (Cost.NOTHING, "words put right, or those that do nothing dropped"),
    (Cost.BACKEND, "another backend or kernel"),
    (Cost.GRAPHS, "other CUDA graphs or fusions"),
    (Cost.BLOCK, "another block or page size"),
    (Cost.KV_DTYPE, "another KV cache dtype"),
    (Cost.DTYPE, "another dtype"),
    (Cost.FEATURE, "what else was asked for"),
    (Cost.SIZE, "fewer or shorter requests"),
    (Cost.SPLIT, "another split over the GPUs"),
    (Cost.DENSE, "sparse attention off"),
    (Cost.PLUGIN, "attnfit's own backend"),
)


def useless(outcome: Outcome, tried: Sequence[tuple[Move, Outcome]], cheapest: int | None) -> Iterator[str]:
    """A sentence for each class of change that never helped, of those that are cheaper than the offers."""
    launch = outcome.launch
    if tried and all(after.launch.ok is False and after.launch.error == launch.error for _, after in tried):
        number = f"{len(tried)} changes of it were" if len(tried) > 1 else "the one change of it that may help was"
        yield f"anything in this command: {number} asked, and the refusal stays the same"
        return
    if (sentence := _backends(launch)) and (cheapest is None or cheapest > Cost.BACKEND):
        yield sentence
    for cost, name in _SAID:
        if (cheapest is not None and cost >= cheapest) or (cost is Cost.BACKEND and sentence):
            continue
        mine = [(move, after) for move, after in tried if cost <= move.cost < _next(cost)]
        untouched = all(after.launch.error == launch.error for _, after in mine)
        if mine and not untouched and not any(after.starts for _, after in mine):
            shown = ", ".join(move.text for move, _ in mine[:4])
            rest = f" and {len(mine) - 4} more" if len(mine) > 4 else ""
            yield f"{name}: {shown}{rest} {'was' if len(mine) == 1 else 'were'} asked alone{_why(mine)}"


def _backends(launch: Launch) -> str:
    """Every backend has its verdict already."""
    asked = [layer for layer in launch.layers if launch.stage == "selector" and not launch.hypothetical]
    for layer in asked:
        own = [v for v in layer.selection.verdicts if not v.brought_by]
        if own and all(v.status is Status.REFUSES for v in own):
            return f"another backend: all {len(own)} of the release were asked, and refuse"
    for choice in launch.choices:
        if choice.verdicts and all(v.status is Status.REFUSES for v in choice.verdicts):
            return f"{choice.flag}: all {len(choice.verdicts)} of its values were asked, and are refused"
    return ""


def _why(mine: Sequence[tuple[Move, Outcome]]) -> str:
    """How it ends, each way once."""
    ends = [
        "it runs out of memory" if after.too_large
        else "it breaks later" if after.launch.ok
        else "what decides is not known" if after.launch.ok is None
        else f"it is refused {after.launch.when or f'at stage {after.launch.stage}'}"
        for _, after in mine
    ]  # fmt: skip
    return f"; {', or '.join(dict.fromkeys(ends))}"


def _next(cost: Cost) -> int:
    return min((other for other in Cost if other > cost), default=cost + 1000)
