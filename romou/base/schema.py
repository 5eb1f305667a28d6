"""Values of JSON as Python's types, checked once: `made_of` reads a type's annotations as a schema.

@dataclass
class Trial:
    name: FileName
    times_s: tuple[Annotated[float, Range(0)], ...] = ()

made_of(Trial, {"name": "a", "times_s": [1, -2]})      ->      ValueError: times_s[1] is -2; expected at least 0
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

_T = TypeVar("_T")
_MISSING = object()
_Check: TypeAlias = Callable[[Any], Any]
_LONGEST_SHOWN = 80
_WORDS: dict[Any, str] = {
    str: "a text",
    bool: "true or false",
    bytes: "bytes",
    int: "a whole number",
    float: "a number",
    types.NoneType: "nothing",
}


@dataclasses.dataclass(frozen=True)
class Range:
    """The least and the greatest value of a number. NaN is in no range."""

    least: float = -sys.float_info.max
    most: float = sys.float_info.max

    def misfit(self, value: Any) -> str | None:
        """Return what was expected of a number that is out of range. None if it is not."""
        if self.least <= value <= self.most:
            return None
        return f"at least {self.least:g}" if value < self.least else f"at most {self.most:g}"


@dataclasses.dataclass(frozen=True)
class Matching:
    """A regular expression that a whole text matches, and the same in words."""

    pattern: str
    words: str

    def misfit(self, value: str) -> str | None:
        """Return what was expected of a text that does not match. None if it does."""
        return None if re.fullmatch(self.pattern, value) else self.words


# Infinity is a number, too.
Unbounded: TypeAlias = Annotated[float, Range(-math.inf, math.inf)]
# A file's name without a folder: joined to a folder, it never leaves it.
FileName: TypeAlias = Annotated[str, Matching(r"(?!\.)[^/\\\x00-\x1f\x7f]{1,200}", "the plain name of a file")]
NotNegative: TypeAlias = Annotated[float, Range(0)]
Seconds: TypeAlias = Annotated[float, Range(0, 1e12)]


class _MisfitError(ValueError):
    """A value that is not of its type.

    place: where it is, as ".times_s[1]".
    """

    def __init__(self, value: Any, expected: str, place: str = "") -> None:
        self.value, self.expected, self.place = value, expected, place
        name = place.lstrip(".") or "the value"
        text = f"{name} is missing" if value is _MISSING else f"{name} is {shown(value)}; expected {expected}"
        super().__init__(text)

    def inside(self, place: str) -> _MisfitError:
        """Return the error as the value that contains this one sees it."""
        return _MisfitError(self.value, self.expected, place + self.place)


def made_of(kind: type[_T], value: Any) -> _T:
    """Return a value of JSON as `kind`: a plain type, a dataclass, an Enum, or a composition of these.

    An object becomes a dataclass, whose annotations are the schema, or a dict. A list becomes a tuple or a list. A
    whole number is taken for a float, but true for no number. Keys without a field are left out. A `Range` or a
    `Matching` in an Annotated type is checked, too.

    Raises
    ------
    ValueError
        The text names the place in the value, what is there, and what was expected.
    """
    return cast(_T, _checker(cast(Any, kind))(value))


def shown(value: Any) -> str:
    """Return the value as a text for an error, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


@functools.cache
def _checker(kind: Any) -> _Check:
    """Return the function that checks and converts a value to a type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin is Annotated:
        plain = _plain(arguments[0]) if arguments[0] in (int, float) else _checker(arguments[0])
        return _bounded(plain, kind.__metadata__, is_float=arguments[0] is float)
    if kind in (int, float):
        return _bounded(_plain(kind), (Range(),), is_float=kind is float)
    if origin in (typing.Union, types.UnionType):
        return _either(arguments)
    if origin is Literal:
        return _one_of(arguments, {choice: choice for choice in arguments})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _one_of(tuple(each.value for each in kind), {each.value: each for each in kind})
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if origin is tuple:
        return _list(_checker(arguments[0]), tuple) if arguments[1:] == (...,) else _tuple(arguments)
    if origin in (list, Sequence):
        return _list(_checker(arguments[0]), list)
    if origin in (dict, Mapping):
        return _mapping(_checker(arguments[0]), _checker(arguments[1]))
    return _plain(kind)


def _plain(kind: Any) -> _Check:
    words = _WORDS.get(kind, kind.__name__)

    def check(value: Any) -> Any:
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise _MisfitError(value, words)
        return value

    return check


def _bounded(check: _Check, bounds: tuple[Any, ...], *, is_float: bool = False) -> _Check:
    def bounded(value: Any) -> Any:
        value = check(value)
        for bound in bounds:
            if (expected := bound.misfit(value)) is not None:
                raise _MisfitError(value, expected)
        return float(value) if is_float else value

    return bounded


def _either(kinds: tuple[Any, ...]) -> _Check:
    checks = [_checker(kind) for kind in kinds]

    def either(value: Any) -> Any:
        errors = []
        for check in checks:
            try:
                return check(value)
            except _MisfitError as error:
                errors.append(error.with_traceback(None))  # which holds this frame, and so all that its callers hold
        # The fault is inside the value if one type fits it from outside.
        inner = next((error for error in errors if error.place), None)
        raise inner or _MisfitError(value, " or ".join(dict.fromkeys(error.expected for error in errors)))

    return either


def _one_of(choices: tuple[Any, ...], made: Mapping[Any, Any]) -> _Check:
    words = " or ".join(map(repr, choices)) if len(choices) < 3 else f"one of {', '.join(map(str, choices))}"

    def one_of(value: Any) -> Any:
        if isinstance(value, enum.Enum):
            value = value.value
        # true is equal to 1 and no choice of numbers.
        if not any(value == choice and type(value) is type(choice) for choice in choices):
            raise _MisfitError(value, words)
        return made[value]

    return one_of


def _list(check: _Check, kind: type) -> _Check:
    def items(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _MisfitError(value, "a list")
        return kind(_inside(check, item, f"[{index}]") for index, item in enumerate(value))

    return items


def _tuple(kinds: tuple[Any, ...]) -> _Check:
    checks = [_checker(kind) for kind in kinds]

    def items(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(checks):
            raise _MisfitError(value, f"a list of {len(checks)}")
        return tuple(
            _inside(check, item, f"[{index}]") for index, (check, item) in enumerate(zip(checks, value, strict=True))
        )

    return items


def _mapping(key_check: _Check, check: _Check) -> _Check:
    def mapping(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _MisfitError(value, "an object")
        return {_inside(key_check, key, ".key"): _inside(check, item, f".{key}") for key, item in value.items()}

    return mapping


def _dataclass(kind: Any) -> _Check:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    checks = {name: _checker(hints[name]) for name in fields}
    required = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]

    def made(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise _MisfitError(value, "an object")
        for name in required:
            if name not in value:
                raise _MisfitError(_MISSING, "a value", f".{name}")
        given = {name: _inside(check, value[name], f".{name}") for name, check in checks.items() if name in value}
        return kind(**given)

    return made


def _inside(check: _Check, value: Any, place: str) -> Any:
    try:
        return check(value)
    except _MisfitError as error:
        raise error.inside(place) from None
