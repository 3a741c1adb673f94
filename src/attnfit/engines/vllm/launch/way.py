"""What every step of create_engine_config reads: the inputs, the release's tables, and what was met so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.launch import facts as tables
from attnfit.engines.vllm.launch.state import ParsedFlags, Refusal, Unknown
from attnfit.engines.vllm.ours import Ours


class Way:
    """One pass over the engine's own order of checks."""

    def __init__(
        self,
        config: dict[str, Any],
        hf_quant: dict[str, Any] | None,
        capability: Capability,
        flags: ParsedFlags,
        release: str,
        env: Mapping[str, object] | None,
        path: str,
        files: frozenset[str] | None,
        gpus: int | None,
        keep_going: bool,
        table: dict[str, Any] | None = None,
        weight_dtypes: frozenset[str] | None = None,
        hub: bool = False,
        plugin: Ours | None = None,
    ) -> None:
        self.raw, self.hf_quant, self.capability, self.flags = config, hf_quant, capability, flags
        self.release, self.path, self.files, self.gpus = release, path, files, gpus
        self.env = {**{k: v for k, v in (env or {}).items() if isinstance(v, str)}, **flags.env}
        self.keep_going = keep_going
        self.weight_dtypes, self.hub, self.plugin = weight_dtypes, hub, plugin
        self.refusals: list[Refusal] = []
        self.notes: list[str] = []
        self.facts = table if table is not None else tables.release_facts(release)
        self.classes = tables.class_tables(release)
        self.checks = frozenset(self.facts.get("checks", ()))

    @property
    def proven(self) -> bool:
        """Whether the derivation was compared with this release's own answers."""
        return self.release in tables.PROVEN

    def on(self, name: str) -> bool:
        """A VLLM_... switch, as vllm/envs.py reads it."""
        return self.env.get(name, "") not in ("", "0", "false", "False")

    def whole(self, dest: str) -> int | None:
        """A flag's whole number, or None. Raises Unknown for anything else."""
        value = self.flags.get(dest)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise Unknown(f"--{dest.replace('_', '-')} is {value!r}, not a whole number")

    def word(self, dest: str, default: str) -> str:
        """A flag's text, or the default where it was not given."""
        value = self.flags.get(dest)
        return default if value is None else str(value)

    def met(self, refusal: Refusal) -> None:
        """Stop at the engine's first refusal, or remember it and go on."""
        if not self.proven:
            refusal = in_plain_words(refusal)
        if not self.keep_going:
            raise refusal
        self.refusals.append(refusal)


def in_plain_words(refusal: Refusal) -> Refusal:
    """Without what is known to the letter only for a proven release: pydantic's view of the arguments, lines."""
    message = refusal.message.split(" [type=", 1)[0] if " [type=" in refusal.message else refusal.message
    return Refusal(refusal.stage, message, refusal.where.split(":", 1)[0], refusal.detail)
