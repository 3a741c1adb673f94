"""What a served answer must agree with, and how far. The figures of docs/vllm-cpu.md come from here."""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

from vllm_cpu_server import Answer

BOUND = 2e-5  # of a logprob in float32
DENSE = 0.1  # a model that attends to everything must differ by more, else the comparison shows nothing
# A top-k decision closer than this, relative to the row's largest score, is float32's own noise: whoever rounds
# differently takes another key, or another expert, and what follows is another text (transformers' float32 and its
# float64 part at 1.8e-6). Prompts with one are drawn anew. Answers cannot be chosen: a value beyond BOUND is set aside
# if such a decision lies at or before its position, and no more than SET_ASIDE of all are.
NEAR = 2e-6
SET_ASIDE = 0.05
# float16: both sides round at every step, and many top-k decisions are nearer than that. So the yardstick is what
# transformers' own float16 costs against its float64, on the same weights and tokens: the median and the 95th
# percentile of ours may be this much of it. Of the values beyond, one or two in a hundred, each stands behind a
# decision that a rounding turned: which ones is chance, on either side, so they are counted and not judged.
CASTS, HIGH = 2.0, 0.95


class Figure(NamedTuple):
    what: str
    found: float
    bound: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        return self.found >= self.bound if self.at_least else self.found <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{'' if self.holds else 'WRONG '}{self.what}: {self.found:.3g} ({sign} {self.bound:.3g})"


def agrees(answers: list[Answer], truth: list[dict[str, Any]]) -> list[Figure]:
    """float32: every logprob, and every generated token."""
    worst, aside, values, wrong = 0.0, 0, 0, 0
    for answer, row in zip(answers, truth, strict=True):
        first = len(answer.ids) - 1 - len(answer.logprobs)
        smallest = float("inf")
        for position, expected in enumerate(row["logprobs"]):
            smallest = min(smallest, row["margins"][position])
            if position < first:
                continue
            values += 1
            gap = abs(answer.logprobs[position - first] - expected)
            generated = position >= len(answer.prompt) - 1
            other = generated and answer.ids[position + 1] != row["best"][position]
            even = gap <= BOUND and row["ahead"][position] < BOUND  # of the two best tokens, either is right
            if (gap > BOUND or other) and (smallest < NEAR or even):
                aside += 1
                continue
            worst = max(worst, gap)
            wrong += bool(other)
    return [
        Figure(f"logprob, worst of {values}", worst, BOUND),
        Figure(f"other tokens, of {sum(len(answer.tokens) for answer in answers)}", wrong, 0),
        Figure("set aside for a near-tie", aside, SET_ASIDE * values),
    ]


def differs(answers: list[Answer], dense: list[dict[str, Any]]) -> list[Figure]:
    """The negative control: the same model with `index_topk` so large that it attends to everything."""
    return [Figure("dense control, largest difference", max(apart(answers, dense)), DENSE, at_least=True)]


def rounds(
    answers: list[Answer], exact: list[dict[str, Any]], rounded: list[dict[str, Any]], dense: list[dict[str, Any]]
) -> list[Figure]:
    """16-bit models: as far from float64 as transformers' own rounding is, and dense attention clearly farther."""
    ours, control = sorted(apart(answers, exact)), sorted(apart(answers, dense))
    theirs = sorted(
        abs(a - b)
        for ones, others in zip(rounded, exact, strict=True)
        for a, b in zip(ones["logprobs"], others["logprobs"], strict=True)
    )
    bound = CASTS * _high(theirs)
    turned = [sum(gap > bound for gap in gaps) for gaps in (ours, theirs, control)]
    print(f"  beyond {bound:.2g}: ours {turned[0]}, transformers' {turned[1]}, dense {turned[2]} of {len(ours)}")
    return [
        Figure(f"logprob, median of {len(ours)}", median(ours), CASTS * median(theirs)),
        Figure("logprob, 95th percentile", _high(ours), bound),
        Figure("dense control, 95th percentile", _high(control), 2 * bound, at_least=True),
    ]


def apart(answers: list[Answer], truth: list[dict[str, Any]]) -> list[float]:
    found = []
    for answer, row in zip(answers, truth, strict=True):
        expected = row["logprobs"][len(row["logprobs"]) - len(answer.logprobs) :]
        found += [abs(a - b) for a, b in zip(answer.logprobs, expected, strict=True)]
    return found


def _high(ascending: list[float]) -> float:
    return ascending[int(HIGH * (len(ascending) - 1))]
