"""Values that tell the run in progress what an engine's predicate asks about them.

`Choice` stands for a value out of a finite domain: every operation is carried out on all values that are left, and
only a branch (truth, hash, iteration) divides them. `Number` stands for an integer (or None) without a value: each
comparison is a decision. Both are no `str` or `int` underneath, so that nothing can read a value unseen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from attnfit.engines.vllm.learn.paths import ANYTHING, IS_NONE, NUMBER, OPTIONAL, Field, Opaque, run

_UNSET = object()
OPEN, CLOSE = "\x02", "\x03"  # around the name of a field in a message

# Quantities made of two fields that engines compute, by (operation, left, right). A closed list: everything else
# is unknown until it is named here and in engines/vllm/rules.py.
DERIVED: dict[tuple[str, str, str], str] = {
    ("//", "model_num_heads", "num_kv_heads"): "queries_per_kv_head",
    ("%", "model_num_heads", "num_kv_heads"): "queries_left_over",
    ("*", "model_num_heads", "dcp_size"): "gathered_heads",
}


class _Raised:
    def __init__(self, error: Exception) -> None:
        self.error = error
        self.key = (type(error).__name__, str(error))


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    return type(a) is type(b) and isinstance(a, (bool, int, str, tuple, float, list)) and a == b


class Choice:
    """A value of a finite field, or what became of it: `values[i]` belongs to the field's i-th value."""

    def __init__(self, field: Field, values: tuple[Any, ...] | None = None) -> None:
        self._field, self._plain = field, values is None
        self._values = field.values if values is None else values

    def _divide(self, key: Callable[[Any], Any]) -> Any:
        """Group what is left by `key`, take one group, return its key."""
        groups: list[tuple[Any, list[int]]] = []
        for i in run().left(self._field):
            k = key(self._values[i])
            for seen, members in groups:
                if _same(seen, k):
                    members.append(i)
                    break
            else:
                groups.append((k, [i]))
        return groups[run().split(self._field, [tuple(m) for _, m in groups])][0]

    def _map(self, act: Callable[[Any], Any]) -> Any:
        left = run().left(self._field)
        out: list[Any] = [_UNSET] * len(self._values)
        for i in left:
            try:
                out[i] = act(self._values[i])
            except Exception as error:
                out[i] = _Raised(error)
        result = Choice(self._field, tuple(out))
        if any(type(out[i]) is _Raised for i in left):
            kind = result._divide(lambda v: v.key if type(v) is _Raised else None)
            if kind is not None:
                raise next(v.error for v in (out[i] for i in run().left(self._field)) if v.key == kind)
        left = run().left(self._field)
        return out[left[0]] if all(_same(out[left[0]], out[i]) for i in left) else result

    def _pin(self) -> Any:
        """The value itself, at the price of a decision over all that are left."""
        return self._divide(lambda v: v)

    def _with(self, other: Any, act: Callable[[Any, Any], Any]) -> Any:
        if type(other) is Choice:
            if other._field is self._field:
                pairs = Choice(self._field, tuple(zip(self._values, other._values, strict=True)))
                return pairs._map(lambda pair: act(*pair))
            other = other._pin()
        elif type(other) is Number:
            return act(self._pin(), other)
        return self._map(lambda v: act(v, other))

    def __bool__(self) -> bool:
        return bool(self._divide(bool))

    def __hash__(self) -> int:
        return hash(self._pin())

    def __index__(self) -> int:
        return operator.index(self._pin())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        got = self._map(lambda v: getattr(v, name))
        if type(got) is Choice and all(callable(got._values[i]) for i in run().left(self._field)):
            return lambda *args, **kwargs: self._call(name, args, kwargs)
        return got

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(type(a) in (Choice, Number) for a in (*args, *kwargs.values())):
            return getattr(self._pin(), name)(*args, **kwargs)
        return self._map(lambda v: getattr(v, name)(*args, **kwargs))

    def __getitem__(self, key: Any) -> Any:
        return self._map(lambda v: v[key])

    def __contains__(self, item: Any) -> bool:
        return item in self._pin()

    def __len__(self) -> int:
        return int(self._divide(len))

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance() asks here
        return self._divide(lambda v: type(v)) if run_or_none() else Choice

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else format(self._pin(), spec)

    def __str__(self) -> str:
        return f"{OPEN}{self._field.name}{CLOSE}" if self._plain and self._field.marker else str(self._pin())

    def __repr__(self) -> str:
        return f"{OPEN}{self._field.name}!r{CLOSE}" if self._plain and self._field.marker else repr(self._pin())


def run_or_none() -> Any:
    try:
        return run()
    except Opaque:
        return None


def _operation(act: Callable[[Any, Any], Any], swapped: bool = False) -> Any:
    def method(self: Choice, other: Any) -> Any:
        return self._with(other, (lambda a, b: act(b, a)) if swapped else act)

    return method


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Choice, f"__{_name}__", _operation(getattr(operator, _name)))
for _name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "and_", "or_", "xor"):
    setattr(Choice, f"__{_name.strip('_')}__", _operation(getattr(operator, _name)))
    setattr(Choice, f"__r{_name.strip('_')}__", _operation(getattr(operator, _name), swapped=True))


class Number:
    """An integer, or None where the field may be; `steps` are the operations applied to it so far."""

    def __init__(self, name: str, mask: int = NUMBER, steps: tuple[tuple[str, int], ...] = ()) -> None:
        self._name, self._mask, self._steps = name, mask, steps

    def _test(self, op: str, const: Any) -> bool:
        run().number(self._name, self._mask)
        return run().test(self._name, self._steps, op, const)

    def _some(self, doing: str) -> None:
        """Arithmetic and order need a number: what Python says about None."""
        if self._mask & IS_NONE and not self._steps and self._test("none", None):
            raise TypeError(f"{doing} not supported between instances of 'NoneType' and 'int'")

    def _compare(self, op: str, other: Any) -> bool:
        if type(other) is Choice:
            other = other._pin()
        if type(other) is Number:
            if (other._name, other._steps) == (self._name, self._steps):
                return op in ("==", "<=", ">=")
            raise Opaque(f"{self._name} is compared with {other._name}")
        if op == "==":
            if other is None:
                return not self._steps and self._test("none", None)
            return isinstance(other, int | float) and self._test("==", other)
        self._some(f"'{op}'")
        if not isinstance(other, int | float):
            raise TypeError(f"'{op}' not supported between instances of 'int' and {type(other).__name__!r}")
        return self._test(op, other)

    def _arith(self, op: str, other: Any) -> Any:
        self._some(f"unsupported operand type(s) for {op}:")
        if type(other) is Choice:
            other = other._pin()
        if type(other) is Number:
            name = DERIVED.get((op, self._name, other._name))
            if name is None or self._steps or other._steps:
                raise Opaque(f"{self._name} {op} {other._name} has no name")
            if op in ("//", "%") and other == 0:
                raise ZeroDivisionError("integer division or modulo by zero")
            return Number(name)
        if type(other) is not int:
            raise Opaque(f"{self._name} {op} {other!r}")
        if op in ("//", "%") and other == 0:
            raise ZeroDivisionError("integer division or modulo by zero")
        return Number(self._name, self._mask, (*self._steps, (op, other)))

    def __eq__(self, other: object) -> bool:
        return self._compare("==", other)

    def __ne__(self, other: object) -> bool:
        return not self._compare("==", other)

    def __lt__(self, other: Any) -> bool:
        return self._compare("<", other)

    def __le__(self, other: Any) -> bool:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> bool:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> bool:
        return self._compare(">=", other)

    def __bool__(self) -> bool:
        return self._test("true", None)

    def __add__(self, other: Any) -> Any:
        return self._arith("+", other)

    def __sub__(self, other: Any) -> Any:
        return self._arith("-", other)

    def __mul__(self, other: Any) -> Any:
        return self._arith("*", other)

    def __floordiv__(self, other: Any) -> Any:
        return self._arith("//", other)

    def __mod__(self, other: Any) -> Any:
        return self._arith("%", other)

    __radd__, __rmul__ = __add__, __mul__

    def _refuse(self, *_: Any) -> Any:
        raise Opaque(f"{self._name} is used as a plain number")

    __hash__ = __index__ = __float__ = __truediv__ = __rtruediv__ = __rmod__ = _refuse
    __rfloordiv__ = __rsub__ = __pow__ = __neg__ = __and__ = __or__ = __divmod__ = __iter__ = _refuse

    def __int__(self) -> Any:
        return self._refuse()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        if run_or_none() is None:
            return Number
        return type(None) if self._mask & IS_NONE and not self._steps and self._test("none", None) else int

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else self._refuse()

    def __str__(self) -> str:
        return self._refuse() if self._steps else f"{OPEN}{self._name}{CLOSE}"

    __repr__ = __str__


class Attributes:
    """A config object whose attributes are optional numbers: `hf.index_topk` may be absent, None or a number."""

    def __init__(self, prefix: str, kind: str) -> None:
        self.__dict__.update(_prefix=prefix, _kind=kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        field = self._prefix + name
        run().number(field, ANYTHING)
        if run().test(field, (), "absent", None):
            raise AttributeError(f"{self._kind!r} object has no attribute {name!r}")
        return Number(field, OPTIONAL)
