"""Parsing of target text, dicts and TVM targets. TVM no longer parses "-key=value" text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from romou.base.errors import UsageError, unknown_name
from romou.base.foreign import parsed, refused
from romou.base.schema import made_of
from romou.devices.backends import backend
from romou.devices.backends.base import Backend

# TVM keeps free text in "model", which carries the device through a tvm Target and back.
ATTACHED = "attached"


def parse(target: Any) -> tuple[Backend, dict[str, Any]]:
    """Return the backend and unchecked options of a text, a dict in TVM's form or ours, or a tvm Target.

    "opencl -device=host -max_num_threads=64"      ->      (opencl, {"device": "host", "max_num_threads": "64"})

    UsageError for another type, for text that cannot be read, or for an unknown kind.
    """
    if isinstance(target, str):
        return _parse_mapping(parse_json(target)) if target.strip().startswith("{") else _parse_text(target)
    if isinstance(target, Mapping):
        return _parse_mapping(target)
    if hasattr(target, "export"):
        return _parse_mapping(target.export())
    raise UsageError(f"a target is text, a dict or a tvm Target; got {type(target).__name__}", value=repr(target))


def parse_json(text: str) -> dict[str, Any]:
    """Return the object in a JSON text. UsageError if there is none."""
    with refused(UsageError, "target is no JSON object"):
        return made_of(dict[str, Any], parsed(text))


def _parse_text(text: str) -> tuple[Backend, dict[str, Any]]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"target {text!r}: {error}") from error
    device_backend = backend(words[0] if words else "")
    options: dict[str, Any] = {}
    for word in words[1:]:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not equals or not value:
            raise UsageError(
                f"target {text!r}: cannot read {word!r}",
                hint="Options have the form -name=value, e.g. -device=host.",
                word=word,
            )
        if name in options:
            raise UsageError(f"target {text!r}: -{name} is given twice ({options[name]!r} and {value!r})", option=name)
        options[name] = value
    return device_backend, options


def _parse_mapping(data: Mapping[str, Any]) -> tuple[Backend, dict[str, Any]]:
    """Return backend and options of a dict in TVM's form or in ours, without the options that TVM filled in."""
    if "kind" not in data:
        raise UsageError(
            f"target dict has no 'kind'; got {sorted(map(str, data))}",
            hint="For example {'kind': 'opencl', 'device': 'host'}.",
        )
    options = {str(k): v for k, v in data.items()}
    device_backend = backend(str(options.pop("kind")))
    keys = set(options.pop("keys", ()))
    others = keys - {device_backend.tvm_kind, "gpu", options.get("device")}
    if others:
        raise UsageError(
            f"target keys {sorted(others)} choose schedules inside TVM, which Romou does not use",
            hint="Leave 'keys' out and name the device: {'kind': 'opencl', 'device': 'adreno640'}.",
        )
    if options.get("tag") == "":
        del options["tag"]
    if "host" in options:
        options["host"] = _host_triple(options["host"])
    second_name = options.pop("max_threads_per_block", None)
    if second_name is not None:
        options["max_num_threads"] = min(second_name, options.get("max_num_threads", second_name))
    model = options.pop("model", None)
    if model is not None and model != ATTACHED:
        options.setdefault("device", model)
    # A hand-written dict has no defaults of TVM, so every limit counts.
    return device_backend, _without_implied(device_backend, options, is_ours=model is not None) if keys else options


def _without_implied(device_backend: Backend, options: dict[str, Any], *, is_ours: bool) -> dict[str, Any]:
    """Drop TVM's defaults, and the limits that `Target.tvm_target` derived from the device."""
    import tvm.target

    implied = dict(tvm.target.Target(device_backend.bare_tvm_config).export())
    if is_ours:
        device = {name: options[name] for name in ("device",) if name in options}
        implied |= device_backend.tvm_config(
            device, device_backend.device_limits(device_backend.spec(device.get("device")))
        )
    return {k: v for k, v in options.items() if k not in implied or implied[k] != v}


def _host_triple(host: Any) -> str | None:
    """Return the LLVM triple of a host given as text, dict or tvm Target. None for this machine."""
    if host is None or host == "llvm":
        return None
    if isinstance(host, str):
        return host
    if not isinstance(host, Mapping):
        host = host.export()
    if host.get("kind") != "llvm":
        raise UsageError(f"the host target must be of kind 'llvm', got {host.get('kind')!r}")
    triple = host.get("mtriple")
    if triple is None:
        return None
    import tvm.target

    return None if triple == tvm.target.Target("llvm").export().get("mtriple") else str(triple)


def checked_options(backend: Backend, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options in the order of a target's text, without None. Limits are whole numbers.

    UsageError for an unknown option (with the known ones and the nearest name), an unknown device, or a value out of
    range.
    """
    options = {option.name: option for option in backend.options}
    names = (*options, *backend.limit_names)
    for name in given:
        if name not in names:
            raise unknown_name("target option", name, names)
    checked: dict[str, Any] = {}
    for name in names:
        if given.get(name) is not None:
            checked[name] = options[name].checked(given[name]) if name in options else _positive(name, given[name])
    if "device" in checked:
        # An unknown device fails here, not at first use.
        checked["device"] = backend.named_device(checked["device"])
    return checked


_MOST = 2**31 - 1


def _positive(name: str, value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if not 0 < number <= _MOST or isinstance(value, bool):
        most = f", at most {_MOST}" if number > _MOST else ""
        raise UsageError(
            f"target option -{name}={value}: must be a whole number above zero{most}", option=name, value=value
        )
    return number
