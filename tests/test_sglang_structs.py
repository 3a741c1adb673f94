"""What stands for msgspec and packaging inside the witness's child does what the real packages do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import packaging.version
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnfit.engines.sglang.witness import structs, versions

OURS = structs.modules()["msgspec"]


def outcome(act: Callable[[], Any]) -> Any:
    """What comes of it: the value, or the exception's class and words."""
    try:
        return act()
    except Exception as error:
        return type(error).__name__, str(error)


def plain(m: Any) -> Any:
    class Args(m.Struct):
        path: str
        size: int = 1
        names: list[str] = []  # noqa: RUF012
        shared: ClassVar[int] = 7

        def double(self) -> int:
            return self.size * 2

    return Args


def frozen(m: Any) -> Any:
    class Args(m.Struct, frozen=True):
        path: str
        size: int = 1

    return Args


def keywords(m: Any) -> Any:
    class Args(m.Struct, kw_only=True):
        size: int = 1
        path: str

    return Args


def inherited(m: Any) -> Any:
    class Base(m.Struct):
        path: str
        size: int = 1

    class Mixin:
        def half(self) -> int:
            return self.size // 2  # type: ignore[attr-defined,no-any-return]

    class Args(Mixin, Base):
        size: int = 4
        more: dict[str, int] = m.field(default_factory=lambda: {"a": 1})

    return Args


def keywords_below(m: Any) -> Any:
    class Base(m.Struct, kw_only=True):
        path: str
        size: int = 1

    class Args(Base):
        first: int
        second: int = 2

    return Args


def finishing(m: Any) -> Any:
    class Args(m.Struct):
        path: str
        size: int = 1

        def __post_init__(self) -> None:
            self.size += 1
            if self.size > 100:
                raise ValueError(f"{self.size} is too large")

    return Args


def made(m: Any) -> Any:
    fields = ["path", ("size", int, 1), ("names", list, m.field(default_factory=list))]
    return m.defstruct("Args", fields, namespace={"of": 3}, module="x")


def unset(m: Any) -> Any:
    class Args(m.Struct):
        path: Any
        size: Any = m.UNSET

    return Args


def redefined(m: Any) -> Any:
    class Base(m.Struct):
        path: str
        size: int = 1
        first: int = 0

    class Args(Base, kw_only=True):
        size: int = 3

    return Args


def opened(m: Any) -> Any:
    class Args(m.Struct, dict=True):
        path: str
        size: int = 1

        @property
        def colour(self) -> int:
            return self.size

        @colour.setter
        def colour(self, value: int) -> None:
            self.size = value

    return Args


KINDS = [plain, frozen, keywords, inherited, keywords_below, finishing, made, unset, redefined, opened]
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "fields": lambda cls, m: [(f.name, f.encode_name, f.required) for f in m.structs.fields(cls)],
    "names": lambda cls, m: (cls.__struct_fields__, cls.__match_args__, cls.__name__),
    "defaults": lambda cls, m: [f.default for f in m.structs.fields(cls) if f.default not in (m.NODEFAULT, m.UNSET)],
    "made": lambda cls, m: [f.default_factory() for f in m.structs.fields(cls) if f.default_factory is not m.NODEFAULT],
    "one": lambda cls, m: m.structs.asdict(cls("p")),
    "by name": lambda cls, m: m.structs.asdict(cls(path="p", size=3)),
    "all by name": lambda cls, m: m.structs.asdict(cls(path="p", size=3, first=1)),
    "two": lambda cls, m: m.structs.astuple(cls("p", 3)),
    "none": lambda cls, m: cls(),
    "too many": lambda cls, m: cls(1, 2, 3, 4, 5, 6),
    "unknown name": lambda cls, m: cls(path="p", shape=3),
    "twice": lambda cls, m: repr(cls("p", path="q")),
    "repr": lambda cls, m: repr(cls(path="p")),
    "too large": lambda cls, m: m.structs.asdict(cls("p", 400)),
    "equal": lambda cls, m: (cls(path="p") == cls(path="p"), cls(path="p") == cls(path="q"), cls(path="p") == "p"),
    "hash": lambda cls, m: hash(cls(path="p")) == hash(cls(path="p")),
    "set": lambda cls, m: _set(cls(path="p"), "size", 9),
    "set anew": lambda cls, m: _set(cls(path="p"), "shape", 9),
    "set another": lambda cls, m: _set(cls(path="p"), "colour", 9),
    "force": lambda cls, m: _forced(cls(path="p"), m),
    "replace": lambda cls, m: m.structs.asdict(m.structs.replace(cls(path="p"), size=5)),
    "replace another": lambda cls, m: m.structs.replace(cls(path="p"), shape=5),
    "copy": lambda cls, m: m.structs.asdict(copy.copy(cls(path="p"))),
    "deep copy": lambda cls, m: m.structs.asdict(copy.deepcopy(cls(path="p"))),
    "shared": lambda cls, m: _shared(cls),
    "methods": lambda cls, m: [getattr(cls(path="p"), name)() for name in ("double", "half") if hasattr(cls, name)],
    "class variables": lambda cls, m: [getattr(cls, name) for name in ("shared", "of") if hasattr(cls, name)],
    "truth": lambda cls, m: (bool(m.UNSET), bool(m.NODEFAULT), repr(m.UNSET), repr(m.NODEFAULT)),
}


def _set(struct: Any, name: str, value: Any) -> Any:
    setattr(struct, name, value)
    return getattr(struct, name)


def _forced(struct: Any, m: Any) -> Any:
    m.structs.force_setattr(struct, "size", 12)
    return struct.size


def _shared(cls: Any) -> Any:
    one, other = cls(path="p"), cls(path="p")
    return [getattr(one, name) is getattr(other, name) for name in ("names", "more") if hasattr(one, name)]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_record_is_what_msgspec_makes_of_it(kind: Callable[[Any], Any], call: str) -> None:
    def act(m: Any) -> Any:
        return outcome(lambda: neutral(CALLS[call](kind(m), m), m))

    def neutral(value: Any, m: Any) -> Any:
        if isinstance(value, dict):
            return {key: neutral(item, m) for key, item in value.items()}
        return "unset" if value is m.UNSET else value

    assert act(OURS) == act(msgspec)


def test_a_copy_keeps_the_marks_that_are_compared_by_identity() -> None:
    for mark in (OURS.UNSET, OURS.NODEFAULT):
        assert copy.copy(mark) is mark
        assert copy.deepcopy([mark])[0] is mark


NUMBER = st.integers(0, 30).map(str)
PRE = st.sampled_from(["a", "b", "rc", "alpha", "beta", "c", "pre", "preview", "RC"])
PARTS = st.tuples(
    st.sampled_from(["", "v", " ", "1!"]),
    st.lists(NUMBER, min_size=1, max_size=4).map(".".join),
    st.one_of(st.just(""), st.tuples(st.sampled_from(["", ".", "-", "_"]), PRE, st.one_of(st.just(""), NUMBER))),
    st.one_of(
        st.just(""), st.sampled_from([".post", "-", "post", ".rev", "-r"]).flatmap(lambda x: NUMBER.map(x.__add__))
    ),
    st.one_of(st.just(""), NUMBER.map(".dev".__add__), st.just("dev")),
    st.one_of(st.just(""), st.sampled_from(["+cu130", "+cu128.2", "+ubuntu-1", "+10.x", "+9", "+a", "+a.1", "+CU130"])),
)
VERSIONS = PARTS.map(lambda parts: "".join("".join(part) for part in parts))
SAID = (
    "release pre post dev major minor micro is_prerelease is_postrelease is_devrelease base_version public local epoch"
)


@given(VERSIONS, VERSIONS)
def test_versions_are_ordered_and_read_as_packaging_does(one: str, other: str) -> None:
    ours, theirs = (
        [m.parse(one), m.parse(other)] for m in (versions.modules()["packaging.version"], packaging.version)
    )
    assert [ours[0] < ours[1], ours[0] == ours[1], ours[0] >= ours[1]] == [
        theirs[0] < theirs[1],
        theirs[0] == theirs[1],
        theirs[0] >= theirs[1],
    ]
    assert (hash(ours[0]) == hash(ours[1])) or ours[0] != ours[1]
    for name in SAID.split():
        assert getattr(ours[0], name) == getattr(theirs[0], name), name
    assert str(ours[0]) == str(theirs[0])


@given(st.one_of(st.text("0123456789.abcrdevpost+-_!v ", max_size=12), VERSIONS.map("x".__add__)))
def test_what_is_no_version_is_refused_with_the_same_words(text: str) -> None:
    ours, theirs = versions.Version, packaging.version.Version
    assert outcome(lambda: str(ours(text))) == outcome(lambda: str(theirs(text)))
