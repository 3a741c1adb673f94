"""One launch: ask the release, add what its packages and holes are, and put the answer into attnfit's nouns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from attnfit.core import Hazard, Launch
from attnfit.engines.sglang import hazards, needs
from attnfit.engines.sglang.answers import Answer, Case, Where
from attnfit.engines.sglang.case import ready
from attnfit.engines.sglang.changes import changes
from attnfit.engines.sglang.doubts import doubts, lacking_gpus
from attnfit.engines.sglang.legacy import on_legacy
from attnfit.engines.sglang.releases import entry
from attnfit.engines.sglang.stages import when

LATE = "a real launch stops there only when every weight has been loaded: trying costs that time again"

Ask = Callable[[Case], Answer]
AtHand = Callable[[Sequence[Case]], list[Answer]]

DSA_FIELDS = (("prefill", "dsa_prefill_backend", "nsa_prefill_backend"),
              ("decode", "dsa_decode_backend", "nsa_decode_backend"))  # fmt: skip


class Asked:
    """One launch, as it is asked: the case in the words of `launch_server`, and what comes of it."""

    def __init__(
        self,
        version: str,
        ask: Ask,
        at_hand: AtHand,
        case: Case,
        form: str,
        *,
        files_here: bool,
        stated: Collection[str] = (),
    ) -> None:
        """`ask` answers the launch itself, `at_hand` its variations.

        `stated`: facts that somebody gave or found; of the others only what the release installs is known.
        """
        self.version, self._at_hand, self._stated = version, at_hand, stated
        self.case, stopped = ready(case, form, entry(version), files_here=files_here)
        self.answer: Answer = self._whole(self.case, ask(self.case)) if stopped is None else stopped

    def others(self, every: Sequence[tuple[str, ...]]) -> list[Answer]:
        """The answers for other words in the place of the parser's own."""
        cases = [Case(**{**self.case, "argv": list(argv)}) for argv in every]
        return [self._whole(case, answer) for case, answer in zip(cases, self._at_hand(cases), strict=True)]

    def other(self, argv: tuple[str, ...]) -> Answer:
        return self.others([argv])[0]

    def _whole(self, case: Case, answer: Answer) -> Answer:
        """The release's answer, and a package that is missing where it would pass."""
        if answer.get("ok") is False and answer.get("stage") != "arg-parse" and answer.get("where") is None:
            return _not_the_engines(answer)
        answer = on_legacy(self.version, case, answer)
        if answer.get("ok") is not True:
            return answer
        if short := lacking_gpus(case, answer):
            return _no_device(answer, short)
        if found := list(doubts(case, answer)):
            return Answer(**{**answer, "doubts": found})
        for kind, value in used(answer):
            lacking = needs.missing(self.version, case["facts"], kind, value)
            if lacking is None or lacking[0].fact not in self._stated:
                continue
            need, where = lacking
            text = needs.absent(need, self.version, where)
            if need.effect != "import":
                return Answer(**{**answer, "ok": None, "unknown": [text]})
            file, _, line = where.partition(":")
            refused = answer.copy()
            refused["ok"], refused["stage"] = False, "backend-init"
            refused["error_type"], refused["message"] = "ImportError", text
            refused["where"] = Where(file=file, line=int(line), func="<module>")
            return refused
        return answer


def _not_the_engines(answer: Answer) -> Answer:
    """An error that no line of the release raised is ours: never a refusal."""
    unknown = answer.copy()
    unknown["ok"] = None
    unknown["unknown"] = [f"running the release's code failed outside of it ({words_of(answer)})"]
    return unknown


def _no_device(answer: Answer, why: str) -> Answer:
    """A process whose GPU does not exist ends at once: torch's words, at `torch.cuda.set_device`."""
    text = f"CUDA error: invalid device ordinal ({why})"
    return Answer(**{**answer, "ok": False, "stage": "init-device", "error_type": "RuntimeError", "message": text})


def unstated(asked: Asked) -> Iterator[Hazard]:
    """Packages that what was chosen needs, that the release does not install, and of which nobody said anything."""
    if asked.answer.get("ok") is not True:
        return
    for kind, value in used(asked.answer):
        for effects in (("import", "kernel"), ("fetch",)):
            lacking = needs.missing(asked.version, asked.case["facts"], kind, value, effects)
            if lacking is not None:
                need, where = lacking
                yield Hazard("needs-package", needs.not_brought(need, asked.version), f"sglang/{where}")
                break


def used(answer: Answer) -> list[tuple[str, str]]:
    """(kind of needs.json, value) of everything the launch uses for attention."""
    found = [("attention_backend", str(answer[key])) for key in ("prefill", "decode") if answer.get(key)]
    resolved = answer.get("resolved") or {}
    if any(value in hazards.SPARSE for _, value in found):
        for _, *names in DSA_FIELDS:
            found += [("dsa", str(resolved[name])) for name in names if resolved.get(name)]
    linear = answer.get("linear_attn") or {}
    found += [("linear_attn", str(value)) for key, value in linear.items() if key in ("prefill", "decode") and value]
    return list(dict.fromkeys(found))


def launch_of(asked: Asked) -> Launch:
    """The answer in attnfit's nouns. Candidates are not asked here (choices.py)."""
    answer = asked.answer
    stage = answer.get("stage")
    resolved = answer.get("resolved") or {}
    doubted = tuple(answer.get("doubts") or ())
    ok = None if doubted else answer.get("ok")
    return Launch(
        ok=ok,
        stage=stage or ("done" if ok else "unknown"),
        error=words_of(answer) if ok is False else None,
        unknown=() if ok is not None else doubted or tuple(answer.get("unknown") or ("what decides is missing",)),
        dtype=_text(_dtype(answer)),
        kv_cache_dtype=_text((answer.get("given") or {}).get("kv_cache_dtype", resolved.get("kv_cache_dtype"))),
        kv_cache_dtype_after_init=_text(resolved.get("kv_cache_dtype")),
        block_size_after_load=resolved.get("page_size"),
        where=hazards.place(answer),
        when=when(stage),
        chosen=tuple(chosen(answer)),
        changes=tuple(changes(answer)),
        hazards=(*hazards.shown(answer), *unstated(asked), *hazards.recorded(asked.version, asked.case, answer)),
        notes=(*((LATE,) if ok is False and stage == "backend-init" else ()), *answer.get("notes", ())),
        reply=reply(answer),
    )


def _dtype(answer: Answer) -> Any:
    """Of the activations: as resolved, and where that leaves it to the model, what the model config made of it."""
    resolved = (answer.get("resolved") or {}).get("dtype")
    return (answer.get("traits") or {}).get("dtype", resolved) if resolved == "auto" else resolved


def words_of(answer: Answer) -> str:
    """The engine's own words, exception name first; a parser has only words."""
    kind, message = answer.get("error_type"), answer.get("message") or ""
    if not kind or (answer.get("stage") == "arg-parse" and message):
        return message
    return f"{kind}: {message}" if message else f"{kind}, without a message"


def chosen(answer: Answer) -> list[tuple[str, str]]:
    """("prefill", "fa3"), ("decode", "fa3"), and the kernels of sparse and linear attention where there are some."""
    found = [(role, str(answer[role])) for role in ("prefill", "decode") if answer.get(role)]
    resolved: Mapping[str, Any] = answer.get("resolved") or {}
    if any(value in hazards.SPARSE for _, value in found):
        for role, *names in DSA_FIELDS:
            found += [(f"sparse {role} kernel", str(resolved[name])) for name in names if resolved.get(name)]
    if draft := resolved.get("speculative_draft_attention_backend"):
        found.append(("draft model", str(draft)))
    linear = answer.get("linear_attn") or {}
    found += [(f"linear {role} kernel", str(linear[role])) for role in ("prefill", "decode") if linear.get(role)]
    return found


def reply(answer: Answer) -> dict[str, Any]:
    """The answer for programs, in the engine's own words (docs/json.md)."""
    where = answer.get("where")
    return {
        "ok": answer.get("ok"),
        "stage": answer.get("stage"),
        "message": answer.get("message"),
        "where": f"{where['file']}:{where['line']}" if where else None,
        "error_type": answer.get("error_type"),
        "prefill": answer.get("prefill"),
        "decode": answer.get("decode"),
        "linear_attn": answer.get("linear_attn"),
        "resolved": answer.get("resolved") or None,
        "backend_class": answer.get("backend_class"),
        "warnings": [entry[1] for entry in answer.get("warnings") or () if len(entry) > 1],
        "unknown": list(answer.get("unknown") or ()),
        "doubts": list(answer.get("doubts") or ()),
    }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
