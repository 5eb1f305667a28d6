"""Options as frozen dataclasses: checked when they are created, and documented once.

A field's metadata holds its documentation for Python and its help on the command line. `takes_options` gives a function
the signature and the documentation. `romou.cli.click_options` makes command-line options from the same fields.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from romou.base.errors import UsageError, unknown_name

_Options = TypeVar("_Options", bound="CheckedOptions")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_ABOVE_0 = "above 0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedOptions:
    """Base of option classes. Fields made by `number` and `whole` are checked when an object is created."""

    # How messages call one of the options
    noun: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata.get("lowest") is not None and not (value is None and field.default is None):
                _check_number(field, value)

    @classmethod
    def from_dict(cls: type[_Options], values: Mapping[str, Any]) -> _Options:
        """Return options from a mapping. An unknown key is a UsageError with the nearest name."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise unknown_name(cls.noun or f"{cls.__name__} key", name, names)
        return cls(**values)


def option(
    default: Any,
    doc: str = "",
    *,
    help_text: str = "",
    lowest: Any = None,
    why: str = "",
    is_whole: bool = False,
    **cli: Any,
) -> Any:
    """Return a dataclass field for an option.

    doc: its documentation in Python.
    help_text: its help on the command line.
    lowest: the lowest number allowed, or "above 0". None for an option that is no number.
    why: the reason for `lowest`, for messages.
    cli: its form on the command line, as `romou.cli.click_options` reads it.
    """
    checks = {"lowest": lowest, "why": why, "is_whole": is_whole}
    metadata = {"doc": textwrap.dedent(doc).strip(), "help": help_text, **checks, **cli}
    return dataclasses.field(default=default, metadata=metadata)


def number(default: float | None, doc: str = "", *, lowest: Any = _ABOVE_0, **metadata: Any) -> Any:
    """Return a field that holds a checked number."""
    return option(default, doc, lowest=lowest, **metadata)


def whole(default: int | None, doc: str = "", *, lowest: int = 1, **metadata: Any) -> Any:
    """Return a field that holds a checked whole number."""
    return option(default, doc, lowest=lowest, is_whole=True, **metadata)


def takes_options(options: type[CheckedOptions]) -> Callable[[_Function], _Function]:
    """Return a decorator that gives a function with `**options` the signature and documentation of an options class."""

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        keywords = [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
            for f in dataclasses.fields(options)
        ]
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        documented = inspect.cleandoc(function.__doc__ or "")
        before, raises, after = documented.partition("\n\nRaises\n------\n")
        function.__doc__ = f"{before}\n{_documentation(options)}{raises}{after}"
        return function

    return decorate


def _documentation(options: type[CheckedOptions]) -> str:
    texts = [(field.name, field.metadata.get("doc", "")) for field in dataclasses.fields(options)]
    return "\n".join(f"{name}\n{textwrap.indent(text, '    ')}" for name, text in texts)


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
