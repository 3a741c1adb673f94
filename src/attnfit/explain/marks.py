"""What a log is searched for, before any of its lines is read."""

from __future__ import annotations

from functools import cache

from attnfit.engines.log import log_words
from attnfit.explain import consequences
from attnfit.explain.commands import launch_marks
from attnfit.inputs.log import Marks

# What a line that speaks of an error holds. The first lines of a log and of each start are read whatever they hold, and
# so are those behind a traceback's: further on, a hazard that prints none of these words would not be seen.
GENERAL = (b"rror", b"ERROR", b"xception", b"raceback", b"atal", b"FATAL", b"CRITICAL", b"ailed", b"ssert", b"Killed")


@cache
def marks() -> Marks:
    """What the log is searched for."""
    words = log_words()
    opens = [word.encode() for log in words for word in log.starts]
    others = [word.encode() for log in words for word in (*log.ready, *log.died)]
    others.append(consequences.RESTARTED_MARK)
    triggers = dict.fromkeys((*GENERAL, *opens, *others, *(word.encode() for word in launch_marks())))
    fewest = [word for word in triggers if not any(other in word for other in triggers if other != word)]
    at_work = (*(word.encode() for log in words for word in log.at_work), consequences.SERVED_MARK)
    turns = (*opens, *others, *at_work)
    return Marks(tuple(fewest), tuple(opens), tuple(form for log in words for form in log.prefixes), at_work, turns)
