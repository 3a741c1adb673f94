"""Engine code runs a statement at a time, as if its files had been imported from top to bottom."""

from __future__ import annotations

import re
import textwrap
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnfit.witness import blame, guard, stubs
from attnfit.witness.facts import Facts
from attnfit.witness.fakes import StubModule
from attnfit.witness.lazy import Situation
from attnfit.witness.loader import Loader, Shelf

REGISTERS = re.compile(r"^@register\w*\(", re.MULTILINE)
Load = Callable[..., Loader]


class Known(Facts):
    """Every package outside is there, but `absent`; `gone` is a fact."""

    package = "engine"

    def present(self, module: str) -> bool:
        return module.partition(".")[0] not in ("absent", "engine") and bool(self.env.get("gone", True))


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """A loader of these files (path below the package -> text)."""

    def make(files: dict[str, str] | None = None, **options: Any) -> Loader:
        for name, text in {"__init__": "", **(files or {})}.items():
            path = tmp_path / "engine" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        facts = Known(Situation(), str(tmp_path))
        facts.env = {"gone": options.pop("gone", True)}
        return Loader(tmp_path, package="engine", facts=facts, **options)

    return make


def test_only_what_a_name_needs_is_run(load: Load) -> None:
    loader = load({"a": "import absent\nBOOM = 1 / 0\nfrom engine.b import two\nfour = two * two\n", "b": "two = 2"})
    module = loader.source("engine.b")
    assert module.two == 2
    assert "engine.a" not in loader.modules


def test_statements_that_change_a_name_run_in_their_order(load: Load) -> None:
    text = """
        table = {"a": 1}
        table["b"] = 2
        def grow(): table.update(c=len(table))
        table.update(d=4)
        names = list(table)
        table["e"] = 5
        """
    module = load({"a": text}).source("engine.a")
    assert list(module.table) == ["a", "b", "d", "e"]
    module.grow()
    assert module.table["c"] == 4


def test_a_change_further_down_is_not_there_yet_and_comes_later(load: Load) -> None:
    """While a statement runs, what stands below it has not happened; once it is done, it has."""
    text = """
        table = {"a": 1}
        seen = dict(table)
        table["b"] = 2
        """
    module = load({"a": text}).source("engine.a")
    assert module.seen == {"a": 1}
    assert module.table == {"a": 1, "b": 2}


def test_a_name_bound_below_is_run_first_where_a_function_wants_it(load: Load) -> None:
    module = load({"a": "def f(): return below()\nvalue = 3\ndef below(): return value\n"}).source("engine.a")
    assert module.f() == 3


REGISTRY = {
    "registry": """
        TABLE = {}
        def register_kind(name):
            def put(item):
                TABLE[name] = item
                return item
            return put
        """,
}


def test_what_registers_itself_is_there_once_its_file_is_imported(load: Load) -> None:
    files = {
        **REGISTRY,
        "kinds": "from engine.registry import register_kind\nTHERE = True\n@register_kind('x')\nclass X: ...\n",
    }
    loader = load(files, registers=REGISTERS)
    assert loader.source("engine.registry").TABLE == {}
    assert loader.source("engine.kinds").THERE
    assert list(loader.source("engine.registry").TABLE) == ["x"]
    quiet = load(files)
    assert quiet.source("engine.kinds").THERE
    assert quiet.source("engine.registry").TABLE == {}, "without a pattern nothing runs that is not asked for"


def test_a_package_s_own_files_register_when_the_package_is_imported(load: Load) -> None:
    files = {
        **REGISTRY,
        "kinds/__init__": "from engine.kinds.x import X\nfrom .y import Y\nfrom engine.other import Z\n",
        "kinds/x": "from engine.registry import register_kind\n@register_kind('x')\nclass X: ...\n",
        "kinds/y": "from engine.registry import register_kind\n@register_kind('y')\nclass Y: ...\n",
        "other": "from engine.registry import register_kind\n@register_kind('z')\nclass Z: ...\n",
        "user": "from engine.kinds import X\nfrom engine.registry import TABLE\nnames = (X, sorted(TABLE))[1]\n",
    }
    assert load(files, registers=REGISTERS).source("engine.user").names == ["x", "y"]


def test_a_module_imported_for_what_it_does_does_it(load: Load) -> None:
    files = {
        **REGISTRY,
        "extra": "from engine.registry import register_kind\n@register_kind('more')\nclass More: ...\nextra = 1\n",
        "main": "import engine.extra\nfrom engine.registry import TABLE\ndef names(): return sorted(TABLE)\n",
    }
    assert load(files, registers=REGISTERS).source("engine.main").names() == ["more"]


def test_what_is_registered_by_a_plain_call_is_there_too(load: Load) -> None:
    text = """
        TABLE = {}
        def register_kind(name, make):
            TABLE[name] = make
        def look(name):
            return TABLE[name]
        register_kind("x", lambda: 1)
        register_kind("y", lambda: later)
        forget = TABLE.clear
        later = 2
        """
    assert load({"a": text}, registers=REGISTERS).source("engine.a").look("y")() == 2


def test_loaders_of_one_release_share_what_files_say_and_nothing_else(load: Load) -> None:
    shelf = Shelf()
    one, other = (load({"a": "table = []\ntable.append(1)\n"}, shelf=shelf) for _ in range(2))
    first = one.source("engine.a").table
    first.append("only here")
    assert other.source("engine.a").table == [1]
    texts = [loader._shelf.texts for loader in (one, other)]
    assert texts[0] is texts[1]
    assert len(texts[0]) == 1
    code = [statement.code for text in texts[0].values() for statement in text.statements]
    assert all(code), "compiled once"


def test_a_folder_without_init_is_a_package(load: Load) -> None:
    imports = "import engine.plain.deep.a as a\nfrom engine.plain import deep\n"
    loader = load({"plain/deep/a": "x = 1\n", "user": imports})
    user = loader.source("engine.user")
    assert user.a.x == 1
    assert user.deep.a.x == 1
    assert not hasattr(loader.import_module("engine.plain"), "no_such")
    with pytest.raises(ImportError, match="not among the source files"):
        loader.source("engine.plain")


def test_a_module_that_is_not_there_is_no_import_error_of_the_engine(load: Load) -> None:
    """We ask for it, so it says nothing about the release."""
    with pytest.raises(ImportError, match=r"engine[.]nowhere is not among the source files") as caught:
        load().source("engine.nowhere")
    assert blame.fault(caught.value)
    assert load().has_source("engine") is True
    assert load().has_source("engine.nowhere") is False


def test_packages_outside_get_the_stand_in_that_is_asked_for(load: Load) -> None:
    class Other(StubModule):
        pass

    made: list[str] = []

    def stand_in(name: str) -> types.ModuleType:
        made.append(name)
        return Other(name, answer=42)

    imports = "import kernels.fast\nfrom kernels import slow\nfrom kernels.fast import answer\n"
    loader = load({"a": imports}, stand_in=stand_in)
    module = loader.source("engine.a")
    assert module.answer == 42
    assert type(module.kernels) is Other
    assert module.kernels.fast.answer == 42
    assert made == ["kernels", "kernels.fast"] or made == ["kernels.fast", "kernels"]
    assert stubs.is_stub(load({"a": "from kernels import slow\n"}).source("engine.a").slow)


def test_a_package_that_is_missing_fails_in_the_engine_s_own_line(load: Load) -> None:
    user = "def use():\n    from engine.a import x\n    return x\n"
    loader = load({"a": "x = 1\n\nfrom absent.sub import y\n", "user": user})
    with pytest.raises(ModuleNotFoundError, match="No module named 'absent'") as caught:
        loader.source("engine.user").use()
    assert caught.value.name == "absent"
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == ("engine/a.py", 3)
    assert ("engine/user.py", 2) in frames
    assert blame.fault(caught.value) is None


def test_an_import_that_is_guarded_takes_the_other_branch(load: Load) -> None:
    text = "try:\n    import absent\n    HAS = True\nexcept ImportError:\n    HAS = False\n"
    assert load({"a": text}).source("engine.a").HAS is False


def test_a_star_import_finds_what_it_brings(load: Load) -> None:
    module = load({"a": "from engine.b import *\ndef f(): return two\n", "b": "two = 2\n"}).source("engine.a")
    assert (module.f(), module.two) == (2, 2)


@pytest.mark.parametrize("name", ["register", "demand", "defines"])
def test_a_name_of_ours_never_passes_for_the_engine_s(load: Load, name: str) -> None:
    loader = load({"a": f"def {name}(): return 1\n", "user": f"from engine.a import {name}\nx = {name}()\n"})
    with pytest.raises(stubs.StubLeak, match=rf"engine/a.py defines '{name}'"):
        _ = loader.source("engine.user").x


class Vague:
    """Something of ours that knows which attributes are there, if not their values."""

    known = 1

    def __attnfit_has__(self, name: str) -> bool | None:
        return {"there": True, "not": False}.get(name)


def test_an_object_of_ours_may_know_what_is_there_without_its_value() -> None:
    has = guard.checked_builtins()["hasattr"]
    assert has(Vague(), "there") is True
    assert has(Vague(), "not") is False
    assert has(Vague(), "known") is True
    assert has(Vague(), "other") is False


@pytest.mark.parametrize("name", ["open", "exec", "eval", "compile", "input", "breakpoint", "id"])
def test_builtins_that_reach_outside_leak(load: Load, name: str) -> None:
    module = load({"a": f"def f(): return {name}('1')\n"}).source("engine.a")
    with pytest.raises(stubs.StubLeak, match=rf"{name}\(\) was called"):
        module.f()


def test_helpers_take_the_place_of_builtins(load: Load) -> None:
    module = load({"a": "def f(): return open('x')\n"}, helpers={"open": lambda path: f"<{path}>"}).source("engine.a")
    assert module.f() == "<x>"
