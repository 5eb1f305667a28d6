"""Errors that Romou raises on purpose, and the message for an unknown name.

A message says what went wrong, the value, the limit, the origin of the limit and what to do next. The parts that a
program may read are also attributes: ``DeviceError("...", device="adreno640").device``.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

_FAULT = (
    "This is a fault of Romou or TVM, not of the model. Report it with the model; another shape or dtype of this"
    " operator may work."
)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_DEVICE = 3
EXIT_UNCHECKED = 4


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class RomouError(Exception):
    """Base of all errors with a message meant for a person.

    Parameters
    ----------
    message
        One self-contained text. The command line prints nothing else.
    hint
        What to do next, on a separate line below the message.
    fields
        Values for programs. Each becomes an attribute and is kept when the error passes from one process to another.
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
        # Python calls this only for missing attributes. Its presence makes type checkers accept `error.device`.
        raise AttributeError(
            f"{type(self).__name__} has no field {name!r}; it has {sorted(self.__dict__.get('fields', ()))}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling of Exception passes only `args`, so it would lose hint and fields.
        return _rebuild, (type(self), self.message, self.hint, self.fields)

    def to_dict(self) -> dict[str, Any]:
        """Return the error as JSON-ready data.

        The keys are type, message, hint, exit_code and the fields, as text if they are not plain.
        """
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
    """A wrong option, name, shape or type: the call cannot work."""

    exit_code = EXIT_USAGE


class DeviceError(RomouError):
    """No device can do the work: no ICD loader, no platform, or a device that failed a tiny kernel."""

    exit_code = EXIT_NO_DEVICE


class ConnectionLostError(DeviceError):
    """A remote device does not answer, or the connection to it was cut. Trying again may help."""


class ModelError(RomouError):
    """The ONNX model is broken or uses something that Romou cannot compile."""


class NumericError(RomouError):
    """A compiled model's outputs differ from onnxruntime's."""


class BrokenModelError(ModelError):
    """The ONNX model is broken in a way that no runtime can run, so the host does not help."""


class RecordError(RomouError):
    """Tuning records are unreadable or belong to another device or format version."""


class BuildError(RomouError):
    """A kernel or module could not be built."""


class BrokenNodesError(BuildError):
    """A step of the compiler failed at some nodes of the model.

    nodes: the names of their first outputs.
    """

    @classmethod
    def of(cls, what: str, nodes: Iterable[str], error: Exception) -> BrokenNodesError:
        """Return the error for `nodes`: `what` could not be built because of `error`."""
        return cls(_cannot_be_built(what, error), hint=_FAULT, what=what, nodes=frozenset(nodes))


class BrokenFunctionsError(BuildError):
    """Some functions of a model cannot be scheduled, lowered or compiled.

    functions: name -> error.
    origins: name -> nodes that the function computes. It is given if the handler does not have the functions' module.
    """

    @classmethod
    def of(
        cls, functions: Mapping[str, Exception], origins: Mapping[str, frozenset[str]] | None = None
    ) -> BrokenFunctionsError:
        """Return the error with the first message of `functions` and the number of the others.

        `origins`: see the class.
        """
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
    """A schedule template cannot build this config. The search records `Outcome.INVALID` and goes on."""


class SpaceEmptyError(RomouError):
    """A knob space has no config that could be tried."""


@contextlib.contextmanager
def as_build_error(what: str) -> Iterator[None]:
    """Turn exceptions other than RomouError into a BuildError. Its message names `what`, which was being built."""
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
    """Return the entry of `known` that `name` was probably meant to be, or None."""
    folded = {entry.lower().replace("-", "_"): entry for entry in known}
    matches = difflib.get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=0.5)
    return folded[matches[0]] if matches else None


def unknown_name(what: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the UsageError for a name that is not in a list. It lists the known names and suggests the nearest.

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


def check_names(names: Iterable[str], known: Collection[str], what: str, origin: str) -> None:
    """Raise UsageError for the first name that is not in a list: `unknown_name`, after where the name stands."""
    for name in names:
        if name not in known:
            error = unknown_name(what, name, known)
            raise UsageError(f"{origin}: {error.message}", hint=error.hint, key=name)
