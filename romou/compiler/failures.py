"""Failures of single functions, collected so that one error names them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from romou.base.errors import BrokenFunctionsError, CompatError, DeviceError, UsageError, as_build_error

_T = TypeVar("_T")


class Failures:
    """Errors by function. `attempt` collects them, `check` raises them as one."""

    def __init__(self) -> None:
        self._errors: dict[str, Exception] = {}

    def attempt(self, name: str, what: str, make: Callable[[], _T]) -> _T | None:
        """Return the result of `make`, or None if it fails.

        Errors of the user, the device or the installation are raised.
        """
        try:
            with as_build_error(what):
                return make()
        except (UsageError, DeviceError, CompatError):
            raise
        except Exception as error:  # as_build_error lets only Romou's errors through
            self._errors.setdefault(name, error)
            return None

    def check(self, origins: Mapping[str, frozenset[str]] | None = None) -> None:
        """Raise BrokenFunctionsError if a function failed. origins: as in `BrokenFunctionsError`."""
        if self._errors:
            raise BrokenFunctionsError.of(self._errors, origins)
