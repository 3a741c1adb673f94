"""Where a start is: the stage that its log names, how far it says it is, and when it last said something new."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from attnfit.engines.serving import Serving, Stage

FIRST_REQUEST = Stage("first request", (), 600)
SERVING = Stage("serving", (), 300)  # patience: without an answer to a health request
_OF = re.compile(r"\b(\d{1,6})/(\d{1,6})\b")  # as progress bars print it


class Tracker:
    """patience: seconds by the name of a stage; "" for all of them."""

    def __init__(
        self, serving: Serving, patience: Mapping[str, float] = {}, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._stages, self._waiting, self._now, self._patience = serving.stages, serving.waiting, now, patience
        self.stage = serving.stages[0]
        self.done = self.total = 0  # of what the stage counts; 0 of 0: it does not say
        self.entered = self.progress = now()
        self._last = ""

    def feed(self, line: str) -> bool:
        """Takes a line; whether it opened a stage."""
        if self.stage in (FIRST_REQUEST, SERVING):
            self.progress = self._now()
            return False
        if any(word in line for word in self._waiting) or line == self._last:
            return False
        self._last, self.progress = line, self._now()
        found = next((stage for stage in reversed(self._stages) if any(word in line for word in stage.words)), None)
        if found is None:
            return False
        opened = found is not self.stage and self._stages.index(found) > self._stages.index(self.stage)
        if opened:
            self.enter(found)
        if found is self.stage and (counted := _OF.search(line)):
            self.done, self.total = int(counted[1]), int(counted[2])
        return opened

    def enter(self, stage: Stage) -> None:
        self.stage, self.done, self.total = stage, 0, 0
        self.entered = self.progress = self._now()

    def alive(self) -> None:
        """A sign of progress that is no line: a health request was answered, much was read or written."""
        self.progress = self._now()

    @property
    def patience(self) -> float:
        return self._patience.get(self.stage.name, self._patience.get("", self.stage.patience))

    @property
    def silent(self) -> float:
        return self._now() - self.progress

    @property
    def hung(self) -> bool:
        return self.silent > self.patience
