"""Findings of an examination of a machine."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding.

    name: what was looked at.
    is_ok: None for a remark, nothing is broken.
    detail: what was found. hint: what to do next.
    limits: what is left out, though it works otherwise.
    is_avoided_fault: a known fault of a driver, which Romou works around.
    """

    name: str
    is_ok: bool | None
    detail: str
    hint: str | None = None
    limits: tuple[str, ...] = ()
    is_avoided_fault: bool = False
