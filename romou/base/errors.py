"""Every error that Romou raises on purpose, and the words in which an unknown name is reported.

A message says what went wrong, the value, the limit, where the limit came from and what to do next. The parts that a
program wants to read are also attributes: ``DeviceError("...", device="adreno640").device``.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_FAULT = (
    "This is a fault of Romou or TVM, not of the model. Report it with the model; another shape or dtype of this"
    " operator may work."
)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_DEVICE = 3


class RomouError(Exception):
    """Base of all errors with a message meant for a person.

    Parameters
    ----------
    message
        One self-contained text; the command line prints nothing else.
    hint
        What to do next; stands on a line of its own below the message.
    fields
        Anything a program may want to read; each becomes an attribute and is kept when the error crosses a process
        border.
    """

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, hint: str | None = None, **fields: Any) -> None:
        super().__init__(message if hint is None else f"{message}\n{hint}")
        self.message = message
        self.hint = hint
        self.fields = dict(fields)
        for name, value in fields.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are not set; spelled out so that type checkers accept `error.device`.
        raise AttributeError(
            f"{type(self).__name__} has no field {name!r}; it has {sorted(self.__dict__.get('fields', ()))}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own pickling replays `args` positionally and would lose hint and fields.
        return _rebuild, (type(self), self.message, self.hint, self.fields)

    def to_dict(self) -> dict[str, Any]:
        """The error as JSON-ready data: type, message, hint, exit_code and the fields as text where they are not plain."""  # noqa: E501
        plain = (str, int, float, bool, type(None))
        fields = {k: v if isinstance(v, plain) else str(v) for k, v in self.fields.items()}
        return {
            "type": type(self).__name__,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.exit_code,
            "fields": fields,
        }


def _rebuild(cls: type[RomouError], message: str, hint: str | None, fields: dict[str, Any]) -> RomouError:
    return cls(message, hint=hint, **fields)


class UsageError(RomouError):
    """The caller asked for something that does not exist or cannot be: wrong option, name, shape or type."""

    exit_code = EXIT_USAGE


class DeviceError(RomouError):
    """No device can do the work: no ICD loader, no platform, or a device that failed a tiny kernel."""

    exit_code = EXIT_NO_DEVICE


class ConnectionLostError(DeviceError):
    """A device elsewhere does not answer, or the connection to it was cut; trying again may help."""


class ModelError(RomouError):
    """The ONNX model is broken or uses something that Romou cannot compile."""


class NumericError(RomouError):
    """A compiled model's outputs are not those of onnxruntime."""


class BrokenModelError(ModelError):
    """The ONNX model asks for what no runtime can give: the host does not help."""


class RecordError(RomouError):
    """Tuning records are unreadable or belong to another device or format version."""


class BuildError(RomouError):
    """A kernel or module could not be built."""


class BrokenNodesError(BuildError):
    """A step of the compiler failed at some nodes of the model; the field `nodes` has the names of their first outputs."""  # noqa: E501

    @classmethod
    def of(cls, what: str, nodes: Iterable[str], error: Exception) -> BrokenNodesError:
        """Say what could not be built (`what`), at which `nodes`, and which `error` says so."""
        return cls(_cannot_be_built(what, error), hint=_FAULT, what=what, nodes=frozenset(nodes))


class BrokenFunctionsError(BuildError):
    """Some functions of a model cannot be scheduled, lowered or compiled; `functions` has the error of each by its
    name.

    origins: by their names, the nodes that they compute, where the error comes from a module that its catcher does not
    have.
    """

    @classmethod
    def of(
        cls, functions: Mapping[str, Exception], origins: Mapping[str, frozenset[str]] | None = None
    ) -> BrokenFunctionsError:
        """Say why the first one of `functions` cannot be built, and how many others cannot; `origins` as above."""
        first = next(iter(functions.values()))
        message = first.message if isinstance(first, RomouError) else str(first)
        more = f" (and {len(functions) - 1} more kernels)" if len(functions) > 1 else ""
        return cls(
            f"{message}{more}",
            hint=getattr(first, "hint", None),
            functions=dict(functions),
            origins=dict(origins or {}),
        )


class CompatError(RomouError):
    """The installed TVM is not the pair of wheels that Romou was checked with."""


class InvalidConfigError(RomouError):
    """A schedule template cannot build this config. The search records it as `Outcome.INVALID`; the run goes on."""


class SpaceEmptyError(RomouError):
    """A knob space holds no config that could be tried."""


@contextlib.contextmanager
def as_build_error(what: str) -> Iterator[None]:
    """Let what goes wrong inside, but for errors with a message of their own, come out as a BuildError that says `what`
    was being built.
    """
    try:
        yield
    except RomouError:
        raise
    except Exception as error:
        raise BuildError(_cannot_be_built(what, error), hint=_FAULT, what=what) from error


def _cannot_be_built(what: str, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return f"{what} cannot be built: {type(error).__name__}: {lines[-1][:500]}"


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The entry of `known` that `name` was probably meant to be, or None."""
    folded = {entry.lower().replace("-", "_"): entry for entry in known}
    matches = difflib.get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=0.5)
    return folded[matches[0]] if matches else None


def unknown_name(what: str, name: str, known: Iterable[str]) -> UsageError:
    """The one wording for a name that is not in a list: says which are known and which is nearest.

    unknown_name("device", "adreno64", ["adreno640", "host"])
    -> UsageError: unknown device 'adreno64'; known: adreno640, host
       Did you mean 'adreno640'?
    """
    entries = sorted(known)
    near = nearest_name(name, entries)
    hint = f"Did you mean {near!r}?" if near else None
    return UsageError(
        f"unknown {what} {name!r}; known: {', '.join(entries) or 'none'}",
        hint=hint,
        name=name,
        known=entries,
        nearest=near,
    )
