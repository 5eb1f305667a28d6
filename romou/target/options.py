"""The options of a target, checked against what its backend takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from romou.backends.base import Backend
from romou.core.errors import UsageError, unknown_name


def checked_options(backend: Backend, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given and not None, in the order in which a target prints them; limits are whole numbers.

    Raises
    ------
    UsageError
        An option that the backend does not take (with the known ones and the nearest name), an unknown device, or a value out of range.
    """
    options = {option.name: option for option in backend.options}
    known = (*options, *backend.limit_names)
    for name in given:
        if name not in known:
            raise unknown_name("target option", name, known)
    found: dict[str, Any] = {}
    for name in known:
        if given.get(name) is not None:
            found[name] = options[name].checked(given[name]) if name in options else _positive(name, given[name])
    if "device" in found:
        # An unknown device fails here, not at first use.
        backend.check_named_device(found["device"])
    return found


_MOST = 2**31 - 1


def _positive(name: str, value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if not 0 < number <= _MOST or isinstance(value, bool):
        most = f", at most {_MOST}" if number > _MOST else ""
        raise UsageError(f"target option -{name}={value}: must be a whole number above zero{most}", option=name, value=value)
    return number
