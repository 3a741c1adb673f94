"""One checkpoint's quantisation settings as one release's class reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.launch.messages import value_error
from attnfit.engines.vllm.launch.state import Refusal

Quant = dict[str, Any]


class Read:
    """The settings, and what the release's table says of the class that reads them.

    facts, entry   the release's table, and its entry of the method in `quant_classes`
    """

    def __init__(self, facts: Quant, entry: Quant, quant: Quant, capability: Capability) -> None:
        self.facts, self.quant, self.capability = facts, quant, capability
        self.values: Quant = entry.get("values") or {}
        self.checks = frozenset(facts.get("quant_checks", ()))
        self.where = f"{str(entry.get('at', '')).partition(':')[0].replace('.', '/')}.py"

    def need(self, keys: Iterable[list[str]]) -> None:
        """Raise Refusal where none of a key's spellings is there."""
        for words in keys:
            if not any(word in self.quant for word in words):
                raise self.refuse(f"Cannot find any of {words} in the model's quantization config.")

    def first(self, *keys: str) -> Any:
        return next((self.quant[key] for key in keys if key in self.quant), None)

    def refuse(self, text: str) -> Refusal:
        return value_error("VllmConfig", text, self.where)
