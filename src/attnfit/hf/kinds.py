"""Types a strict config class insists on, when it is built and whenever an attribute is set later.

huggingface_hub/dataclasses.py, `@strict`; since transformers 5.
"""

from __future__ import annotations

from typing import Any

from attnfit.hf.errors import Refused

_LETTERS = {"i": int, "f": float, "b": bool, "s": str, "l": list, "d": dict}
_WORDS = {"i": "int", "f": "float", "b": "bool", "s": "str", "l": "list", "d": "dict"}


def check_kind(name: str, value: Any, kinds: dict[str, str]) -> None:
    """transformers 5 refuses a value of the wrong type before anything else looks at it. Raises Refused."""
    letters = kinds.get(name)
    if letters is None or (value is None and "n" in letters):
        return
    only = [x for x in letters if x != "n"]
    if any(_is(value, x) for x in only):
        return
    got = f"got {type(value).__name__} (value: {value!r})"
    names = [_WORDS[x] for x in only] + (["NoneType"] if "n" in letters else [])
    classes = ", ".join(f"<class '{n}'>" for n in names)
    errors = "; ".join(f"Field '{name}' expected {n}, {got}" for n in names)
    detail = f"Field '{name}' with value {value!r} doesn't match any type in ({classes}). Errors: {errors}"
    if len(letters) == 1 and only and only[0] in "ifbs":
        detail = f"Field '{name}' expected {_WORDS[only[0]]}, {got}"
    raise Refused(
        "StrictDataclassFieldValidationError", f"Validation error for field '{name}':\n    TypeError: {detail}"
    )


def _is(value: Any, letter: str) -> bool:
    if letter == "i":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, _LETTERS[letter])
