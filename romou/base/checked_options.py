"""Options as frozen dataclasses: checked when they are created, and documented once.

A field's metadata holds its text. `takes_options` gives a function the keywords, for type checkers and editors too, and
their documentation. `romou.cli.click_options` makes command-line options from the same fields.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from romou.base.errors import UsageError, unknown_name

_Options = TypeVar("_Options", bound="CheckedOptions")
_Read = TypeVar("_Read", bound="CheckedOptions", covariant=True)
_Model = TypeVar("_Model", contravariant=True)
_Baseline = TypeVar("_Baseline", contravariant=True)
_Result = TypeVar("_Result", covariant=True)
_Keywords = ParamSpec("_Keywords")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_ABOVE_0 = "above 0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedOptions:
    """Base of option classes. Fields made by `number` and `whole` are checked when an object is created."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata.get("lowest") is not None and not (value is None and field.default is None):
                _check_number(field, value)

    @classmethod
    def from_dict(cls: type[_Options], values: Mapping[str, Any], of: str = "") -> _Options:
        """Return options from a mapping. An unknown key is a UsageError with the nearest name.

        of: name of the function that has the options.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise unknown_name(f"option of {of}" if of else f"{cls.__name__} key", name, names)
        return cls(**values)


def option(
    default: Any,
    text: str = "",
    more: str = "",
    *,
    unset: str = "",
    lowest: Any = None,
    why: str = "",
    is_whole: bool = False,
    **cli: Any,
) -> Any:
    """Return a dataclass field for an option.

    text: what it is. The command line shows that, and what None is.
    more: what only a caller from Python reads, after `text`.
    unset: what None is, for an option that may be None.
    lowest: the lowest number allowed, or "above 0". None for an option that is no number.
    why: the reason for `lowest`, for messages.
    cli: its form on the command line, as `romou.cli.click_options` reads it.
    """
    checks = {"lowest": lowest, "why": why, "is_whole": is_whole}
    metadata = {"text": " ".join(text.split()), "more": " ".join(more.split()), "unset": unset, **checks, **cli}
    return dataclasses.field(default=default, metadata=metadata)


def number(default: float | None, text: str = "", more: str = "", *, lowest: Any = _ABOVE_0, **metadata: Any) -> Any:
    """Return a field that holds a checked number."""
    return option(default, text, more, lowest=lowest, **metadata)


def whole(default: int | None, text: str = "", more: str = "", *, lowest: int = 1, **metadata: Any) -> Any:
    """Return a field that holds a checked whole number."""
    return option(default, text, more, lowest=lowest, is_whole=True, **metadata)


class OfModel(Protocol[_Model, _Keywords, _Result]):
    """A function of a model with options as keywords."""

    def __call__(self, model: _Model, *arguments: _Keywords.args, **options: _Keywords.kwargs) -> _Result: ...


class OfTwo(Protocol[_Baseline, _Model, _Keywords, _Result]):
    """A function of a baseline and what is current, with options as keywords."""

    def __call__(
        self, baseline: _Baseline, current: _Model, *arguments: _Keywords.args, **options: _Keywords.kwargs
    ) -> _Result: ...


class TakesOptions(Protocol[_Keywords, _Read]):
    """A decorator: (model, options) -> result becomes (model, **options) -> result, for type checkers too."""

    @overload
    def __call__(self, function: Callable[[_Model, _Read], _Result]) -> OfModel[_Model, _Keywords, _Result]: ...
    @overload
    def __call__(
        self, function: Callable[[_Baseline, _Model, _Read], _Result]
    ) -> OfTwo[_Baseline, _Model, _Keywords, _Result]: ...


def takes_options(options: Callable[_Keywords, _Read]) -> TakesOptions[_Keywords, _Read]:
    """Return a decorator that gives a function the fields of an options class as keywords, with their documentation.

    f(model, options: TuneOptions)  ->  f(model, *, trials=64, ...)
    """
    kind = cast(type[CheckedOptions], options)

    def decorate(function: Callable[..., Any]) -> Any:
        signature = inspect.signature(function)
        own = signature.replace(parameters=list(signature.parameters.values())[:-1])

        @functools.wraps(function)
        def called(*arguments: Any, **keywords: Any) -> Any:
            named = {name: keywords.pop(name) for name in own.parameters if name in keywords}
            if len(arguments) > len(own.parameters):
                positional, option = ", ".join(own.parameters), dataclasses.fields(kind)[0].name
                raise TypeError(f"options are given by name: romou.{function.__name__}({positional}, {option}=...)")
            given = own.bind(*arguments, **named)
            return function(*given.args, **given.kwargs, options=kind.from_dict(keywords, function.__name__))

        return _documented(called, own, kind)

    return decorate


def documents_options(options: type[CheckedOptions]) -> Callable[[_Function], _Function]:
    """Return a decorator that gives a function with `**options` the signature and documentation of an options class."""

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        return _documented(function, signature.replace(parameters=own), options)

    return decorate


def _documented(function: _Function, own: inspect.Signature, options: type[CheckedOptions]) -> _Function:
    """Give a function the signature `own` with the options, and their documentation. Return it."""
    keywords = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
        for f in dataclasses.fields(options)
    ]
    function.__signature__ = own.replace(parameters=[*own.parameters.values(), *keywords])  # type: ignore[attr-defined]
    before, raises, after = inspect.cleandoc(function.__doc__ or "").partition("\n\nRaises\n------\n")
    texts = "".join(f"{field.name}\n{_documentation(field)}\n" for field in dataclasses.fields(options))
    function.__doc__ = f"{before}\n{texts.rstrip()}{raises}{after}"
    return function


def _documentation(field: dataclasses.Field[Any]) -> str:
    metadata = field.metadata
    unset = metadata["unset"] and f"None: {metadata['unset']}."
    text = " ".join(filter(None, (metadata["text"], metadata["more"], unset)))
    return textwrap.fill(text, 116, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)


def _check_number(field: dataclasses.Field[Any], value: Any) -> None:
    lowest, is_whole = field.metadata["lowest"], field.metadata["is_whole"]
    is_number = isinstance(value, int if is_whole else (int, float)) and not isinstance(value, bool)
    is_finite = is_number and math.isfinite(value)
    if not is_finite or not (value > 0 if lowest == _ABOVE_0 else value >= lowest):
        limit = lowest if lowest == _ABOVE_0 else f"at least {lowest}"
        why = field.metadata["why"] and f": {field.metadata['why']}"
        raise UsageError(
            f"{field.name}={value!r}: must be a {'whole ' if is_whole else ''}number, {limit}{why}",
            option=field.name,
            value=value,
        )
