"""What Romou reads from the environment; only the API, the command line and `mobile_compilers` ask for it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from romou.core.errors import UsageError, nearest_name

# name -> what it does; also printed in the README.
VARIABLES = {
    "ROMOU_CACHE_DIR": "folder of records that no work_dir names; else $XDG_CACHE_HOME/romou or ~/.cache/romou",
    "ROMOU_DEBUG": "1: show tracebacks of errors that are otherwise one message",
    "ROMOU_MOBILE_COMPILERS": "folder of scripts/setup_mobile_compilers.sh",
    "ROMOU_OPENCL_DEVICE": "part of an OpenCL device's name: only devices that match it are used",
}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Checked values of the ROMOU_* variables; `unknown` holds complaints about names that Romou does not read."""

    is_debug: bool = False
    opencl_device: str | None = None
    cache_dir: Path = Path("~/.cache/romou")
    mobile_compilers: Path = Path("~/.cache/romou/mobile_compilers")
    unknown: tuple[str, ...] = ()


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the environment (`os.environ` by default); UsageError for a value that cannot be read."""
    env = os.environ if environment is None else environment
    unknown = [_complaint(name) for name in sorted(env) if name.startswith("ROMOU_") and name not in VARIABLES]
    return Settings(
        is_debug=_flag("ROMOU_DEBUG", env),
        opencl_device=env.get("ROMOU_OPENCL_DEVICE") or None,
        cache_dir=Path(env.get("ROMOU_CACHE_DIR") or Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "romou"),
        mobile_compilers=Path(env.get("ROMOU_MOBILE_COMPILERS") or Settings.mobile_compilers),
        unknown=tuple(unknown),
    )


def _flag(name: str, env: Mapping[str, str]) -> bool:
    text = env.get(name, "").strip().lower()
    if text not in _TRUE + _FALSE:
        raise UsageError(f"{name}={env[name]!r}: must be 1 or 0", name=name, value=env[name])
    return text in _TRUE


def _complaint(name: str) -> str:
    near = nearest_name(name, VARIABLES)
    return f"{name} is set but Romou does not read it" + (f"; did you mean {near}?" if near else f"; it reads {', '.join(VARIABLES)}")
