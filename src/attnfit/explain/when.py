"""Which of several lines was written first, where they say when: logs of several workers are joined one behind the
other as often as line by line. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnfit.explain.story import Found

_TIME = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d:\d\d:\d\d)")
_TURN = ("12", "01")  # months between which a year that is not printed may turn


def first(found: Sequence[Found]) -> Found | None:
    """The one that was written first: as they stand, unless a later line bears an earlier time."""
    chosen = found[0] if found else None
    for each in found[1:]:
        if chosen is not None and _earlier(each.line.head, chosen.line.head):
            chosen = each
    return chosen


def _earlier(head: str, other: str) -> bool:
    """Whether both heads bear a time, in one form, and the first an earlier one. To the second: clocks differ."""
    one, two = _TIME.search(head), _TIME.search(other)
    if one is None or two is None or bool(one[1]) != bool(two[1]):
        return False
    if not one[1] and {one[2], two[2]} == set(_TURN):
        return False
    return tuple(map(str, one.groups(""))) < tuple(map(str, two.groups("")))
